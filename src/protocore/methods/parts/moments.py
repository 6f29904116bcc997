"""Classes as means with one covariance in common: counts, means and scatter that add up exactly, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 4096  # features that are widened to float64 at once


@dataclass(frozen=True)
class Moments:
    """Of some images: the classes (ascending), how many images of each, means (C, d), and Σ (z - μ_y)(z - μ_y)ᵀ."""

    classes: Tensor
    counts: Tensor
    means: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, z: Tensor, labels: Tensor) -> Moments:
        """Measured on features (n, d), in float64."""
        classes, at = labels.unique(return_inverse=True)
        counts = at.bincount(minlength=len(classes)).double()
        dim = z.shape[1]
        sums = torch.zeros(len(classes), dim, dtype=torch.float64)
        for part, where in zip(z.split(ROWS), at.split(ROWS), strict=True):
            sums.index_add_(0, where, part.double())
        means, scatter = sums / counts[:, None], torch.zeros(dim, dim, dtype=torch.float64)
        for part, where in zip(z.split(ROWS), at.split(ROWS), strict=True):
            centred = part.double() - means[where]
            scatter.addmm_(centred.T, centred)
        return cls(classes, counts, means, scatter)

    def __add__(self, other: Moments) -> Moments:
        """Those of all images of both: a class in both has moved mean and n·m/(n + m)·(μ - ν)(μ - ν)ᵀ more scatter."""
        classes = torch.cat([self.classes, other.classes]).unique()
        dim = self.means.shape[1]
        counts, means = torch.zeros(2, len(classes), dtype=torch.float64), torch.zeros(2, len(classes), dim).double()
        for k, part in enumerate((self, other)):
            at = torch.searchsorted(classes, part.classes)
            counts[k, at], means[k, at] = part.counts, part.means
        total = counts.sum(0)
        apart = (means[0] - means[1]) * (counts.prod(0) / total).sqrt()[:, None]  # 0 where one of them has none
        return Moments(classes, total, (counts[..., None] * means).sum(0) / total[:, None],
                       self.scatter + other.scatter + apart.T @ apart)

    def renumbered(self, numbers: Mapping[int, int]) -> Moments:
        """The same with other numbers of the classes."""
        classes, order = torch.tensor([numbers[c] for c in self.classes.tolist()]).sort()
        return Moments(classes, self.counts[order], self.means[order], self.scatter)

    def gram(self) -> Tensor:
        """Σ z zᵀ over all images: the scatter, and each mean as often as its class has images."""
        return self.scatter + (self.means.T * self.counts) @ self.means


def oracle_share(cov: Tensor, samples: float) -> float:
    """How much of the identity an estimated covariance (d, d) asks for: the oracle approximating share, in [0, 1].

    Chen et al. 2010, eq. 23, as Hayes and Kanan use it: the fewer samples and the rounder the covariance, the more.
    """
    dim, round_ = len(cov), float(cov.diagonal().mean()) ** 2
    whole = float(cov.square().mean())
    below = (samples + 1) * (whole - round_ / dim)
    return 1.0 if below <= 0 else min((whole + round_) / below, 1.0)


def shrunk_to_identity(cov: Tensor, share: float) -> Tensor:
    """(1 - ε)Σ + ε·v·I, v the mean variance; the identity where nothing varies at all."""
    variance = cov.diagonal().mean()
    if variance <= 0:
        return torch.eye(len(cov), dtype=cov.dtype)
    return (1 - share) * cov + share * variance * torch.eye(len(cov), dtype=cov.dtype)


def nearest_in_angle(means: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (C, d) and biases (C,): cos(z - μ, μ_c - μ) times the length of z - μ, μ the mean of the means (C, d).

    Seen from their centre, classes lie in all directions; from 0 all of them lie in about the same one.
    """
    centre = means.mean(0)
    weight = F.normalize(means - centre, dim=1)
    return weight, -weight @ centre


def discriminant(means: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (C, d) and biases (C,) of the linear classifier of Gaussians with one covariance.

    log p(z | c) = (z - (μ_c + μ)/2)ᵀ Σ⁻¹ (μ_c - μ), up to what all classes share, μ the mean of the means: that keeps
    the numbers small.
    """
    centre = means.mean(0)
    weight = torch.linalg.solve(cov, (means - centre).T).T
    return weight, -0.5 * ((means + centre) * weight).sum(1)


def ridge(moments: Moments, share: float) -> Tensor:
    """Weights (C, d) of the least squares from features to one-hot labels, the penalty a share of the mean square."""
    gram, sums = moments.gram(), (moments.means * moments.counts[:, None]).T
    gram.diagonal().add_(share * gram.diagonal().mean())
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed):  # half precision has left it a little indefinite, and the penalty is smaller than that
        return torch.linalg.solve(gram, sums).T
    return torch.cholesky_solve(sums, factor).T
