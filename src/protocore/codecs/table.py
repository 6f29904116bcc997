"""The codecs by name: how each is built of what the user asks for. Packages of others add their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from protocore.codecs.base import Codec
from protocore.codecs.jpeg import JPEG
from protocore.codecs.pixels import Pixels
from protocore.codecs.pq import ProductQuantiser
from protocore.codecs.vqgan import load, shipped
from protocore.codecs.webp import WebP
from protocore.errors import UserError, shown
from protocore.pictures import ImageShape
from protocore.registry import Registry

NUMBER = re.compile("[0-9]{1,9}")  # `isdigit` takes ² for a digit, which `int` does not


@dataclass(frozen=True)
class Wish:
    """What --codec asks for: `vqgan:mine.safetensors:4,sweeps=2,entropy` has source, number and options."""

    text: str
    kind: str
    source: str = ""
    number: int | None = None
    options: tuple[str, ...] = ()

    def only(self, *, source: bool = False, number: bool = False, options: Sequence[str] = ()) -> dict[str, int]:
        """The options by name, 1 for a bare word; an error if it asks for anything that its codec does not take.

        `options` are forms: "entropy" is a bare word, "sweeps=N" has a whole number.
        """
        forms, found = {form.partition("=")[0]: "=" in form for form in options}, {}
        for word in self.options:
            name, sign, value = word.partition("=")
            if forms.get(name) is not bool(sign) or (sign and not NUMBER.fullmatch(value)):
                raise UserError(f"--codec {shown(self.text)}: {shown(word)} is no option of {self.kind}, which takes "
                                f"{' and '.join(options) or 'none'}")
            found[name] = int(value) if sign else 1
        if (self.source and not source) or (self.number is not None and not number):
            takes = "a whole number" if number else "a folder" if source else "no number"
            raise UserError(f"--codec {shown(self.text)}: {self.kind} takes {takes}")
        return found


Builder = Callable[[ImageShape, Wish], Codec]


class CodecInfo(NamedTuple):
    """How a codec is built for pictures of a shape, and what it is."""

    build: Builder
    description: str = ""


class _Codecs(Registry[CodecInfo]):
    def register(self, name: str, thing: CodecInfo | Builder, *, replace: bool = False) -> CodecInfo:
        """The builder alone will do, as an entry point names one: its docstring says what the codec is."""
        if not isinstance(thing, CodecInfo):
            thing = CodecInfo(thing, " ".join((thing.__doc__ or "").split()))
        return super().register(name, thing, replace=replace)


def _pixels(shape: ImageShape, wish: Wish) -> Codec:
    wish.only()
    return Pixels(shape)


def _webp(shape: ImageShape, wish: Wish) -> Codec:
    wish.only(number=True)
    return WebP(shape) if wish.number is None else WebP(shape, wish.number)


def _jpeg(shape: ImageShape, wish: Wish) -> Codec:
    wish.only(number=True)
    return JPEG(shape) if wish.number is None else JPEG(shape, wish.number)


def _pq(shape: ImageShape, wish: Wish) -> Codec:
    wish.only(number=True)
    return ProductQuantiser(shape) if wish.number is None else ProductQuantiser(shape, wish.number)


def _vqgan(shape: ImageShape, wish: Wish) -> Codec:
    options = wish.only(source=True, number=True, options=("sweeps=N", "entropy"))
    return load(wish.source or shipped(shape[0]), shape, wish.number, options.get("sweeps", 0), "entropy" in options)


def _diffusers(shape: ImageShape, wish: Wish) -> Codec:
    from protocore.codecs import diffusers_vq

    wish.only(source=True)
    if not wish.source:
        raise UserError("--codec diffusers: say which: diffusers:FOLDER of a saved VQModel, or diffusers:HUB-ID")
    return diffusers_vq.load(wish.source, shape)


def _taming(shape: ImageShape, wish: Wish) -> Codec:
    from protocore.codecs import taming

    wish.only(source=True)
    configs, weights = (sorted(Path(wish.source).glob(k)) if wish.source else [] for k in ("*.yaml", "*.ckpt"))
    if len(configs) != 1 or len(weights) != 1:
        raise UserError(f"--codec {shown(wish.text)}: give taming:FOLDER, a folder with one .yaml and one .ckpt file "
                        f"(met {len(configs)} and {len(weights)})")
    return taming.load(configs[0], weights[0], shape)


CODECS = _Codecs("codec", {
    "pixels": CodecInfo(_pixels, "plain uint8 pixels, squashed to the image range"),
    "webp": CodecInfo(_webp, "WebP without its header; webp:Q for quality Q"),
    "jpeg": CodecInfo(_jpeg, "JPEG without its tables; jpeg:Q for quality Q"),
    "pq": CodecInfo(_pq, "product-quantised feature vectors of a frozen network; pq:N for N bytes each"),
    "vqgan": CodecInfo(_vqgan, "codes of the small VQGAN that ships with the package; vqgan:N for N residual stages, "
                       "vqgan:FILE or vqgan:FILE:N for one of `decoder train`; vqgan:N,sweeps=2 looks longer for good "
                       "codes, vqgan:N,entropy gives frequent codes fewer bits"),
    "diffusers": CodecInfo(_diffusers, "codes of a diffusers VQModel; diffusers:FOLDER or diffusers:HUB-ID"),
    "taming": CodecInfo(_taming, "codes of a taming-transformers VQGAN; taming:FOLDER with its .yaml and .ckpt"),
}.items())


def register(name: str, build: Builder, description: str = "", *, replace: bool = False) -> None:
    """Add a codec of one's own: `build(image_shape, wish)` gives a `Codec`; `wish.number` is N of NAME:N."""
    CODECS.register(name, CodecInfo(build, description), replace=replace)
