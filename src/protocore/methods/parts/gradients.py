"""Gradients of single samples with respect to the last layer, without a backward pass.

For logits θh the gradient of the cross entropy of a sample is (p - y) ⊗ h, with y one-hot and h = [z, 1] where there
is a bias. A set of gradients is therefore two small matrices, r = p - y (N, C) and h (N, D), and never N·C·D numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones.head import GrowingHead

EPS = 1e-6  # cos(a, b) = a·b / max(|a||b|, EPS)


def last_layer(head: GrowingHead, z: Tensor) -> tuple[Tensor, Tensor]:
    """(h, θ) with logits = h θᵀ for features z (N, d): [z, 1] and [W | b] of a linear head.

    A cosine head is linear in its effective weights, scale · w/|w|, on normalised features: it is differentiated with
    respect to those (not through the normalisation of w).
    """
    if head.scale is not None:
        unit = F.normalize(head.weight.detach().float(), dim=1, eps=EPS)
        return F.normalize(z.float(), dim=1, eps=EPS), head.scale.detach().float() * unit
    weight, h = head.weight.detach().float(), z.float()
    if head.bias is None:
        return h, weight
    return with_one(h), torch.cat([weight, head.bias.detach().float()[:, None]], 1)


def with_one(z: Tensor) -> Tensor:
    """[z, 1]: the bias as one more weight."""
    return torch.cat([z, torch.ones_like(z[:, :1])], 1)


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """p - y: the gradient of each sample's cross entropy with respect to its logits."""
    return F.softmax(logits, 1) - F.one_hot(labels, logits.shape[1]).to(logits.dtype)


def mean_gradient(r: Tensor, h: Tensor) -> Tensor:
    """The mean of the gradients, as a matrix like θ (C, D)."""
    return r.T @ h / len(r)


def along(r: Tensor, h: Tensor, direction: Tensor) -> Tensor:
    """⟨g_i, V⟩ for every sample and one V (C, D): the derivative of each sample's loss in this direction."""
    return (r * (h @ direction.T)).sum(1)


# -- the Gram matrix -----------------------------------------------------------------------------------------


def gram(r: Tensor, h: Tensor, r2: Tensor | None = None, h2: Tensor | None = None) -> Tensor:
    """g_i·g_j = ((p_i - y_i)·(p_j - y_j)) (h_i·h_j), exactly; with a second set: of one against the other."""
    return (r @ (r if r2 is None else r2).T) * (h @ (h if h2 is None else h2).T)


def gram_rows(r: Tensor, h: Tensor, block: int = 1024) -> Iterator[Tensor]:
    """The rows of the Gram matrix, `block` at a time, so that a large pool takes block · N numbers."""
    for a, b in zip(r.split(block), h.split(block), strict=True):
        yield gram(a, b, r, h)


def norms(r: Tensor, h: Tensor) -> Tensor:
    """|g_i|: the roots of the Gram matrix's diagonal."""
    return r.norm(dim=1) * h.norm(dim=1)


def cosines(dots: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Inner products to cosines, given the lengths of both sides (broadcast)."""
    return dots / (a * b).clamp(min=EPS)


# -- the Hessian ---------------------------------------------------------------------------------------------


def hessian_vector(p: Tensor, h: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Hv of the weighted loss Σ w_i l_i, in closed form: Σ w_i (diag(p_i) - p_i p_iᵀ) V h_i h_iᵀ, for V (C, D)."""
    u = h @ v.T
    s = p * (u - (p * u).sum(1, keepdim=True))
    return (w[:, None] * s).T @ h


def curvature(h: Tensor, w: Tensor) -> Tensor:
    """A bound of H's largest eigenvalue: that of diag(p) - ppᵀ is at most 1/2, that of Σ w hhᵀ at most its trace."""
    return 0.5 * (w * h.square().sum(1)).sum()
