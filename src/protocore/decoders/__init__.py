"""g and its inverse: everything that turns stored bytes into pictures and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocore.decoders.base import Decoder, ImageShape
from protocore.decoders.jpeg import JPEG
from protocore.decoders.pixels import Pixels
from protocore.decoders.vqgan import load, shipped
from protocore.decoders.webp import WebP
from protocore.errors import DataError, UserError

__all__ = ["DECODERS", "Decoder", "ImageShape", "decoder_named"]


@dataclass(frozen=True)
class Wish:
    """What a codec's name asks for: `vqgan:mine.safetensors:4,sweeps=2,entropy` has source, number and options."""

    name: str
    source: str = ""
    number: int | None = None
    sweeps: int = 0
    entropy: bool = False

    def plain(self, *, source: bool = False, number: bool = False) -> Wish:
        """Itself, if it asks for nothing that this codec has not."""
        if (self.source and not source) or (self.number is not None and not number):
            kind = self.name.partition(":")[0]
            takes = "a whole number" if number else "a folder" if source else "no number"
            raise UserError(f"--codec {self.name!r}: {kind} takes {takes}")
        return self


def _pixels(shape: ImageShape, wish: Wish) -> Decoder:
    wish.plain()
    return Pixels(shape)


def _webp(shape: ImageShape, wish: Wish) -> Decoder:
    wish.plain(number=True)
    return WebP(shape) if wish.number is None else WebP(shape, wish.number)


def _jpeg(shape: ImageShape, wish: Wish) -> Decoder:
    wish.plain(number=True)
    return JPEG(shape) if wish.number is None else JPEG(shape, wish.number)


def _vqgan(shape: ImageShape, wish: Wish) -> Decoder:
    return load(wish.source or shipped(shape[0]), shape, wish.number, wish.sweeps, wish.entropy)


def _diffusers(shape: ImageShape, wish: Wish) -> Decoder:
    from protocore.decoders import diffusers_vq

    if not wish.plain(source=True).source:
        raise UserError("--codec diffusers: say which: diffusers:FOLDER of a saved VQModel, or diffusers:HUB-ID")
    return diffusers_vq.load(wish.source, shape)


def _taming(shape: ImageShape, wish: Wish) -> Decoder:
    from protocore.decoders import taming

    folder = Path(wish.plain(source=True).source)
    configs, weights = sorted(folder.glob("*.yaml")), sorted(folder.glob("*.ckpt"))
    if not wish.source or len(configs) != 1 or len(weights) != 1:
        raise UserError(f"--codec {wish.name!r}: give taming:FOLDER, a folder with one .yaml and one .ckpt file "
                        f"(met {len(configs)} and {len(weights)})")
    return taming.load(configs[0], weights[0], shape)


# name -> (builder, what it is)
DECODERS: dict[str, tuple[Callable[[ImageShape, Wish], Decoder], str]] = {
    "pixels": (_pixels, "plain uint8 pixels, squashed to the image range"),
    "webp": (_webp, "WebP without its header; webp:Q for quality Q"),
    "jpeg": (_jpeg, "JPEG without its tables; jpeg:Q for quality Q"),
    "vqgan": (_vqgan, "codes of the small VQGAN that ships with the package; vqgan:N for N residual stages, "
              "vqgan:FILE or vqgan:FILE:N for one of `decoder train`; vqgan:N,sweeps=2 looks longer for good codes, "
              "vqgan:N,entropy gives frequent codes fewer bits"),
    "diffusers": (_diffusers, "codes of a diffusers VQModel; diffusers:FOLDER or diffusers:HUB-ID"),
    "taming": (_taming, "codes of a taming-transformers VQGAN; taming:FOLDER with its .yaml and .ckpt"),
}


def decoder_named(name: str, image_shape: ImageShape) -> Decoder:
    """A codec by name, with a number or a file behind a colon where it takes one: `webp:10`, `vqgan:mine.st:4`."""
    kind, _, rest = name.partition(":")
    kind, comma, options = (kind, "", "") if rest else kind.partition(",")
    if rest:
        rest, comma, options = rest.partition(",")
    if kind not in DECODERS:
        raise UserError(f"--codec {name!r} is unknown; choose one of {', '.join(DECODERS)}")
    sweeps, entropy = 0, False
    for word in options.split(",") if comma else ():
        number = word.removeprefix("sweeps=")
        if kind == "vqgan" and word == "entropy":
            entropy = True
        elif kind == "vqgan" and word != number and number.isdigit():
            sweeps = int(number)
        else:
            raise UserError(f"--codec {name!r}: {word!r} is no option of {kind}; vqgan takes sweeps=N and entropy")
    source, _, number = rest.rpartition(":")
    if not number.isdigit():
        source, number = rest, ""
    try:
        wish = Wish(name, source, int(number) if number else None, sweeps, entropy)
        decoder = DECODERS[kind][0](image_shape, wish)
    except DataError as error:
        raise DataError(f"--codec {name!r}: {error}") from None
    # What the ledger and the pack say; where a file lies is nobody else's business.
    decoder.codec = (f"{kind}:{number}" if number else kind) + (",entropy" if entropy else "")
    return decoder
