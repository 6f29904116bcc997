"""EfficientNet-Lite 0, 1 and 2 (Tan and Le 2019, in the form without squeeze-and-excitation that Google published)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from protocore.backbones.base import Backbone
from protocore.errors import DataError, UserError, shown

COARSEST = 32  # pixels of the input for one of the last map: sides are multiples of it, so that padding is known
# Repeats, kernel, stride, expansion and filters of each stage of Lite0.
STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
          (4, 5, 2, 6, 192), (1, 3, 1, 6, 320))
FACTORS = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}  # of filters, of repeats; the stem and the top do not grow
STEM, TOP = 32, 1280
_THEIRS = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")  # of a block


class EfficientNetLite(Backbone):
    """A stem, seven stages of inverted residual blocks, a 1x1 convolution to 1,280 features and their mean."""

    channels = 3
    mean, std = (127 / 255,) * 3, (128 / 255,) * 3

    def __init__(self, variant: int) -> None:
        wider, deeper = FACTORS[variant]
        inputs = STEM
        stages: list[nn.Module] = [nn.Sequential(*_layer(3, STEM, 3, 2))]
        for number, (repeats, kernel, stride, expansion, filters) in enumerate(STAGES):
            if number not in (0, len(STAGES) - 1):
                repeats = math.ceil(deeper * repeats)
            outputs = _rounded(filters * wider)
            blocks = []
            for position in range(repeats):
                blocks.append(Block(inputs, outputs, kernel, 1 if position else stride, expansion))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        stages.append(nn.Sequential(*_layer(inputs, TOP, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        super().__init__(nn.Sequential(*stages), TOP)
        self.turned = False
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip((2, 3)) if self.turned else x)

    def turn(self) -> None:
        """Let it see pictures turned by half, with filters turned likewise: the mean over places is the same.

        The row of padding more that strides ask for now lies before the map, as convolutions by themselves have it, so
        that no map is copied to be padded.
        """
        self.turned = not self.turned
        for chain in [part for part in self.modules() if isinstance(part, nn.Sequential)]:
            for name, part in chain.named_children():
                if isinstance(part, nn.ZeroPad2d):
                    setattr(chain, name, nn.Identity())
                elif isinstance(part, nn.Conv2d):
                    part.weight.data = part.weight.data.flip((2, 3))
                    part.padding = tuple(side // 2 for side in part.kernel_size)

    def take(self, published: Mapping[str, Tensor], name: object) -> None:
        """The weights as they were published, every one under its name; the classifier's are left out."""
        mine = {f"{ours}.{leaf}": f"{theirs}.{leaf}" for ours, theirs in zip(self._parts(), self._theirs(), strict=True)
                for leaf in self.get_submodule(ours).state_dict()}
        wanted = {*mine.values(), "_fc.weight", "_fc.bias"}
        if odd := sorted(wanted ^ published.keys()):
            raise DataError(f"{name}: {shown(odd[0])} is {'missing' if odd[0] in wanted else 'not known'}: not the "
                            "weights of this network")
        try:
            self.load_state_dict({ours: published[theirs] for ours, theirs in mine.items()})
        except RuntimeError as error:
            raise DataError(f"{name}: not the weights of this network ({shown(str(error), 200)})") from None

    def _parts(self) -> Iterator[str]:
        return (name for name, part in self.named_modules() if isinstance(part, nn.Conv2d | nn.BatchNorm2d))

    def _theirs(self) -> Iterator[str]:
        yield from ("_conv_stem", "_bn0")
        for number, block in enumerate(part for part in self.modules() if isinstance(part, Block)):
            yield from (f"_blocks.{number}.{name}" for name in _THEIRS[0 if block.expands else 2 :])
        yield from ("_conv_head", "_bn1")


class Block(nn.Module):
    """1x1 to more channels, a convolution of each channel by itself, 1x1 to fewer; added to what came in if it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        within = inputs * expansion
        self.expands = expansion != 1
        self.skips = stride == 1 and inputs == outputs
        self.steps = nn.Sequential(*(_layer(inputs, within, 1, 1) if self.expands else ()),
                                   *_layer(within, within, kernel, stride, groups=within),
                                   *_layer(within, outputs, 1, 1)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(x) + x if self.skips else self.steps(x)


def checked_size(size: int) -> int:
    """The side of pictures, if such a network takes it."""
    if size % COARSEST:
        below = max(size // COARSEST, 1) * COARSEST
        raise UserError(f"--image-size {size}: EfficientNet-Lite takes multiples of {COARSEST}; give {below} or "
                        f"{below + COARSEST}")
    return size


def _layer(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> list[nn.Module]:
    """Where it strides, the one row of padding more lies at the end, as TensorFlow has it for even sides."""
    before = (kernel - stride) // 2
    after = kernel - stride - before
    padding = [nn.ZeroPad2d((before, after, before, after))] if before != after else []
    return [*padding, nn.Conv2d(inputs, outputs, kernel, stride, 0 if padding else before, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01), nn.ReLU6(inplace=True)]


def _rounded(filters: float) -> int:
    """The nearest multiple of 8, as long as no more than a tenth is lost."""
    near = max(8, int(filters + 4) // 8 * 8)
    return near if near >= 0.9 * filters else near + 8
