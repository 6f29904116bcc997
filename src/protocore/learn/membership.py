"""Membership inference: whether scores tell pictures that were learned from pictures that were not. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

FALSE_ALARMS = 0.01  # of pictures that were not learned, where it is asked how many of the learned ones are caught


@dataclass(frozen=True)
class Membership:
    """How well an attacker who sees the scores of a picture guesses whether it was learned."""

    auc: float  # chance that a learned picture gives more evidence than one that was not: 0.5 is guessing, 1 is certain
    chance: float  # so far from 0.5 it comes by chance alone, 19 times out of 20 (for the worst of several: of all)
    caught: float | None  # share of learned pictures caught at FALSE_ALARMS; None: too few others to say
    members: int
    strangers: int

    @property
    def told(self) -> bool:
        """Whether it tells more than chance does. Less evidence than for other pictures gives learned ones away too."""
        return abs(self.auc - 0.5) > self.chance


def membership(members: Tensor, strangers: Tensor, tests: int = 1) -> Membership | None:
    """From the evidence (a number a picture) of learned and of other pictures; None where there are none of either.

    `tests`: among how many such numbers the largest is looked for.
    """
    m, n = len(members), len(strangers)
    if not m or not n:
        return None
    share = caught(members, strangers) if n * FALSE_ALARMS >= 1 else None
    return Membership(auc(members, strangers), chance(m, n, tests), share, m, n)


def evidence(scores: Tensor, labels: Tensor | None = None) -> Tensor:
    """Evidence that pictures were learned: the logit of the probability that scores (N, C) give to their labels.

    That is log p - log(1 - p), which orders as the loss does and does not stop to tell where p rounds to 1. Without
    labels, or where one is -1, it is of the most probable class: an attacker who does not know what is shown.
    """
    z = scores.double()
    best = z.argmax(1)
    own = best if labels is None else torch.where(labels < 0, best, labels)
    mine = z.gather(1, own[:, None])[:, 0]
    return mine - z.scatter(1, own[:, None], -torch.inf).logsumexp(1)


def auc(members: Tensor, strangers: Tensor) -> float:
    """P(a member has more) + P(they have the same) / 2, over all pairs, from ranks in one sort."""
    m, n = len(members), len(strangers)
    _, inverse, counts = torch.cat([members, strangers]).unique(return_inverse=True, return_counts=True)
    rank = counts.cumsum(0).double() - (counts.double() - 1) / 2  # mean rank of equal values
    return float((rank[inverse[:m]].sum() - m * (m + 1) / 2) / (m * n))


def caught(members: Tensor, strangers: Tensor, alarms: float = FALSE_ALARMS) -> float:
    """The share of members above the lowest threshold that no more than this share of strangers is above."""
    passed = int(alarms * len(strangers))
    threshold = strangers.sort(descending=True).values[passed]
    return float((members > threshold).double().mean())


def chance(members: int, strangers: int, tests: int = 1, level: float = 0.05) -> float:
    """How far from 0.5 an AUC of no meaning lies with this probability, for the farthest of several `tests`."""
    deviation = math.sqrt((members + strangers + 1) / (12 * members * strangers))
    return min(NormalDist().inv_cdf(1 - level / (2 * tests)) * deviation, 0.5)
