"""g and its inverse: everything that turns stored bytes into pictures and back."""

from __future__ import annotations

from collections.abc import Callable

from protocore.decoders.base import Decoder, ImageShape
from protocore.decoders.jpeg import JPEG
from protocore.decoders.pixels import Pixels
from protocore.decoders.vqgan import VQGANDecoder, load, shipped
from protocore.decoders.webp import WebP
from protocore.errors import UserError

__all__ = ["DECODERS", "Decoder", "ImageShape", "decoder_named"]



def _vqgan(image_shape: ImageShape, stages: int | None = None) -> VQGANDecoder:
    return load(shipped(image_shape[0]), image_shape, stages)


# name -> (builder from image shape and an optional number, what it is)
DECODERS: dict[str, tuple[Callable[..., Decoder], str]] = {
    "pixels": (Pixels, "plain uint8 pixels, squashed to the image range"),
    "webp": (WebP, "WebP without its header; webp:Q for quality Q"),
    "jpeg": (JPEG, "JPEG without its tables; jpeg:Q for quality Q"),
    "vqgan": (_vqgan, "codes of the small VQGAN that ships with the package; vqgan:N for N residual stages"),
}


def decoder_named(name: str, image_shape: ImageShape) -> Decoder:
    """A codec by name, with a number behind a colon where it takes one: `webp:10`, `vqgan:4`."""
    kind, _, number = name.partition(":")
    if kind not in DECODERS:
        raise UserError(f"--codec {name!r} is unknown; choose one of {', '.join(DECODERS)}")
    if not number:
        return DECODERS[kind][0](image_shape)
    if kind == "pixels" or not number.isdigit():
        raise UserError(f"--codec {name!r}: {kind} takes {'no number' if kind == 'pixels' else 'a whole number'}")
    return DECODERS[kind][0](image_shape, int(number))
