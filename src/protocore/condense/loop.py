"""Optimising latents through the decoder so that their features match: all classes and exemplars at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.decoders.base import Decoder


@dataclass(frozen=True)
class Weights:
    """Coefficients of the three condensation losses; 0 switches one off."""

    cur_syn: float = 1.0
    pre_syn: float = 0.1
    shift: float = 0.1


DEFAULT = Weights()


@dataclass(frozen=True)
class Goals:
    """What each exemplar (a row) is pulled to. NaN rows have no such goal."""

    target: Tensor  # (m, d) p^c, or the centre that the exemplar stands for
    previous: Tensor  # (m, d) f(ŝ^c) of the stored exemplar of the same class
    anchor: Tensor  # (m, d) p̂^c, the stored real prototype of the class
    labels: Tensor  # (m,)


@dataclass
class Condensed:
    """The latents, and the loss of what is stored (after quantising) before and after optimising."""

    z: Tensor
    before: float
    after: float
    trace: list[Tensor] = field(default_factory=list)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """d(a, b): mean over all rows of the squared distance of L2-normalised features; rows whose goal is NaN add 0.

    A mean over the rows that have the goal would make a goal's weight depend on how many others have it.
    """
    given = ~b.isnan().any(1)
    return (F.normalize(a[given], dim=1) - F.normalize(b[given], dim=1)).square().sum() / len(a)


def condensation_loss(features: Tensor, goals: Goals, weights: Weights) -> Tensor:
    """L_cur_syn + α1·L_pre_syn + α2·L_shift (paper eq. 1-4).

    With several exemplars a class, the anchor binds their mean: each one alone may lie off the centre.
    """
    loss = weights.cur_syn * distance(features, goals.target)
    if weights.pre_syn:
        loss = loss + weights.pre_syn * distance(features, goals.previous)
    if weights.shift:
        member = (goals.labels[:, None] == goals.labels[None, :]).to(features.dtype)
        loss = loss + weights.shift * distance(member / member.sum(1, keepdim=True) @ features, goals.anchor)
    return loss


def condense(features: Callable[[Tensor], Tensor], decoder: Decoder, start: Tensor, goals: Goals, *,
             weights: Weights = DEFAULT, steps: int = 50, lr: float = 0.1,
             perturb: Callable[[Tensor], Tensor] | None = None, record: bool = False,
             progress: Callable[[int, int], None] | None = None) -> Condensed:
    """Minimise the condensation loss over z (AdamW, cosine annealing), the network frozen.

    Quantising is straight-through, so what is optimised is what will be stored. `perturb` draws an image
    transform of F at every step.
    """
    z = start.detach().clone().requires_grad_(True)
    optimiser = torch.optim.AdamW([z], lr=lr)

    def stored_loss() -> float:
        with torch.no_grad():
            return float(condensation_loss(features(decoder.decode(decoder.quantise(z))), goals, weights))

    result = Condensed(z.detach(), stored_loss(), 0.0)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        images = decoder.decode(decoder.quantise(z))
        seen = features(images if perturb is None else perturb(images))
        loss = condensation_loss(seen, goals, weights)
        # The sum over exemplars: AdamW's ε must not weigh more when there are many of them.
        (z.grad,) = torch.autograd.grad(len(z) * loss, z)
        optimiser.step()
        if record:
            result.trace.append(seen.detach())
        if progress:
            progress(step + 1, steps)
    result.z = decoder.quantise(z).detach()
    result.after = stored_loss()
    return result
