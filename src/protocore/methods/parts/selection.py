"""Shared by selections: herding, ranks within a class, equal shares. Pure functions; indices come on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


@torch.no_grad()
def herding(features: Tensor, count: int) -> Tensor:
    """Rows of (n, d) in order of priority: each one brings the mean of those chosen nearest to the mean of all.

    The k-th choice minimises ‖μ - (S + φ_i)/k‖ over the rows not chosen yet, S being the sum of the choices before
    (iCaRL, Algorithm 4, where the φ_i have unit length: normalising is the caller's part). Any prefix of the order is
    the selection of that size. Of equal rows the first wins; more than n are not there to be chosen.
    """
    phi = features.detach().cpu().double()
    mean, chosen_sum = phi.mean(0), phi.new_zeros(phi.shape[1])
    squared = phi.square().sum(1)
    order = torch.empty(min(max(count, 0), len(phi)), dtype=torch.int64)
    for k in range(len(order)):
        # ‖kμ - S - φ_i‖² without the part that is the same for all i
        distance = squared - 2 * phi @ ((k + 1) * mean - chosen_sum)
        distance[order[:k]] = torch.inf
        order[k] = distance.argmin()
        chosen_sum += phi[order[k]]
    return order


def rank_in_class(labels: Tensor) -> Tensor:
    """How many rows of the same class come before each row."""
    labels = labels.cpu()
    order = labels.argsort(stable=True)
    _, counts = labels.unique(return_counts=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return rank


def quota(total: int, sizes: Tensor) -> Tensor:
    """Slots of each task: floor(total · n_i / Σ n), and what is left over one each to the earliest tasks."""
    share = total * sizes // sizes.sum().clamp(min=1)
    share[sizes.nonzero().flatten()[: total - int(share.sum())]] += 1
    return share


def best(scores: Tensor, kinds: Tensor, room: Tensor, count: int) -> Tensor:
    """The `count` largest scores in descending order, of kind k at most `room[k]`."""
    order = scores.argsort(descending=True, stable=True)
    of_kind = kinds[order]
    return order[rank_in_class(of_kind) < room[of_kind]][:count]


def greedy(reference: Tensor, kinds: Tensor, room: Tensor, selection_steps: int,
           losses_after: Callable[[Tensor], Tensor], tell: Callable[[int, int], object] | None = None) -> Tensor:
    """Candidates in the order of being picked, each time those of largest ReL(z) = L(z; θ_S) - L(z; θ_ref).

    `reference` are the losses L(z; θ_ref), `losses_after(S)` gives L(z; θ_S) of all candidates under a model trained
    on the candidates S; of kind k `room[k]` are picked.
    """
    count = int(torch.minimum(room, kinds.bincount(minlength=len(room))).sum())
    step = max(count // selection_steps, 1)
    picked = torch.empty(0, dtype=torch.int64)
    while len(picked) < count:
        reducible = losses_after(picked) - reference
        free = torch.ones(len(kinds), dtype=torch.bool)
        free[picked] = False
        left, still = free.nonzero().flatten(), room - kinds[picked].bincount(minlength=len(room))
        picked = torch.cat([picked, left[best(reducible[left], kinds[left], still, min(step, count - len(picked)))]])
        if tell:
            tell(len(picked), count)
    return picked
