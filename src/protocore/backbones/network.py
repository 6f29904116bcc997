"""f and φ of the paper in one module: normalisation, feature extractor, growing head."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocore.backbones.adapter import Adapted
from protocore.backbones.base import Backbone
from protocore.backbones.head import GrowingHead
from protocore.errors import UserError
from protocore.pictures import ImageShape
from protocore.ranks.split import split

MAPS = 8 << 20  # bytes of the largest map of a chunk that is passed without training
LEAST_AT_ONCE, MOST_AT_ONCE = 16, 512


class Network(nn.Module):
    """Images in [0, 1] to features and logits. The normalisation is part of the state, like the weights.

    A backbone that brings a normalisation or an input size of its own is given what it expects.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: Backbone | Adapted,
        image_shape: ImageShape,
        *,
        head: str = "linear",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        channels = backbone.channels or image_shape[0]
        if image_shape[0] not in (1, channels):
            raise UserError(f"this backbone takes pictures of {channels} channels, or of 1, which is repeated; these "
                            f"have {image_shape[0]}")
        if backbone.mean is not None:
            mean, std = backbone.mean, backbone.std
        self.image_shape = image_shape
        self.register_buffer("mean", _per_channel("mean", mean, channels, 0.0))
        self.register_buffer("std", _per_channel("std", std, channels, 1.0))
        if bool((self.std <= 0).any()):
            raise UserError(f"std: every channel needs a value above 0, got {list(std or ())}")
        self.backbone = backbone
        self.frozen = 0
        self.head = GrowingHead(backbone.dim, head, xavier=backbone.xavier_head)

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        return self.backbone.dim

    @property
    def classes(self) -> int:
        """Rows of the head."""
        return self.head.classes

    def features(self, x: Tensor) -> Tensor:
        """f: float images (N, C, H, W) in [0, 1] to (N, dim). Several processes pass a part each."""
        return split(lambda rows, backbone: backbone(self._prepared(rows)), x, self.backbone)

    def layers(self, x: Tensor) -> list[Tensor]:
        """The feature map after each stage, then the features themselves."""
        return self.backbone.layers(self._prepared(x))

    def prepare(self, pictures: Callable[[], Tensor]) -> None:
        """Let the backbone fix what depends on the data, from some float images in [0, 1] of the first task."""
        if isinstance(self.backbone, Backbone):
            self.backbone.prepare(lambda: self._prepared(pictures()))

    def logits(self, z: Tensor) -> Tensor:
        """φ: features to one logit a class."""
        return self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.features(x))

    @torch.no_grad()
    def at_once(self) -> int:
        """Pictures to pass at once without training: few enough that a processor need not fetch new pages for maps.

        In chunks of 512 a ResNet-18 takes 1.8 times as long a picture as in chunks of 32.
        """
        if self.mean.device.type != "cpu":
            return MOST_AT_ONCE
        was_training = self.training
        self.eval()
        maps = self.backbone.layers if isinstance(self.backbone, Backbone) else self.backbone.maps
        blank = self._prepared(torch.zeros(1, *self.image_shape))
        largest = max(layer.numel() * layer.element_size() for layer in maps(blank))
        self.train(was_training)
        return min(MOST_AT_ONCE, max(LEAST_AT_ONCE, 2 ** int(math.log2(max(MAPS // largest, 1)))))

    def freeze(self, stages: int) -> None:
        """The first stages stay as they are: no gradients, and their batch norm as in evaluation."""
        if not isinstance(self.backbone, Backbone):
            raise UserError(f"--freeze {stages}: nothing is known of the stages of this backbone; give all or none")
        known = len(self.backbone.stages)
        if stages > known:
            raise UserError(f"--freeze {stages}: this backbone has {known} stages; give 1 to {known}, or all")
        self.frozen = stages
        self.backbone.stages[:stages].requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Network:
        super().train(mode)
        if self.frozen and isinstance(self.backbone, Backbone):
            self.backbone.stages[: self.frozen].eval()
        return self

    def grow(self, n: int) -> bool:
        """Make room for at least n classes. True if the head's parameters were replaced by larger ones."""
        return self.head.grow(n)

    def frozen_copy(self) -> Network:
        """The network of this moment: its own weights, in evaluation mode, without gradients."""
        return copy.deepcopy(self).eval().requires_grad_(False)

    def _prepared(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise UserError(f"images: expected floats in [0, 1], got {x.dtype}; divide bytes by 255")
        size = self.backbone.image_size
        if size is not None and tuple(x.shape[2:]) != size:
            x = F.interpolate(x, size, mode="bilinear", antialias=True)
        if x.shape[1] != self.mean.shape[1]:
            x = x.expand(-1, self.mean.shape[1], -1, -1)
        return (x - self.mean) / self.std


def _per_channel(name: str, values: Sequence[float] | None, channels: int, default: float) -> Tensor:
    values = [default] * channels if values is None else list(values)
    if len(values) != channels:
        raise UserError(f"{name}: {values} has {len(values)} values, the images have {channels} channels")
    return torch.tensor(values, dtype=torch.float32).view(1, channels, 1, 1)
