"""What it is to match a distribution: one common view, freshly drawn networks, moments a class and their mismatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones.base import group_count
from protocore.ranks.split import split

Embedding = Callable[[Tensor], Tensor]  # float images (N, C, H, W) to flat maps (N, D)

LIGHT = 0.25  # largest change of brightness, of the range of a pixel
LARGEST = 64  # pixels: pictures from twice this side on are averaged down before a fresh network sees them
CHUNK = 32  # pictures embedded at a time: their maps stay in the processor's cache


@dataclass(frozen=True)
class View:
    """One transform of whole batches: every picture is flipped, shifted and lightened alike."""

    flip: bool = False
    down: int = 0
    right: int = 0
    light: float = 0.0

    def __call__(self, images: Tensor) -> Tensor:
        """Differentiable; zeros come in at the edges."""
        images = images.flip(3) if self.flip else images
        if self.down or self.right:
            images = F.pad(images, (self.right, -self.right, self.down, -self.down))
        return images + self.light


def draw_view(height: int, width: int) -> View:
    """Mirrored or not, shifted by up to an eighth of each side, lighter or darker."""
    flip, light = torch.rand(2).tolist()
    down, right = (int(torch.randint(-(side // 8), side // 8 + 1, ())) for side in (height, width))
    return View(flip < 0.5, down, right, LIGHT * (2 * light - 1))


class FreshNet:
    """Three 3x3 convolutions, each with group norm, ReLU and 2x2 average pooling, with weights drawn just now.

    Nothing about it is learned or kept: it stands for any network that may once learn from the exemplars.
    """

    def __init__(self, mean: Tensor, std: Tensor, width: int = 64) -> None:
        """`mean` and `std` (C,) normalise the pictures, and say where the network is."""
        self.mean, self.std = mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1)
        self.groups = group_count(width)
        entering = (len(mean), width, width)
        # Drawn on the processor: the same seed gives the same networks on every device.
        self.filters = [(math.sqrt(2 / (9 * n)) * torch.randn(width, n, 3, 3)).to(mean) for n in entering]

    def __call__(self, images: Tensor) -> Tensor:
        times = min(images.shape[2:]) // LARGEST
        x = (images - self.mean) / self.std
        x = F.avg_pool2d(x, times) if times > 1 else x
        for weights in self.filters:
            x = F.relu(F.group_norm(F.conv2d(x, weights, padding=1), self.groups))
            x = F.avg_pool2d(x, 2) if min(x.shape[2:]) >= 4 else x  # a map of one place would say nothing of where
        return x.flatten(1)


@dataclass(frozen=True)
class Moments:
    """Means over the pictures of each class, (C, D): of the maps, and of their squares."""

    first: Tensor
    second: Tensor


def moments(maps: Tensor, member: Tensor) -> Moments:
    """Of maps (N, D), picture n belonging to class c where `member` (C, N) is 1."""
    share = member / member.sum(1, keepdim=True)
    return Moments(share @ maps, share @ maps.square())


def membership(labels: Tensor, classes: Tensor) -> Tensor:
    """(C, N): 1 where the label is the class. A class without a picture has no mean, so that is an error."""
    member = (labels[None, :] == classes[:, None]).float()
    if not bool(member.any(1).all()):
        raise ValueError(f"no picture of class {int(classes[member.sum(1).argmin()])} to match")
    return member


@torch.no_grad()
def real_moments(embed: Embedding, images: Tensor, member: Tensor) -> Moments:
    """`moments` of pictures, embedded part by part."""
    return moments(split(lambda rows: torch.cat([embed(part) for part in rows.split(CHUNK)]), images), member)


def mismatch(made: Moments, real: Moments, second: float = 0.0) -> Tensor:
    """Squared distance of the means, in the mean over classes, relative to the mean square length of the real ones;
    `second` times the same of the second moments is added.

    Relative, so that a network whose maps happen to be large weighs no more than another.
    """
    loss = _relative(made.first, real.first)
    return loss + second * _relative(made.second, real.second) if second else loss


def _relative(made: Tensor, real: Tensor) -> Tensor:
    return (made - real).square().sum() / real.square().sum().clamp_min(1e-12)


def draw_each(labels: Tensor, count: int) -> Tensor:
    """Rows of at most `count` pictures of each class, drawn without replacement, class after class."""
    order = torch.randperm(len(labels), device="cpu").to(labels.device)
    order = order[labels[order].argsort(stable=True)]
    mine = labels[order]
    first = torch.searchsorted(mine, mine)  # where the class begins
    return order[torch.arange(len(mine), device=mine.device) - first < count]
