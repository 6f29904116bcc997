"""Classes as Gaussians of transformed features: covariances, shrinkage, and a Mahalanobis distance that predicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.backbones import Network
from protocore.errors import UserError
from protocore.methods.parts.means import OfFeatures, by_class

LEAST = 1e-6  # what a dead unit's logarithm is taken of


def tukey(z: Tensor, beta: float) -> Tensor:
    """Tukey's ladder of powers: φ^β, the logarithm for β = 0; φ itself for β = 1."""
    if beta == 1:
        return z
    if not torch.compiler.is_compiling() and bool((z < 0).any()):  # an exported graph asks nothing
        raise UserError(f"--tukey {beta}: this backbone has features below 0, which have no such power; give --tukey 1")
    return z.clamp(min=LEAST).log() if beta == 0 else z.pow(beta)


def covariance(z: Tensor) -> Tensor:
    """The unbiased covariance of rows (n, d); of a single row, which has none, zeros."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(len(z) - 1, 1)


def shrunk(cov: Tensor, gamma1: float, gamma2: float, *, nonzero: bool = False) -> Tensor:
    """Σ + γ1·V1·I + γ2·V2·(11ᵀ - I), V1 and V2 the means of the entries on the diagonal and off it.

    `nonzero`: V2 is the mean of the entries that are not exactly 0 (0 if there are none).
    """
    diagonal = cov.diagonal()
    entries = int((cov != 0).sum() - (diagonal != 0).sum()) if nonzero else cov.numel() - len(cov)
    v1, v2 = diagonal.mean(), (cov.sum() - diagonal.sum()) / max(entries, 1)
    added = (gamma2 * v2).expand_as(cov).clone()
    return cov + added.fill_diagonal_(float(gamma1 * v1))


def correlation(cov: Tensor) -> Tensor:
    """Σ_ij / (σ_i σ_j): a unit diagonal. A dimension that does not vary correlates with none."""
    sigma = cov.diagonal().clamp(min=0).sqrt()
    sigma = torch.where(sigma > 0, sigma, torch.ones_like(sigma))
    return (cov / sigma[:, None] / sigma).fill_diagonal_(1)


def distances(x: Tensor, means: Tensor, inverses: Sequence[Tensor]) -> Tensor:
    """(x - μ_y)ᵀ Σ̂_y⁻¹ (x - μ_y) of rows (N, d) and each class, (N, C)."""
    columns = []
    for mean, inverse in zip(means, inverses, strict=True):
        offset = x - mean
        columns.append(((offset @ inverse) * offset).sum(1))
    return torch.stack(columns, 1)


def pooled(one: Tensor, n: int, other: Tensor, m: int) -> Tensor:
    """The covariance within two parts of a class, of n and m rows."""
    return ((n - 1) * one + (m - 1) * other) / max(n + m - 2, 1)


class Mahalanobis(OfFeatures):
    """Scores of images: minus the distance of their transformed features, at length 1, to each class."""

    means: Tensor

    def __init__(self, net: Network, means: Tensor, inverses: Sequence[Tensor], classes: Sequence[int], width: int,
                 beta: float) -> None:
        super().__init__(net)
        self.classes, self.width, self.beta = list(classes), width, beta
        self.register_buffer("means", F.normalize(tukey(means, beta), dim=1))  # mean, power, length 1
        self.inverses = nn.ParameterList([nn.Parameter(inverse, requires_grad=False) for inverse in inverses])

    def logits(self, z: Tensor) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            unit = F.normalize(tukey(z.float(), self.beta), dim=1)
            return by_class(-distances(unit, self.means, list(self.inverses)), self.classes, self.width)
