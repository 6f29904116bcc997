"""RanPAC: random units on a network that stays as it is, and ridge regression (McDonnell et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import option
from protocore.directions import directions
from protocore.methods.base import Tools
from protocore.methods.parts.frozen import Sharing, SharingOptions
from protocore.methods.parts.moments import Moments, ridge
from protocore.methods.parts.projection import Projection
from protocore.methods.parts.selection import rank_in_class

SHARES = [10.0 ** (power / 2) for power in range(-6, 3)]  # penalties that are tried, over the mean square of a unit
HELD_OUT = 5  # every so many pictures of a class one is held out to choose among them


@dataclass(frozen=True)
class RanPACOptions(SharingOptions):
    """Random units, and what is kept of them."""

    ridge: float | None = option(None, "penalty of the regression over the mean square of a unit (default: the one "
                                 "with the least error on every fifth picture, held out of the tasks so far)", above=0)


class RanPAC(Sharing):
    """Ridge regression from random rectified units of the features to the classes."""

    name = "ranpac"
    paper = "McDonnell et al. 2023, RanPAC: Random Projections and Pre-trained Models for Continual Learning"
    checks = "closed-form ridge on all pictures at once, whatever the order; digits end to end"
    Options = RanPACOptions
    presets: ClassVar = {"paper": {"project": "full", "prototype_dtype": "float32", "covariance_dtype": "float32"}}

    options: RanPACOptions

    def __init__(self, tools: Tools, options: RanPACOptions) -> None:
        super().__init__(tools, options)
        self.errors = torch.zeros(len(SHARES), dtype=torch.float64)  # squared, of held-out pictures so far
        if options.ridge is None:
            self.keep("errors", "statistics/errors", mixed="how well each penalty did on pictures of all classes")

    def widest(self) -> int:
        return 10_000  # the paper's

    def usual(self) -> int:
        return min(2_000, 8 * self.net.dim)

    def project(self, numbers: int) -> Projection:
        drawn = directions(numbers, self.net.dim, self.tools.settings.seed)
        return Projection(self.options.tukey, drawn, rectified=True)

    def count(self, z: Tensor, labels: Tensor) -> None:
        held = rank_in_class(labels) % HELD_OUT == HELD_OUT - 1
        known = self.moments() + Moments.of(z[~held], labels[~held])
        if bool(held.any()):
            if self.options.ridge is None:
                self.errors = self.errors + self.tried(known, z[held].double(), labels[held])
            known = known + Moments.of(z[held], labels[held])
        self.store(known, labels.unique())

    def add(self, other: Any, numbers: Mapping[int, int]) -> None:
        super().add(other, numbers)
        self.errors = self.errors + other.errors

    def tried(self, known: Moments, z: Tensor, labels: Tensor) -> Tensor:
        """The squared error of each penalty on pictures that it was not fitted to."""
        wanted = F.one_hot(torch.searchsorted(known.classes, labels), len(known.classes))
        errors = []
        for done, share in enumerate(SHARES):
            errors.append((z @ ridge(known, share).T - wanted).square().sum())
            self.tools.progress("choosing the penalty", done + 1, len(SHARES))
        return torch.stack(errors)

    def classifier(self) -> tuple[Tensor, Tensor]:
        share = self.options.ridge or SHARES[int(self.errors.argmin())]
        weight = ridge(self.moments(), share)
        return weight, torch.zeros(len(weight), dtype=torch.float64)
