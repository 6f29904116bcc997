"""What a codec stores of pictures, coded once while a task is open."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from protocore.codecs.base import Codec, ImageShape
from protocore.ranks.split import split, split_bytes


def at_once(image_shape: ImageShape) -> int:
    """Pictures that are coded or decoded together, so that a large store or large pictures take no more memory."""
    return min(256, max(1, 2**20 // math.prod(image_shape)))


def to_uint8(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


class Codings:
    """What a lossy codec stores of images. Those of the open task are known by their row in it and coded once.

    They are part of the task's data: `forget` goes with its end. `timed` counts the seconds of the codec's work.
    """

    def __init__(self, codec: Codec, timed: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.codec, self.timed = codec, timed
        self._known: dict[int, bytes] = {}  # by row of the open task

    @torch.no_grad()
    def of(self, images: Tensor, rows: Tensor | None = None) -> list[bytes]:
        """The bytes of uint8 images (N, C, H, W); `rows` says which of the open task's they are."""
        if rows is None:
            return self._code(images)
        numbers = rows.tolist()
        new = {row: at for at, row in enumerate(numbers) if row not in self._known}
        if new:
            self._known |= zip(new, self._code(images[list(new.values())]), strict=True)
        return [self._known[row] for row in numbers]

    def images(self, stored: list[bytes]) -> Tensor:
        """What replay sees of them, uint8."""
        size = at_once(self.codec.image_shape)

        def decoded(numbers: Tensor) -> Tensor:
            made = torch.empty(len(numbers), *self.codec.image_shape, dtype=torch.uint8)
            for at in range(0, len(numbers), size):
                part = [stored[i] for i in numbers[at : at + size].tolist()]
                made[at : at + len(part)] = to_uint8(self.codec.decode(self.codec.from_bytes(part)))
            return made

        with self.timed():
            return split(decoded, torch.arange(len(stored)))

    def forget(self) -> None:
        self._known = {}

    def _code(self, images: Tensor) -> list[bytes]:
        def coded(rows: Tensor) -> list[bytes]:
            stored: list[bytes] = []
            for part in rows.split(at_once(self.codec.image_shape)) if len(rows) else ():
                stored += self.codec.to_bytes(self.codec.encode(part.to(self.codec.device).float() / 255))
            return stored

        with self.timed():
            return split_bytes(coded, images)
