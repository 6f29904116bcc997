"""Codecs around one frozen codebook: stored are the indices."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from protocore.codecs.base import Codec
from protocore.codecs.bits import pack, packed_bytes, unpack
from protocore.codecs.padding import reflect_pad
from protocore.errors import DataError
from protocore.pictures import ImageShape

_CELLS = 1 << 24  # distances held at once while searching the codebook


class CodebookCodec(Codec):
    """A frozen network for images in [-1, 1] around one codebook (codes, D): stored are the indices.

    Grey pictures go through a network for colour as three equal channels, and come back as their mean.
    """

    def __init__(
        self, image_shape: ImageShape, model: nn.Module, codebook: Tensor, channels: int, factor: int
    ) -> None:
        super().__init__(image_shape)
        if image_shape[0] not in {1, channels} or min(image_shape) < 1:
            raise DataError(
                f"a codec of {channels} channels cannot code pictures of shape {image_shape}: choose another"
            )
        self.model = model.eval().requires_grad_(False)
        self.codebook = codebook.detach()
        self.channels = channels
        self.factor = factor
        self._weights = _digest_of(model.state_dict())

    @abstractmethod
    def to_latents(self, images: Tensor) -> Tensor:
        """Images in [-1, 1], sides multiples of the factor, to latents before quantising."""

    @abstractmethod
    def to_images(self, z: Tensor) -> Tensor:
        """Quantised latents to images in about [-1, 1]."""

    @abstractmethod
    def decoding_weights(self) -> Iterable[Tensor]:
        """The weights, but for the codebook, that decoding needs."""

    def encode(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            raise DataError(f"pictures of shape {tuple(images.shape[1:])} met a codec for {self.image_shape}")
        full = images.expand(-1, self.channels, -1, -1)
        return self.to_latents(reflect_pad(full * 2 - 1, self.factor))

    def quantise(self, z: Tensor) -> Tensor:
        return z + (self.lookup(self.indices(z)) - z).detach()

    def decode(self, z: Tensor) -> Tensor:
        channels, height, width = self.image_shape
        images = ((self.to_images(z)[..., :height, :width] + 1) / 2).clamp(0, 1)
        return images if channels == self.channels else images.mean(1, keepdim=True)

    @torch.no_grad()
    def indices(self, z: Tensor) -> Tensor:
        """The nearest codes (N, h, w) of latents (N, D, h, w)."""
        rows = z.permute(0, 2, 3, 1).flatten(0, 2)
        squares = self.codebook.square().sum(1)
        parts = rows.split(max(1, _CELLS // len(self.codebook)))
        found = [torch.addmm(squares, part, self.codebook.T, alpha=-2).argmin(1) for part in parts]
        return torch.cat(found).view(len(z), *z.shape[2:])

    def lookup(self, indices: Tensor) -> Tensor:
        return self.codebook[indices].permute(0, 3, 1, 2).contiguous()

    def to_bytes(self, z: Tensor) -> list[bytes]:
        return pack(self.indices(z).flatten(1).cpu().numpy(), len(self.codebook))

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        _, height, width = self.latent_shape
        indices = torch.from_numpy(unpack(stored, height * width, len(self.codebook)))
        return self.lookup(indices.view(-1, height, width).to(self.codebook.device))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        _, height, width = self.image_shape
        return self.codebook.shape[1], -(-height // self.factor), -(-width // self.factor)

    @property
    def exemplar_bytes(self) -> int:
        _, height, width = self.latent_shape
        return packed_bytes(height * width, len(self.codebook))

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.name} {self._weights} {self.image_shape}".encode()).hexdigest()

    @property
    def shared_bytes(self) -> int:
        """Codebook and decoder as they are loaded; the encoder is needed only where new pictures are coded."""
        return sum(w.numel() * w.element_size() for w in (self.codebook, *self.decoding_weights()))


def _digest_of(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and float32 values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
