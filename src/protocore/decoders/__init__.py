"""g and its inverse: everything that turns stored bytes into pictures and back."""

from __future__ import annotations

from collections.abc import Callable

from protocore.decoders.base import Decoder, ImageShape
from protocore.decoders.pixels import Pixels
from protocore.errors import UserError

__all__ = ["DECODERS", "Decoder", "ImageShape", "decoder_named"]

DECODERS: dict[str, tuple[Callable[[ImageShape], Decoder], str]] = {
    "pixels": (Pixels, "plain uint8 pixels, squashed to the image range"),
}


def decoder_named(name: str, image_shape: ImageShape) -> Decoder:
    if name not in DECODERS:
        raise UserError(f"--codec {name!r} is unknown; choose one of {', '.join(DECODERS)}")
    return DECODERS[name][0](image_shape)
