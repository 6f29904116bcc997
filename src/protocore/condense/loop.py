"""Optimising latents through the codec so that their features match: all classes and exemplars at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.ranks.split import split, split_bytes

Maps = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # images to features and flattened maps of the layers below
Start = Tensor | list[bytes]  # latents to optimise, or what is stored of pictures and stays as it is
_SIDE = 4  # pixels: larger maps are averaged down to this, so that a goal takes little room


@dataclass(frozen=True)
class Weights:
    """Coefficients of the condensation losses, the paper's three first; 0 switches one off."""

    cur_syn: float = 1.0
    pre_syn: float = 0.1
    shift: float = 0.1
    layers: float = 0.0  # maps of the layers before the features
    pixels: float = 0.0  # squared difference to the picture that the exemplar stands for
    natural: float = 0.0  # distance of z to the latents that can be stored


DEFAULT = Weights()


@dataclass(frozen=True)
class Goals:
    """What each exemplar (a row) is pulled to. NaN rows have no such goal."""

    target: Tensor  # (m, d) p^c, or the centre that the exemplar stands for
    previous: Tensor  # (m, d) f(ŝ^c) of the stored exemplar of the same class
    anchor: Tensor  # (m, d) p̂^c, the stored real prototype of the class
    labels: Tensor  # (m,)
    layers: Tensor | None = None  # (m, D) what `maps` should give
    images: Tensor | None = None  # (m, C, H, W) pictures to stay near


@dataclass
class Condensed:
    """What is stored of each exemplar, and its loss, decoded from these bytes, before and after optimising."""

    stored: list[bytes]
    before: float
    after: float
    trace: list[Tensor] = field(default_factory=list)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """d(a, b): mean over all rows of the squared distance of L2-normalised features; rows whose goal is NaN add 0.

    A mean over the rows that have the goal would make a goal's weight depend on how many others have it.
    """
    given = ~b.isnan().any(1)
    return (F.normalize(a[given], dim=1) - F.normalize(b[given], dim=1)).square().sum() / len(a)


def flat_maps(layers: list[Tensor]) -> Tensor:
    """The maps of all layers but the last, each averaged to 4x4, flattened, of length 1: (N, D)."""
    maps = [m for m in layers[:-1] if m.ndim == 4]
    small = [F.adaptive_avg_pool2d(m, (min(m.shape[2], _SIDE), min(m.shape[3], _SIDE))) for m in maps]
    return unit_maps([m.flatten(1) for m in small])


def unit_maps(maps: list[Tensor]) -> Tensor:
    """One row of several maps; squared distances of rows are then means over the layers."""
    return torch.cat([F.normalize(m, dim=1) for m in maps], 1) / len(maps) ** 0.5 if maps else torch.empty(0, 0)


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


def condense(features: Callable[[Tensor], Tensor], codec: Codec, start: Start, goals: Goals, *,
             weights: Weights = DEFAULT, steps: int = 50, lr: float = 0.1,
             perturb: Callable[[Tensor], Tensor] | None = None, maps: Maps | None = None, record: bool = False,
             progress: Callable[[int, int], None] | None = None) -> Condensed:
    """Minimise the condensation loss over z (AdamW, cosine annealing), the network frozen.

    Quantising is straight-through, so what is optimised is what will be stored. `perturb` draws an image
    transform of F at every step; `maps` looks at several layers (used where `weights.layers` is set). Through a
    codec without gradients nothing can be optimised: the start is what is stored. So it is where the steps have
    made nothing better.
    """
    def look(images: Tensor) -> tuple[Tensor, Tensor | None]:
        if maps is None or not weights.layers or goals.layers is None:
            return features(images), None
        return maps(images)

    def matched(latents: Tensor, transform: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        images = split(codec.decode, latents).to(goals.target)
        seen, below = look(images if transform is None else transform(images))
        loss = condensation_loss(seen, goals, weights)
        if below is not None and goals.layers is not None:
            loss = loss + weights.layers * (below - goals.layers).square().sum(1).mean()
        if weights.pixels and goals.images is not None:
            loss = loss + weights.pixels * (images - goals.images).square().mean()
        return loss, seen

    @torch.no_grad()
    def loss_of(stored: list[bytes]) -> float:
        return float(matched(codec.from_bytes(stored))[0])

    if isinstance(start, list):
        loss = loss_of(start)
        return Condensed(start, loss, loss)
    steps = steps if codec.differentiable else 0
    z = start.detach().clone().requires_grad_(True)
    optimiser = torch.optim.AdamW([z], lr=lr)
    with torch.no_grad():
        first = split_bytes(codec.to_bytes, z)
    result = Condensed(first, loss_of(first), 0.0)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        draft = split(codec.draft, z)
        loss, seen = matched(draft, perturb)
        if weights.natural:
            near = draft.detach()
            loss = loss + weights.natural * (z - near).square().mean() / near.square().mean().clamp_min(1e-12)
        # The sum over exemplars: AdamW's ε must not weigh more when there are many of them.
        (z.grad,) = torch.autograd.grad(len(z) * loss, z)
        optimiser.step()
        if record:
            result.trace.append(seen.detach())
        if progress:
            progress(step + 1, steps)
    result.after = result.before
    if steps:
        # The last draft, coded by the full search, and not z: it is the draft that the steps have made good.
        with torch.no_grad():
            last = split_bytes(lambda rows: codec.to_bytes(codec.quantise(codec.draft(rows))), z)
        after = loss_of(last)
        if after < result.before:
            result.stored, result.after = last, after
    return result
