"""Streaming linear discriminant analysis on features of a network that stays as it is (Hayes and Kanan 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protocore.config import option
from protocore.methods.base import Addition
from protocore.methods.parts.frozen import Sharing, SharingOptions
from protocore.methods.parts.moments import discriminant, oracle_share, shrunk_to_identity


@dataclass(frozen=True)
class SLDAOptions(SharingOptions):
    """What is kept, and how the covariance is held back."""

    shrinkage: float | None = option(None, "share ε of the identity in the covariance (default: what the number of "
                                     "samples asks for, by the oracle approximating share)", above=0, most=1)


class SLDA(Sharing):
    """Running means and one running covariance; a linear classifier of Gaussians."""

    name = "slda"
    paper = "Hayes and Kanan 2020, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis"
    checks = "sample by sample against a slow reference in numpy, in any order; scikit-learn's shrinkage"
    Options = SLDAOptions

    options: SLDAOptions

    def classifier(self) -> tuple[Tensor, Tensor]:
        moments, said = self.moments(), self.options.shrinkage
        cov = self.others[0].get(0)
        free = float(moments.counts.sum()) - len(moments.counts)  # of the samples, a mean a class is spent
        share = oracle_share(cov, free) if said is None else said
        return discriminant(moments.means, shrunk_to_identity(cov, share))

    def addition(self) -> Addition | None:
        return self.discriminant(shrinkage=self.options.shrinkage, covariance_dtype=self.options.covariance_dtype)
