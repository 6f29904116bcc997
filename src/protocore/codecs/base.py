"""The one interface of everything that turns pictures into bytes and back.

A codec works on batches: images are float tensors (N, C, H, W) in [0, 1], latents z are float tensors whose
first dimension is N. Stored exemplars are bytes, one `bytes` object an exemplar.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from protocore.pictures import ImageShape


class Codec(ABC):
    """g of the paper with its inverse: image -> z -> bytes -> z -> image."""

    name: str
    device = torch.device("cpu")  # where its weights are: latents and images are expected there
    learns = False  # whether `fit` has anything to learn: then `state` is part of the memory
    learned = False  # whether it has
    differentiable: bool = True  # whether decode() passes gradients to z, so that z can be optimised through it

    def __init__(self, image_shape: ImageShape) -> None:
        self.image_shape = image_shape
        self.spec = self.name  # as --codec says it, with its number

    def to(self, device: torch.device | str) -> Self:
        """Move the weights, if there are any: modules and tensors among the attributes."""
        weights = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module | Tensor)}
        if weights:
            vars(self).update({name: value.to(device) for name, value in weights.items()})
            self.device = torch.device(device)
        return self

    def fit(self, images: Tensor) -> None:
        """Learn what it needs of pictures like these, once, before anything is stored; most need nothing."""
        raise TypeError(f"{type(self).__name__} learns nothing")

    def state(self) -> dict[str, Tensor]:
        """What `fit` has learned: whoever decodes needs it."""
        return {}

    def shapes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes of `state`, known before."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` gave, nothing if nothing was learned; anything else raises `DataError`."""
        raise TypeError(f"{type(self).__name__} learns nothing")

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Images to latents, before quantising."""

    @abstractmethod
    def quantise(self, z: Tensor) -> Tensor:
        """The nearest latent that can be stored; gradients pass straight through."""

    def draft(self, z: Tensor) -> Tensor:
        """Like `quantise`, but quick before exact: for the steps of an optimisation, which look at it once."""
        return self.quantise(z)

    def random(self, count: int, scale: float) -> Tensor:
        """Latents that no picture went into: noise of this standard deviation, or random codes where it has them."""
        return scale * torch.randn(count, *self.latent_shape)

    @abstractmethod
    def decode(self, z: Tensor) -> Tensor:
        """Latents to images in [0, 1]."""

    @abstractmethod
    def to_bytes(self, z: Tensor) -> list[bytes]:
        """What is stored of each latent, after quantising."""

    @abstractmethod
    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        """The quantised latents that `to_bytes` stored. A wrong length raises `DataError`."""

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one latent for images of `image_shape`."""

    @property
    @abstractmethod
    def exemplar_bytes(self) -> int | None:
        """Bytes of one exemplar, or None where they depend on the picture."""

    @property
    def largest(self) -> int | None:
        """Bytes that no exemplar exceeds, whatever the picture; None where nobody knows."""
        return self.exemplar_bytes

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of whatever the decoded pictures depend on (weights, version, shape)."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of the decoder, where decoding needs weights: kept once, whatever the number of classes."""
        return 0

    @property
    def lossless(self) -> bool:
        """Whether uint8 images come back exactly as they were."""
        return False
