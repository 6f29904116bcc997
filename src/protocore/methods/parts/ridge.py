"""A linear map from old to new features in closed form: where the network has moved what it sees (LDC)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def with_one(a: Tensor, bias: bool) -> Tensor:
    """Rows with a 1 at the end, if the map has a bias."""
    return torch.cat([a, a.new_ones(len(a), 1)], 1) if bias else a


def moments(old: Tensor, new: Tensor, bias: bool = False) -> tuple[Tensor, Tensor]:
    """AᵀA and BᵀA of old features A and new ones B: all that a least-squares map needs to know, in float64."""
    a, b = with_one(old.cpu().double(), bias), new.cpu().double()
    return a.T @ a, b.T @ a


def ridge_map(gram: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """The map P (d, d), or (d, d+1) with a bias, that minimises ‖P A - B‖² + λ‖P - I‖²; the bias is free.

    λ is `ridge` times the mean of the old features' squares. Where the data say nothing, P is the identity.
    """
    d = len(cross)
    penalty = torch.zeros_like(gram)
    penalty.diagonal()[:d] = ridge * gram.diagonal()[:d].mean()
    # P = I + (B - A)ᵀA (AᵀA + λ)⁻¹
    inverse = torch.linalg.pinv(gram + penalty, hermitian=True)
    return torch.eye(*cross.shape, dtype=gram.dtype) + (cross - gram[:d]) @ inverse


def apply_map(weights: Tensor, prototypes: Tensor) -> Tensor:
    """P p for each prototype (C, d)."""
    bias = weights.shape[1] > prototypes.shape[1]
    return (with_one(prototypes.cpu().double(), bias) @ weights.T).float()


def moved(prototypes: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], ridge: float = 1e-3) -> Tensor:
    """Where prototypes (C, d) are now, by the map from old to new features; each set of such pairs weighs the same."""
    found = [[m / len(old) for m in moments(old, new)] for old, new in pairs if len(old)]
    gram, cross = (torch.stack(parts).mean(0) for parts in zip(*found, strict=True))
    return apply_map(ridge_map(gram, cross, ridge), prototypes)
