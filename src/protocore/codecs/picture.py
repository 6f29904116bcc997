"""What WebP and JPEG share: a codec around a format of Pillow's, whose files are stored without their headers."""

from __future__ import annotations

import hashlib
import io
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from protocore.codecs.base import Codec
from protocore.errors import DataError, UserError
from protocore.pictures import ImageShape, open_picture, quiet


class PictureCodec(Codec):
    """The latent is the image, the stored exemplar the format's file without its header.

    Storing twice loses twice: `to_bytes` codes what it is given, also where that was decoded before.
    """

    differentiable = False
    sides = 0  # longest side that the format knows

    def __init__(self, image_shape: ImageShape, quality: int) -> None:
        super().__init__(image_shape)
        channels, height, width = image_shape
        if channels not in (1, 3) or not (1 <= height <= self.sides and 1 <= width <= self.sides):
            raise UserError(
                f"--codec {self.name} cannot hold pictures of shape {image_shape}: it takes 1 or 3 channels "
                f"and sides of 1 to {self.sides}; use --codec pixels"
            )
        if not 1 <= quality <= 100:
            raise UserError(f"the quality of --codec {self.name} is {quality}: choose one of 1..100")
        self.quality = quality

    @abstractmethod
    def pack(self, picture: Image.Image) -> bytes:
        """What is stored of a picture."""

    @abstractmethod
    def restore(self, stored: bytes) -> bytes:
        """The whole file again; `DataError` where it cannot be one."""

    @abstractmethod
    def prolonged(self, file: bytes) -> bytes:
        """The file with more data after its own, which is read only if its own ended early."""

    def encode(self, images: Tensor) -> Tensor:
        return images.clamp(0, 1)

    def quantise(self, z: Tensor) -> Tensor:
        files = [self.restore(stored) for stored in self.to_bytes(z)]
        stored = self._batch([self.pixels(file) for file in files]).to(z)
        return z + (stored - z).detach()

    def decode(self, z: Tensor) -> Tensor:
        return z.clamp(0, 1)

    def to_bytes(self, z: Tensor) -> list[bytes]:
        if tuple(z.shape[1:]) != self.image_shape:
            raise DataError(f"pictures of shape {tuple(z.shape[1:])} met a codec for {self.image_shape}")
        rows = (z.detach().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        return [self.pack(Image.fromarray(row[:, :, 0] if row.shape[2] == 1 else row)) for row in rows]

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        return self._batch([self._checked(i, data) for i, data in enumerate(stored)])

    def _batch(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        channels, height, width = self.image_shape
        batch = np.stack(pictures) if pictures else np.empty((0, height, width, channels), np.uint8)
        return torch.from_numpy(batch).permute(0, 3, 1, 2).contiguous().float() / 255

    def _checked(self, number: int, stored: bytes) -> NDArray[np.uint8]:
        """Pillow fills up what is missing and says nothing, so data that ends early is looked for here."""
        _, height, width = self.image_shape
        try:
            if len(stored) > self.largest:
                raise DataError(f"{len(stored)} bytes is more than such a picture can take ({self.largest})")
            file = self.restore(stored)
            read = self.pixels(file)
            if not np.array_equal(read, self.pixels(self.prolonged(file))):
                raise DataError("its data end early")
        except DataError as error:
            raise DataError(f"exemplar {number} is no {self.name} picture of {width} x {height}: {error}") from error
        return read

    def pixels(self, file: bytes) -> NDArray[np.uint8]:
        """Decode a whole file to (H, W, C), once its header has shown the right size."""
        channels, height, width = self.image_shape
        try:
            with quiet(), open_picture(io.BytesIO(file), [self.name.upper()]) as picture:
                if picture.size != (width, height):
                    raise DataError(f"its header says {picture.size[0]} x {picture.size[1]}")
                picture.load()
                read = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"damaged ({error})") from error
        return read.reshape(height, width, channels)

    @property
    def largest(self) -> int:
        """A bound that no file of ours reaches: noise at quality 100 stays below it."""
        channels, height, width = self.image_shape
        return 1024 + 2 * channels * (height + 15) * (width + 15)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self.image_shape

    @property
    def exemplar_bytes(self) -> None:
        return None

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.name} {self.quality} {self.image_shape}".encode()).hexdigest()
