"""Probabilities that mean what they say: a temperature, how far off they are, and when a picture is of no class.

Pure functions of scores. What is known of held-out pictures is kept as a curve over temperatures, and curves add up:
neither the pictures nor their scores are needed once new classes have come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from protocore.errors import UserError

TEMPERATURES = torch.logspace(-3, 3, 49, dtype=torch.float64)  # a parabola finds what lies between two of them
BINS = 15  # of the calibration error


def curve(scores: Tensor, labels: Tensor) -> Tensor:
    """At each temperature: the sum over the pictures of -log p(true class)."""
    rows = torch.arange(len(labels))
    return torch.stack([-torch.log_softmax(scores.double() / temperature, 1)[rows, labels].sum()
                        for temperature in TEMPERATURES])


def doubt(scores: Tensor, labels: Tensor) -> Tensor:
    """Laplace's doubt as such a curve, to be counted once, however many curves are added up.

    Where all of the pictures were right, no temperature would be low enough. So the one that was least clear counts
    twice more, as what it shows and as what it was nearly taken for: by Laplace's rule of succession one of n + 2 is
    wrong, and by experience it is an unclear one.
    """
    rivals = scores.double().scatter(1, labels[:, None], -math.inf).argmax(1)
    rows = torch.arange(len(labels))
    least = (scores[rows, labels] - scores[rows, rivals]).double().abs().argmin()
    return curve(scores[least].expand(2, -1), torch.stack([labels[least], rivals[least]]))


def less_clear(one: Sequence[float], other: Sequence[float]) -> Sequence[float]:
    """Of two curves of doubt the one to be counted: that of the less clear picture, which every temperature finds it
    cheaper to take for something else."""
    return min(one, other, key=math.fsum)


def temperature_of(losses: Tensor) -> float:
    """The temperature under which pictures with this curve are most likely."""
    at = int(losses.argmin())
    exponent = TEMPERATURES.log10()
    if not 0 < at < len(losses) - 1:
        return float(TEMPERATURES[at])
    low, middle, high = losses[at - 1 : at + 2].tolist()
    bend = low - 2 * middle + high
    moved = 0.5 * (low - high) / bend if bend > 0 else 0.0
    return float(10 ** (exponent[at] + moved * (exponent[1] - exponent[0])))


def calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: the mean distance of accuracy and confidence, by confidence in equal bins."""
    place = (confidence.double() * bins).ceil().clamp(1, bins).long() - 1
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, right.double() - confidence.double())
    return float(gap.abs().sum() / max(len(right), 1))


def below(rate: float, held_out: int) -> int:
    """How many of the held-out pictures may lie below the threshold, so that the rate holds for the next one too; where
    there is none, the rate cannot be promised."""
    return int(rate * (held_out + 1))


def threshold_for(best: Sequence[float], rate: float) -> float:
    """The value below which a picture is called unknown, so that of known ones only this share is.

    `best` says of each held-out picture of a known class how familiar it looked: how near its features are to the
    nearest class mean, where the method has any, else the score of the class that won. Both tell strangers apart far
    better than probabilities do, and hold the promise as classes come.
    """
    if not 0 < rate < 1:
        raise UserError(f"--unknown {rate:g} must be more than 0 and less than 1: the share of known pictures that may "
                        "be called unknown")
    count = below(rate, len(best))
    if not count:
        least = f"give at least {math.ceil(1000 / (len(best) + 1)) / 1000}, or " if best else ""
        needed = next(n for n in range(int(1 / rate) - 1, int(1 / rate) + 2) if below(rate, n))
        raise UserError(f"--unknown {rate:g} cannot be promised: it needs {needed:,} held-out pictures, and there were "
                        f"{len(best):,}; {least}learn more pictures a class")
    return sorted(best)[count - 1]
