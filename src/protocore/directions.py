"""Random directions that cost no bytes: drawn anew from a seed, the same on every machine up to rounding."""

from __future__ import annotations

import torch
from torch import Tensor


def directions(count: int, dim: int, seed: int) -> Tensor:
    """Standard normal vectors (count, dim), float64; the first of them are the same however many are drawn."""
    generator = torch.Generator().manual_seed(seed)
    return torch.special.ndtri(torch.rand(count, dim, dtype=torch.float64, generator=generator).clamp(min=2.0**-53))


def orthonormal(vectors: Tensor) -> Tensor:
    """Rows (n, d), n <= d, made orthonormal one after the other: the first k depend on the first k alone."""
    q, r = torch.linalg.qr(vectors.T)
    return (q * r.diagonal().sign()).T
