"""The small network of the CPU protocol: three 3x3 convolutions, one linear layer."""

from __future__ import annotations

from torch import nn

from protocore.backbones.base import Backbone, norm_layer
from protocore.pictures import ImageShape

MAX_SIDE = 8  # of the map before pooling: 32-pixel images need no further convolution, 64-pixel ones need one


class ConvNet(Backbone):
    """Filters `width` (stride 2), 2 width (stride 2), about 8/3 width: 48, 96, 128 by default.

    Images too large for a map of 8x8 get further stride-2 convolutions as wide as the third.
    """

    def __init__(
        self, image_shape: ImageShape, *, width: int = 48, features: int = 256, norm: str = "group"
    ) -> None:
        channels, height, breadth = image_shape
        last = 8 * round(width / 3)
        plan = [(width, 2), (2 * width, 2), (last, 1)]
        side = (_half(_half(height)), _half(_half(breadth)))
        while max(side) > MAX_SIDE:
            plan.append((last, 2))
            side = (_half(side[0]), _half(side[1]))

        stages: list[nn.Module] = []
        for filters, stride in plan:
            conv = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
            stages.append(nn.Sequential(conv, norm_layer(norm, filters), nn.ReLU(inplace=True)))
            channels = filters

        pool: list[nn.Module] = []
        if max(side) > 1:
            pool.append(nn.AvgPool2d(2, ceil_mode=True))
            side = (_half(side[0]), _half(side[1]))
        linear = nn.Linear(last * side[0] * side[1], features)
        stages.append(nn.Sequential(*pool, nn.Flatten(), linear, nn.ReLU(inplace=True)))
        super().__init__(nn.Sequential(*stages), features)


def _half(side: int) -> int:
    """The side that a padded 3x3 convolution of stride 2 leaves, and a 2x2 pooling with `ceil_mode`."""
    return (side + 1) // 2
