"""Plain pixels: the exemplar is its own uint8 image, the latent its logit, g the sigmoid."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.errors import DataError

_EDGE = 0.25 / 255  # keeps the logit of black and white finite, and still rounds back to 0 and 255


class Pixels(Codec):
    """z is unbounded; g(z) = sigmoid(z) squashes it into the image range."""

    name = "pixels"

    def encode(self, images: Tensor) -> Tensor:
        return torch.logit(images.clamp(_EDGE, 1 - _EDGE))

    def quantise(self, z: Tensor) -> Tensor:
        stored = self.encode((torch.sigmoid(z) * 255).round() / 255)
        return z + (stored - z).detach()

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def to_bytes(self, z: Tensor) -> list[bytes]:
        rows = (torch.sigmoid(z) * 255).round().to(torch.uint8).cpu().flatten(1).numpy()
        return [row.tobytes() for row in rows]

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        size = self.exemplar_bytes
        for i, row in enumerate(stored):
            if len(row) != size:
                raise DataError(f"exemplar {i} holds {len(row)} bytes, but {self.image_shape} pixels need {size}")
        flat = torch.frombuffer(bytearray(b"".join(stored)), dtype=torch.uint8)
        return self.encode(flat.view(-1, *self.image_shape).float() / 255)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.image_shape

    @property
    def exemplar_bytes(self) -> int:
        channels, height, width = self.image_shape
        return channels * height * width

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"pixels {self.image_shape}".encode()).hexdigest()

    @property
    def lossless(self) -> bool:
        return True
