"""ResNet-18 and ResNet-50 (He et al. 2016) for small and for large images."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from protocore.backbones.base import Backbone, norm_layer
from protocore.errors import UserError

STEMS = ("cifar", "imagenet")
BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
EXPANSION = {18: 1, 50: 4}  # output channels of a block over the filters of its stage


class ResNet(Backbone):
    """Four stages of residual blocks and global average pooling; `width` filters in the first stage.

    `stem` is "cifar" (3x3, stride 1) or "imagenet" (7x7, stride 2, max pooling). The last block ends in a
    ReLU, so that features are >= 0; there are 8 width of them (depth 18) or 32 width (depth 50).
    """

    def __init__(
        self,
        depth: int,
        *,
        channels: int = 3,
        stem: str = "cifar",
        width: int = 64,
        norm: str = "batch",
    ) -> None:
        if depth not in BLOCKS:
            raise UserError(f"depth: {depth} is not known; choose one of {', '.join(map(str, BLOCKS))}")
        inputs = width
        stages: list[nn.Module] = []
        for index, count in enumerate(BLOCKS[depth]):
            filters = width * 2**index
            blocks: list[nn.Module] = [_stem(stem, channels, width, norm)] if index == 0 else []
            for position in range(count):
                stride = 2 if index > 0 and position == 0 else 1
                blocks.append(Block(inputs, filters, EXPANSION[depth], stride, norm))
                inputs = filters * EXPANSION[depth]
            stages.append(nn.Sequential(*blocks))
        stages.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        super().__init__(nn.Sequential(*stages), inputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Block(nn.Module):
    """relu(residual(x) + shortcut(x)): two 3x3 convolutions, or 1x1, 3x3, 1x1 for an `expansion` above 1."""

    def __init__(self, inputs: int, filters: int, expansion: int, stride: int, norm: str) -> None:
        super().__init__()
        outputs = filters * expansion
        # (filters, kernel, stride); the bottleneck strides in its 3x3, where no input pixel is skipped
        if expansion == 1:
            plan = [(filters, 3, stride), (filters, 3, 1)]
        else:
            plan = [(filters, 1, 1), (filters, 3, stride), (outputs, 1, 1)]
        widths = [inputs, *(width for width, _, _ in plan)]
        steps: list[nn.Module] = []
        for (before, after), (_, kernel, step) in zip(pairwise(widths), plan, strict=True):
            steps += [*_conv_norm(before, after, kernel, step, norm), nn.ReLU(inplace=True)]
        self.residual = nn.Sequential(*steps[:-1])
        projects = stride != 1 or inputs != outputs
        steps = _conv_norm(inputs, outputs, 1, stride, norm) if projects else []
        self.shortcut = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu_()


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int, norm: str) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, norm_layer(norm, outputs)]


def _stem(stem: str, channels: int, width: int, norm: str) -> nn.Module:
    if stem == "cifar":
        return nn.Sequential(*_conv_norm(channels, width, 3, 1, norm), nn.ReLU(inplace=True))
    if stem == "imagenet":
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        return nn.Sequential(*_conv_norm(channels, width, 7, 2, norm), nn.ReLU(inplace=True), pool)
    raise UserError(f"stem: {stem!r} is not known; choose one of {', '.join(STEMS)}")
