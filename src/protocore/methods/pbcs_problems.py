"""PBCS's two problems as pure functions: the probabilities outside, a classifier for each drawn mask inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.methods.parts.selection import best
from protocore.methods.parts.simplex import project_capped_simplex

if TYPE_CHECKING:
    from protocore.methods.pbcs import PBCSOptions

TRIES = 5  # at most so often a mask is drawn anew


# -- the outer problem: min over s of E L(θ*(m)), m_i ~ Bernoulli(s_i), 0 <= s <= 1, Σ s <= K ---------------------


def score(masks: Tensor, s: Tensor) -> Tensor:
    """∇_s log p(m|s) = (m - s) / (s (1 - s)), and 0 where s is 0 or 1 and m can be nothing else."""
    variance = s * (1 - s)
    return torch.where(variance > 0, (masks - s) / variance, 0.0)


def policy_gradient(losses: Tensor, masks: Tensor, s: Tensor, estimator: str = "vr") -> Tensor:
    """The gradient of E L: Σ_j (L_j - L̄) ∇ log p(m_j|s) / (M - 1) ("vr"), or the mean of L_j ∇ log p(m_j|s)."""
    count, reduced = len(losses), int(estimator == "vr")
    return (losses - reduced * losses.mean()) @ score(masks, s) / max(count - reduced, 1)


def clipped(gradient: Tensor, longest: float) -> Tensor:
    """The gradient, shortened to this length where it is longer: where s is small, a pick has a score of 1/s."""
    return gradient * (longest / gradient.norm().clamp(min=longest))


def size_at(step: int, steps: int, start: float, final: float) -> float:
    """K of a step: `start` up to 16 % of the steps, `final` from 60 % on, a cubic between them."""
    done = min(max((step - 0.16 * steps) / (0.44 * steps), 0.0), 1.0)
    return final + (start - final) * (1 - done) ** 3


def cosine(step: int, steps: int) -> float:
    """The factor of a learning rate."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def sampled(s: Tensor, count: int, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Masks and the loss of each: where it is NaN the mask is drawn anew, a few times, then left out with it."""
    masks = (torch.rand(count, len(s)) < s).to(s)
    losses = loss_of(masks)
    for _ in range(TRIES):
        bad = losses.isnan()
        if not bool(bad.any()):
            break
        masks[bad] = (torch.rand(int(bad.sum()), len(s)) < s).to(s)
        losses[bad] = loss_of(masks[bad])
    return masks[~losses.isnan()], losses[~losses.isnan()]


def probabilities(loss_of: Callable[[Tensor], Tensor], kinds: Tensor, room: Tensor, o: PBCSOptions,
                  tell: Callable[[int, int], object] | None = None) -> Tensor:
    """s of each candidate, (n,); of kind k the coreset has `room[k]`. `loss_of` masks (M, n) is L(θ*(m)), (M,)."""
    first = o.start * room
    s = (first / kinds.bincount(minlength=len(room)).clamp(min=1))[kinds].clamp(max=1)
    adam = torch.optim.Adam([s], lr=o.outer_lr)
    of_kind = [(kinds == k).nonzero().flatten() for k in range(len(room))]
    for step in range(o.outer_steps):
        masks, losses = sampled(s, o.masks, loss_of)
        if len(losses) >= (2 if o.estimator == "vr" else 1):
            s.grad = clipped(policy_gradient(losses, masks, s, o.estimator), o.clip)
            adam.param_groups[0]["lr"] = o.outer_lr * cosine(step, o.outer_steps)
            adam.step()
        for k, at in enumerate(of_kind):
            s[at] = project_capped_simplex(s[at], size_at(step, o.outer_steps, float(first[k]), float(room[k])))
        if tell:
            tell(step + 1, o.outer_steps)
    return s


def repaired(mask: Tensor, s: Tensor, kinds: Tensor, room: Tensor) -> Tensor:
    """Candidates of exactly the right number: of those picked the most probable, then the most probable others."""
    return best(mask * 2 + s, kinds, room, len(mask))


# -- the inner problem: softmax regression on frozen features, for all masks at once ------------------------------


@torch.no_grad()
def fit_masks(z: Tensor, labels: Tensor, masks: Tensor, classes: int, *, steps: int,
              lr: float) -> tuple[Tensor, Tensor]:
    """θ*(m) of each mask, (M, d, classes), and its loss: `steps` full-batch steps of Adam from 0 on Σ m_i l_i / Σ m.

    Only picked samples are computed. An empty mask leaves θ at 0, and its loss is 0.
    """
    counts = masks.sum(1)
    most = max(int(counts.max()), 1)
    picked = torch.argsort(masks, dim=1, descending=True, stable=True)[:, :most]
    weight = (masks.gather(1, picked) / counts.clamp(min=1)[:, None])[..., None]
    x, y = z[picked], F.one_hot(labels[picked], classes).to(z) * weight
    theta = z.new_zeros(len(masks), z.shape[1], classes)
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(steps):  # Adam by hand: an optimiser object costs as much as the small products here
        gradient = x.mT @ ((x @ theta).softmax(2) * weight - y)
        m.lerp_(gradient, 0.1)
        v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (v / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
        theta.addcdiv_(m, scale, value=-lr * cosine(step, steps) / (1 - 0.9 ** (step + 1)))
    return theta, -((x @ theta).log_softmax(2) * y).sum((1, 2))


@torch.no_grad()
def mean_losses(z: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
    """L(θ): the mean cross entropy over all samples for each classifier, (M,)."""
    return F.cross_entropy((z @ theta).mT, labels.expand(len(theta), -1), reduction="none").mean(1)
