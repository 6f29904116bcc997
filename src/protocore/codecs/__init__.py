"""g and its inverse: everything that turns stored bytes into pictures and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocore.codecs.base import Codec, ImageShape
from protocore.codecs.jpeg import JPEG
from protocore.codecs.pixels import Pixels
from protocore.codecs.vqgan import load, shipped
from protocore.codecs.webp import WebP
from protocore.errors import DataError, UserError, shown
from protocore.registry import Registry

__all__ = [
    "CODECS",
    "Codec",
    "ImageShape",
    "Wish",
    "codec_named",
    "codec_told",
    "is_told",
    "register",
    "way_to",
]

_NUMBER = re.compile("[0-9]{1,9}")  # `isdigit` takes ² for a digit, which `int` does not
_TOLD = re.compile("([A-Za-z0-9][A-Za-z0-9 _.+-]{0,63})(:[0-9]{1,9})?(,entropy)?")
_SOURCES = {"vqgan": "FILE", "diffusers": "FOLDER-OR-HUB-ID", "taming": "FOLDER"}  # what only a user may name


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


def _pixels(shape: ImageShape, wish: Wish) -> Codec:
    wish.plain()
    return Pixels(shape)


def _webp(shape: ImageShape, wish: Wish) -> Codec:
    wish.plain(number=True)
    return WebP(shape) if wish.number is None else WebP(shape, wish.number)


def _jpeg(shape: ImageShape, wish: Wish) -> Codec:
    wish.plain(number=True)
    return JPEG(shape) if wish.number is None else JPEG(shape, wish.number)


def _vqgan(shape: ImageShape, wish: Wish) -> Codec:
    return load(wish.source or shipped(shape[0]), shape, wish.number, wish.sweeps, wish.entropy)


def _diffusers(shape: ImageShape, wish: Wish) -> Codec:
    from protocore.codecs import diffusers_vq

    if not wish.plain(source=True).source:
        raise UserError("--codec diffusers: say which: diffusers:FOLDER of a saved VQModel, or diffusers:HUB-ID")
    return diffusers_vq.load(wish.source, shape)


def _taming(shape: ImageShape, wish: Wish) -> Codec:
    from protocore.codecs import taming

    source = wish.plain(source=True).source
    configs, weights = (sorted(Path(source).glob(kind)) if source else [] for kind in ("*.yaml", "*.ckpt"))
    if len(configs) != 1 or len(weights) != 1:
        raise UserError(f"--codec {wish.name!r}: give taming:FOLDER, a folder with one .yaml and one .ckpt file "
                        f"(met {len(configs)} and {len(weights)})")
    return taming.load(configs[0], weights[0], shape)


Builder = Callable[[ImageShape, Wish], Codec]

# name -> (builder, what it is)
CODECS: Registry[tuple[Builder, str]] = Registry("codec", {
    "pixels": (_pixels, "plain uint8 pixels, squashed to the image range"),
    "webp": (_webp, "WebP without its header; webp:Q for quality Q"),
    "jpeg": (_jpeg, "JPEG without its tables; jpeg:Q for quality Q"),
    "vqgan": (_vqgan, "codes of the small VQGAN that ships with the package; vqgan:N for N residual stages, "
              "vqgan:FILE or vqgan:FILE:N for one of `decoder train`; vqgan:N,sweeps=2 looks longer for good codes, "
              "vqgan:N,entropy gives frequent codes fewer bits"),
    "diffusers": (_diffusers, "codes of a diffusers VQModel; diffusers:FOLDER or diffusers:HUB-ID"),
    "taming": (_taming, "codes of a taming-transformers VQGAN; taming:FOLDER with its .yaml and .ckpt"),
}.items())


def register(name: str, build: Builder, description: str = "", *, replace: bool = False) -> None:
    """Add a codec of one's own: `build(image_shape, wish)` gives a `Codec`; `wish.number` is N of NAME:N."""
    CODECS.register(name, (build, description), replace=replace)


def codec_named(name: str, image_shape: ImageShape) -> Codec:
    """A codec by name, with a number or a file behind a colon where it takes one: `webp:10`, `vqgan:mine.st:4`."""
    kind, _, rest = name.partition(":")
    kind, comma, options = (kind, "", "") if rest else kind.partition(",")
    if rest:
        rest, comma, options = rest.partition(",")
    if kind not in CODECS:
        raise UserError(f"--codec {shown(name)} is unknown; choose one of {', '.join(CODECS)}")
    sweeps, entropy = 0, False
    for word in options.split(",") if comma else ():
        number = word.removeprefix("sweeps=")
        if kind == "vqgan" and word == "entropy":
            entropy = True
        elif kind == "vqgan" and word != number and _NUMBER.fullmatch(number):
            sweeps = int(number)
        else:
            raise UserError(f"--codec {name!r}: {word!r} is no option of {kind}; vqgan takes sweeps=N and entropy")
    source, _, number = rest.rpartition(":")
    if not _NUMBER.fullmatch(number):
        source, number = rest, ""
    try:
        wish = Wish(name, source, int(number) if number else None, sweeps, entropy)
        codec = CODECS[kind][0](image_shape, wish)
    except DataError as error:
        raise DataError(f"--codec {name!r}: {error}") from None
    # What the ledger and the pack say; where a file lies is nobody else's business.
    codec.spec = (f"{kind}:{number}" if number else kind) + (",entropy" if entropy else "")
    return codec


def is_told(codec: str) -> bool:
    """Whether this is what `Codec.spec` says: a bare name, a number, `,entropy`. It never says where a file lies."""
    return _TOLD.fullmatch(codec) is not None


def codec_told(codec: str, image_shape: ImageShape) -> Codec:
    """The decoder of which a file says that it made its exemplars.

    Whoever wrote the file chooses among what ships with the package, and nothing else: no path and no hub id of theirs
    is opened. Where that is not enough, the `DataError` says how the user names the decoder.
    """
    told = _TOLD.fullmatch(codec)
    if not told:
        raise DataError(f"{codec[:80]!r} is no codec that a file may name: a file says a bare name, a number and "
                        f"',entropy', e.g. vqgan:4; name the one that wrote it with --codec")
    if told[1] not in ("pixels", "webp", "jpeg", "vqgan"):
        raise DataError(f"the exemplars were written by the decoder {codec}: {way_to(codec)}")
    try:
        return codec_named(codec, image_shape)
    except UserError as error:
        if told[1] != "vqgan":
            raise DataError(f"the exemplars cannot be of the decoder {codec}: {error}") from None
        if not isinstance(error, DataError):  # a library that is missing is no fault of the file
            raise
        raise DataError(f"the exemplars were written by the decoder {codec}, which is not the one that ships with "
                        f"protocore ({error}): {way_to(codec)}") from None


def way_to(codec: str) -> str:
    """How a user gives the decoder that a file calls `codec`."""
    kind = re.split("[:,]", codec, maxsplit=1)[0]
    if kind not in CODECS:
        return f"give the one that wrote them from Python, as --codec knows no {kind!r}"
    if kind not in _SOURCES:
        return f"give the one that wrote them with --codec {codec}"
    shipped_too = f" ({codec} alone takes the weights that ship with protocore)" if kind == "vqgan" else ""
    return f"give the one that wrote them with --codec {kind}:{_SOURCES[kind]}{codec.removeprefix(kind)}{shipped_too}"
