"""Optimising latents through the codec so that the exemplars of a class are distributed as its samples are.

No exemplar is pulled to a sample, nor to a centre: the exemplars of a class together match the mean maps of many
samples, under one network and one view after another. All classes and exemplars at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.condense.distribution import (
    Embedding,
    FreshNet,
    Moments,
    View,
    draw_each,
    draw_view,
    membership,
    mismatch,
    moments,
    real_moments,
)
from protocore.condense.loop import DEFAULT, Condensed, Goals, Weights, condensation_loss
from protocore.ranks.split import split, split_bytes

NETWORKS = ("fresh", "learned", "both")
JUDGES = 4  # networks, none of them met in the steps, by which the start and the end are compared


@dataclass(frozen=True)
class Matching:
    """How a distribution is matched."""

    networks: str = "fresh"  # drawn anew, the one that learned, or these two in turn
    samples: int = 32  # real pictures a class that a network is shown
    every: int = 4  # steps for which a network stays, with its view and what it said of the real pictures
    second: float = 0.0  # weight of the second moments
    label: float = 0.0  # weight of the label loss of the network that learned
    width: int = 64  # filters of a fresh network


@dataclass(frozen=True)
class Reals:
    """The pictures that a class's exemplars stand for: the class of each, and how to read some of them by row."""

    labels: Tensor  # (n,)
    images: Callable[[Tensor], Tensor]  # float, in [0, 1], on the device


@dataclass(frozen=True)
class Learned:
    """The network that learned: its features, and its label loss of pictures with their classes."""

    features: Embedding
    label_loss: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sight:
    """A network with a view, and the moments of real pictures that they show."""

    embed: Embedding
    view: View
    real: Moments


class Distribution:
    """The loss of latents under a sight, and sights to look under; `goals` as in `condense`.

    A class that returns has further goals, `goals.previous` and `goals.anchor`: they are matched as ever, by the
    network that learned. `goals.target` is not looked at.
    """

    def __init__(self, codec: Codec, goals: Goals, reals: Reals, learned: Learned, how: Matching,
                 weights: Weights = DEFAULT) -> None:
        self.codec, self.goals, self.reals, self.learned, self.how = codec, goals, reals, learned, how
        self.weights = weights
        self.classes = goals.labels.unique()
        self.member = membership(goals.labels, self.classes)
        some = reals.images(draw_each(reals.labels, how.samples))
        self.shape = some.shape[2:]
        self.mean, self.std = some.mean((0, 2, 3)), some.std((0, 2, 3)).clamp_min(1e-3)
        self.returning = bool((weights.pre_syn and not goals.previous.isnan().all())
                              or (weights.shift and not goals.anchor.isnan().all()))

    def sight(self, number: int, view: View | None = None) -> Sight:
        """The `number`th: its network, a view (a drawn one, if none is given), and freshly drawn real pictures."""
        own = self.how.networks == "learned" or (self.how.networks == "both" and number % 2 == 1)
        embed = self.learned.features if own else FreshNet(self.mean, self.std, self.how.width)
        view = draw_view(*self.shape) if view is None else view
        rows = draw_each(self.reals.labels, self.how.samples)
        member = membership(self.reals.labels[rows], self.classes)
        return Sight(embed, view, real_moments(lambda x: embed(view(x)), self.reals.images(rows), member))

    def loss(self, latents: Tensor, sight: Sight) -> tuple[Tensor, Tensor]:
        """And the decoded pictures."""
        images = split(self.codec.decode, latents).to(self.goals.target)
        seen = sight.view(images)  # the very transform that the real pictures went through
        made = moments(split(sight.embed, seen), self.member)
        loss = self.weights.cur_syn * mismatch(made, sight.real, self.how.second)
        if self.how.label:
            loss = loss + self.how.label * self.learned.label_loss(seen, self.goals.labels)
        if self.returning:
            loss = loss + condensation_loss(self.learned.features(images), self.goals, replace(self.weights, cur_syn=0))
        return loss, images


def match(start: Tensor, distribution: Distribution, *, steps: int = 200, lr: float = 0.06, record: bool = False,
          progress: Callable[[int, int], None] | None = None) -> Condensed:
    """Minimise the mismatch over z (Adam, cosine annealing), every network frozen.

    Quantising is straight-through. The losses that are told, before and after, are those of the stored bytes, under
    networks that the steps did not meet; where these find nothing better, the start is what is stored.
    """
    codec, natural = distribution.codec, distribution.weights.natural
    judges = [distribution.sight(number, View()) for number in range(JUDGES)]

    @torch.no_grad()
    def judged(stored: list[bytes]) -> float:
        latents = codec.from_bytes(stored)
        return sum(float(distribution.loss(latents, judge)[0]) for judge in judges) / JUDGES

    with torch.no_grad():
        first = split_bytes(codec.to_bytes, start)
    before = judged(first)
    result = Condensed(first, before, before)
    z = start.detach().clone().requires_grad_(True)
    optimiser = torch.optim.Adam([z], lr=lr)
    sight = judges[0]
    for step in range(steps):
        if step % distribution.how.every == 0:
            sight = distribution.sight(step // distribution.how.every)
        optimiser.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        draft = split(codec.draft, z)
        loss, images = distribution.loss(draft, sight)
        if natural:
            near = draft.detach()
            loss = loss + natural * (z - near).square().mean() / near.square().mean().clamp_min(1e-12)
        # The sum over exemplars: Adam's ε must not weigh more when there are many of them.
        (z.grad,) = torch.autograd.grad(len(z) * loss, z)
        optimiser.step()
        if record:
            with torch.no_grad():
                result.trace.append(distribution.learned.features(images.detach()))
        if progress:
            progress(step + 1, steps)
    if steps:
        with torch.no_grad():  # the last draft, and not z: it is the draft that the steps have made good
            last = split_bytes(lambda rows: codec.to_bytes(codec.quantise(codec.draft(rows))), z)
        after = judged(last)
        if after < before:
            result.stored, result.after = last, after
    return result
