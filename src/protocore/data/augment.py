"""Augmentation of whole batches: uint8 (or float) in, float in [0, 1] out, no loop over samples.

Float images pass with gradients, so that exemplars can be condensed under the same transforms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.errors import UserError

Transform = Callable[[Tensor], Tensor]


def to_float(images: Tensor) -> Tensor:
    """uint8 (N, C, H, W) to float in [0, 1]; float images stay as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def shift(images: Tensor, pixels: int) -> Tensor:
    """Each image moved by up to `pixels` in both directions, zeros coming in (crop after zero padding)."""
    n, _, height, width = images.shape
    padded = F.pad(images, (pixels, pixels, pixels, pixels))
    # One window view of all offsets, then one gather: no copy of the (2p+1)^2 candidates is made.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    rows = torch.randint(0, 2 * pixels + 1, (n,))
    columns = torch.randint(0, 2 * pixels + 1, (n,))
    return windows[torch.arange(n), :, rows, columns]


def flip(images: Tensor) -> Tensor:
    """Each image mirrored left-right with probability one half."""
    mirrored = torch.rand(len(images)) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1).to(images.device), images.flip(3), images)


def resized_crop(images: Tensor, scale: tuple[float, float] = (0.08, 1.0)) -> Tensor:
    """Random resized crop back to the same size: area within `scale`, aspect ratio within 3/4..4/3."""
    n = len(images)
    area = torch.empty(n).uniform_(*scale)
    ratio = torch.empty(n).uniform_(-0.28768, 0.28768).exp()  # log(4/3)
    width = (area * ratio).sqrt().clamp(max=1)
    height = (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = width, height
    theta[:, 0, 2] = (1 - width) * torch.empty(n).uniform_(-1, 1)
    theta[:, 1, 2] = (1 - height) * torch.empty(n).uniform_(-1, 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False).to(images)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def augmentation(spec: str) -> Transform:
    """The transform that a comma list such as `crop4,flip` names."""
    early: list[Transform] = []  # on uint8: moving bytes is four times cheaper than moving floats
    late: list[Transform] = []
    for word in [w.strip() for w in spec.split(",") if w.strip() not in ("", "none")]:
        if match := re.fullmatch(r"crop([1-9][0-9]?)", word):
            early.append(lambda x, p=int(match[1]): shift(x, p))
        elif word == "flip":
            early.append(flip)
        elif word == "rrc":
            late.append(resized_crop)
        else:
            raise UserError(f"--augment {spec!r}: {word!r} is not one of cropN (as crop4), flip, rrc, none")

    def apply(images: Tensor) -> Tensor:
        for transform in early:
            images = transform(images)
        views = to_float(images)
        for transform in late:
            views = transform(views)
        return views

    return apply
