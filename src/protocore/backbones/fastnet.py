"""A small network that learns fast on a processor, after the speed records on CIFAR-10 (Jordan 2024, airbench94)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.backbones.base import Backbone, norm_layer
from protocore.pictures import ImageShape

STEM = 24  # filters of the stem at most: whitened patches of 2x2 in three colours, and their negatives
LAST = 4  # pixels: the largest side of the map that is pooled to the features
EASED = 5e-4  # added to the variances: a direction without any must not be blown up
SMALLEST = 4  # pixels: a side below this is not halved any more


class FastNet(Backbone):
    """A stem of whitened patches, blocks of [3x3, pooling, norm, GELU, 3x3, norm, GELU], the maximum over the map.

    `width` filters in the first block, twice and four times as many in the next two: 32, 64, 128. The stem halves
    pictures from 48 pixels on and quarters those from 96 on; what is still larger than 4x4 after three blocks goes
    through more of them, as wide as the third. The filters of the stem are set from the first pictures and stay.
    """

    def __init__(self, image_shape: ImageShape, *, width: int = 32, norm: str = "batch") -> None:
        channels, height, breadth = image_shape
        stride = 1 if max(height, breadth) < 48 else 2 if max(height, breadth) < 96 else 4
        kernel = 2 * stride
        side = [(length - kernel) // stride + 1 for length in (height, breadth)]
        filters = [min(STEM, 2 * channels * kernel * kernel), width, 2 * width, 4 * width]
        stages: list[nn.Module] = [nn.Sequential(nn.Conv2d(channels, filters[0], kernel, stride), nn.GELU())]
        while len(stages) < 4 or max(side) > LAST:
            if len(stages) >= len(filters):
                filters.append(filters[-1])
            pool = tuple(2 if length >= SMALLEST else 1 for length in side)
            side = [length // by for length, by in zip(side, pool, strict=True)]
            before, after = filters[len(stages) - 1 : len(stages) + 1]
            stages.append(_block(before, after, norm, pool))
        stages.append(nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten()))
        super().__init__(nn.Sequential(*stages), filters[-1])
        self.stem.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module is not self.stem:
                nn.init.dirac_(module.weight.data[: module.in_channels])  # the rest as torch draws it

    @property
    def stem(self) -> nn.Conv2d:
        first = next(self.stages[0].children())
        assert isinstance(first, nn.Conv2d)
        return first

    def prepare(self, pictures: Callable[[], Tensor]) -> None:
        with torch.no_grad():
            self.stem.weight.copy_(whitening(pictures(), self.stem))

    def follow(self, other: Backbone) -> None:
        assert isinstance(other, FastNet)
        with torch.no_grad():
            self.stem.weight.copy_(other.stem.weight)


def whitening(pictures: Tensor, stem: nn.Conv2d) -> Tensor:
    """Filters whose outputs on patches of these pictures are uncorrelated and of variance 1, each with its negative.

    Where there are fewer filters than a patch has values, the directions of the largest variance.
    """
    kernel, stride = stem.kernel_size[0], stem.stride[0]
    patches = F.unfold(pictures.float(), kernel, stride=stride).mT.flatten(0, 1).double().cpu()
    values, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    top = stem.out_channels // 2
    filters = (directions / (values.clamp(min=0) + EASED).sqrt())[:, -top:].T.flip(0)
    # eigh leaves the sign open, and processors differ in it: the largest value is positive
    filters = filters * filters.gather(1, filters.abs().argmax(1, keepdim=True)).sign()
    return torch.cat([filters, -filters]).view(stem.weight.shape).to(stem.weight)


def _block(inputs: int, filters: int, norm: str, pool: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.MaxPool2d(pool),
                         norm_layer(norm, filters), nn.GELU(),
                         nn.Conv2d(filters, filters, 3, padding=1, bias=False), norm_layer(norm, filters), nn.GELU())
