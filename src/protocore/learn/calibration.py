"""Probabilities that mean what they say: a temperature, how far off they are, and when a picture is of no class.

Pure functions of scores. What is known of held-out pictures is kept as two curves over temperatures, which add up:
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


def curves(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """At each temperature: sums over the pictures of -log p(true class), and of its mean over all classes."""
    true, every = [], []
    for temperature in TEMPERATURES:
        log_p = torch.log_softmax(scores.double() / temperature, 1)
        true.append(-log_p.gather(1, labels[:, None]).sum())
        every.append(-log_p.mean(1).sum())
    return torch.stack(true), torch.stack(every)


def temperature_of(true: Tensor, every: Tensor, pictures: float) -> float:
    """The temperature under which such pictures are most likely.

    Where all of them were right, no temperature would be low enough: so of n pictures the (n + 2)nd part counts as of
    any class (Laplace's rule of succession).
    """
    share = 1 / (pictures + 2)
    loss = (1 - share) * true + share * every
    at = int(loss.argmin())
    exponent = TEMPERATURES.log10()
    if not 0 < at < len(loss) - 1:
        return float(TEMPERATURES[at])
    low, middle, high = loss[at - 1 : at + 2].tolist()
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
    """The score below which a picture is called unknown, so that of known ones only this share is.

    `best` are the scores of the classes that won, of held-out pictures of known classes. Scores tell strangers apart
    a little better than probabilities do, and hold the promise as classes come: photographs, three methods.
    """
    if not 0 < rate < 1:
        raise UserError(f"--unknown {rate:g} must be more than 0 and less than 1: the share of known pictures that may "
                        "be called unknown")
    count = below(rate, len(best))
    if not count:
        least = f"; give at least {math.ceil(1000 / (len(best) + 1)) / 1000}" if best else ""
        raise UserError(f"--unknown {rate:g} cannot be promised: it needs {int(1 / rate):,} held-out pictures, and "
                        f"there were {len(best):,}{least}, or learn more pictures a class")
    return sorted(best)[count - 1]
