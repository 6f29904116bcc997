"""Euclidean projections of weight vectors, exact: one sort each, no search for a threshold."""

from __future__ import annotations

import torch
from torch import Tensor


def project_simplex(v: Tensor) -> Tensor:
    """The nearest point w with w >= 0 and sum w = 1, for a vector (n,).

    With u the entries in descending order, r is the last place where u_r > (u_1 + ... + u_r - 1) / r, that
    quotient is the threshold θ, and w = max(v - θ, 0).
    """
    x = _doubles(v)
    u = x.sort(descending=True).values
    theta = (u.cumsum(0) - 1) / torch.arange(1, len(u) + 1)
    r = int((u > theta).nonzero()[-1])
    return (x - theta[r]).clamp(min=0).to(v)


def project_capped_simplex(s: Tensor, total: float) -> Tensor:
    """The nearest point with 0 <= s <= 1 and sum s <= total, for a vector (n,).

    It is clip(s - v, 0, 1) with v = 0 where that fits, else with the v > 0 that makes the sum `total`. As a function
    of v the sum falls along straight lines with corners at s_i - 1 (where entry i leaves 1) and at s_i (where it
    reaches 0): sorted corners give its value at each of them, and v lies on one line.
    """
    x = _doubles(s)
    if len(x) and float(x.clamp(0, 1).sum()) > total:
        corners, order = torch.cat([x - 1, x]).sort()
        slope = torch.where(order < len(x), -1.0, 1.0).double().cumsum(0)  # of the line that begins at a corner
        fall = (slope[:-1] * corners.diff()).cumsum(0)
        value = len(x) + torch.cat([fall.new_zeros(1), fall])  # the sum at each corner, from n down to 0
        k = int((value >= max(total, 0.0)).nonzero()[-1])
        v = corners[k] + (value[k] - total) / -slope[k] if slope[k] < 0 else corners[k]
        x = x - v
    return x.clamp(0, 1).to(s)


def _doubles(v: Tensor) -> Tensor:
    """On the processor: these vectors are short, and not every device has double precision."""
    return v.detach().cpu().double()
