"""Twelve fixed perturbations of whole batches, for votes on how fragile a prediction is (Rainbow Memory's list).

Sizes are shares of the image, so that they mean the same on any picture: on 32 pixels the boxes are 8 to 32 wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.data.augment import to_float


def cutout(x: Tensor, share: float) -> Tensor:
    """A black box over this share of both sides, its centre anywhere in the image, another place in each image."""
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    for axis, length in ((2, x.shape[2]), (3, x.shape[3])):
        side = round(share * length)
        start = torch.randint(length, (len(x), 1)) - side // 2
        at = torch.arange(length)
        shape = (len(x), 1, length, 1) if axis == 2 else (len(x), 1, 1, length)
        inside = inside & ((at >= start) & (at < start + side)).view(shape).to(x.device)
    return x.masked_fill(inside, 0.0)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Turned counter-clockwise about the centre; black comes in at the corners."""
    height, width = x.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    back = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]])
    grid = F.affine_grid(back.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid.to(x), align_corners=False)


def invert(x: Tensor) -> Tensor:
    return 1 - x


def solarize(x: Tensor, threshold: int) -> Tensor:
    """Values from `threshold` (of 255) on are inverted."""
    return torch.where(x * 255 < threshold - 0.5, x, 1 - x)


PERTURBATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: cutout(x, 1 / 4), lambda x: cutout(x, 1 / 2), lambda x: cutout(x, 3 / 4), lambda x: cutout(x, 1),
    lambda x: x.flip(3), lambda x: x.flip(2), lambda x: rotate(x, 45), lambda x: rotate(x, 90),
    invert, lambda x: solarize(x, 128), lambda x: solarize(x, 64), lambda x: solarize(x, 32),
)


def perturbed(images: Tensor) -> Iterator[Tensor]:
    """Twelve copies of (N, C, H, W), uint8 or float in [0, 1], one after the other; floats of the same shape."""
    x = to_float(images)
    for perturbation in PERTURBATIONS:
        yield perturbation(x)


def cutmix(x: Tensor, partner: Tensor, share: float, row: int, column: int) -> tuple[Tensor, float]:
    """Each image with a box of its partner's, centred at (row, column), and the share λ that is left of its own.

    The box has sides of √(1 - share) of the image's and is cut off at the border; λ counts the pixels.
    """
    height, width = x.shape[2:]
    tall, wide = int(height * (1 - share) ** 0.5), int(width * (1 - share) ** 0.5)
    top, left = row - tall // 2, column - wide // 2
    rows = slice(max(top, 0), min(top + tall, height))
    columns = slice(max(left, 0), min(left + wide, width))
    mixed = x.clone()
    mixed[:, :, rows, columns] = x[partner, :, rows, columns]
    return mixed, 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
