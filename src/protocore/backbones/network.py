"""f and φ of the paper in one module: normalisation, feature extractor, growing head."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocore.backbones.adapter import Adapted
from protocore.backbones.base import Backbone
from protocore.backbones.head import GrowingHead
from protocore.errors import UserError
from protocore.pictures import ImageShape


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
        channels = image_shape[0]
        if backbone.mean is not None:
            mean, std = backbone.mean, backbone.std
        self.image_shape = image_shape
        self.register_buffer("mean", _per_channel("mean", mean, channels, 0.0))
        self.register_buffer("std", _per_channel("std", std, channels, 1.0))
        if bool((self.std <= 0).any()):
            raise UserError(f"std: every channel needs a value above 0, got {list(std or ())}")
        self.backbone = backbone
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
        """f: float images (N, C, H, W) in [0, 1] to (N, dim)."""
        return self.backbone(self._prepared(x))

    def layers(self, x: Tensor) -> list[Tensor]:
        """The feature map after each stage, then the features themselves."""
        return self.backbone.layers(self._prepared(x))

    def logits(self, z: Tensor) -> Tensor:
        """φ: features to one logit a class."""
        return self.head(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.features(x))

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
        return (x - self.mean) / self.std


def _per_channel(name: str, values: Sequence[float] | None, channels: int, default: float) -> Tensor:
    values = [default] * channels if values is None else list(values)
    if len(values) != channels:
        raise UserError(f"{name}: {values} has {len(values)} values, the images have {channels} channels")
    return torch.tensor(values, dtype=torch.float32).view(1, channels, 1, 1)
