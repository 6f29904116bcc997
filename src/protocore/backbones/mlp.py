"""The network of S-MNIST: two hidden layers of 100 ReLU units."""

from __future__ import annotations

import math

from torch import nn

from protocore.backbones.base import Backbone
from protocore.pictures import ImageShape


class MLP(Backbone):
    """Pixels, `width` units, `width` units; the features are the second hidden layer."""

    xavier_head = True

    def __init__(self, image_shape: ImageShape, *, width: int = 100) -> None:
        first = nn.Sequential(nn.Flatten(), _xavier(math.prod(image_shape), width), nn.ReLU(inplace=True))
        second = nn.Sequential(_xavier(width, width), nn.ReLU(inplace=True))
        super().__init__(nn.Sequential(first, second), width)


def _xavier(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
