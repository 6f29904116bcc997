"""Batch normalisation over the rows of all processes: as one process normalises the whole batch."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protocore.ranks.group import world
from protocore.ranks.split import every, inside

M = TypeVar("M", bound=nn.Module)


class Synced(_BatchNorm):
    """A batch normalisation that asks the other processes where a batch is split."""

    def forward(self, input: Tensor) -> Tensor:
        if not inside() or not (self.training or self.running_mean is None):
            return super().forward(input)
        values, shape = input.float(), (1, -1, *[1] * (input.ndim - 2))
        mean, variance, count = whole_statistics(values)
        if self.training and self.running_mean is not None and self.running_var is not None:
            seen = self.num_batches_tracked
            if seen is not None:
                seen.add_(1)
            factor = self.momentum if self.momentum is not None else 0.0 if seen is None else 1 / float(seen)
            with torch.no_grad():
                self.running_mean.lerp_(mean, factor)
                self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), factor)
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return torch.addcmul(shift.view(shape), values, scale.view(shape)).to(input.dtype)


def whole_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of each channel over the rows of all processes, and over how many values.

    Of parts with n_r values: the mean is Σ n_r μ_r / n, the variance Σ n_r (σ_r² + (μ_r - μ)²) / n, which loses no
    digits as E x² - μ² would.
    """
    variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
    count = mean.new_tensor([x.numel() / x.shape[1]])
    counts, means, variances = every(torch.cat([count, mean, variance])).split([1, len(mean), len(mean)], dim=1)
    share = counts / counts.sum()
    middle = (share * means).sum(0)
    return middle, (share * (variances + (means - middle).square())).sum(0), counts.sum()


_SYNCED: dict[type[nn.Module], Any] = {kind: type(f"Synced{kind.__name__}", (Synced, kind), {})
                                       for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)}


def synced(module: M) -> M:
    """The module, whose batch normalisations look at the whole batch where there are several processes."""
    for part in module.modules() if world() > 1 else ():
        if type(part) in _SYNCED:
            part.__class__ = _SYNCED[type(part)]
    return module
