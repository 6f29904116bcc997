"""What --codec says, and what a file may say of the codec that made it."""

from __future__ import annotations

import re

from protocore.codecs.base import Codec
from protocore.codecs.table import CODECS, NUMBER, Wish
from protocore.errors import DataError, UserError, shown
from protocore.pictures import ImageShape

_TOLD = re.compile("([A-Za-z0-9][A-Za-z0-9 _.+-]{0,63})(:[0-9]{1,9})?(,entropy)?")
_SHIPPED = ("pixels", "webp", "jpeg", "vqgan", "pq")  # what a file may choose: they open nothing of its choice
_SOURCES = {"vqgan": "FILE", "diffusers": "FOLDER-OR-HUB-ID", "taming": "FOLDER"}  # what only a user may name


def codec_named(name: str, image_shape: ImageShape) -> Codec:
    """A codec by name, with a number or a file behind a colon where it takes one: `webp:10`, `vqgan:mine.st:4`."""
    wish = _wish(name)
    if wish.kind not in CODECS:
        raise UserError(f"--codec {shown(name)} is unknown; choose one of {', '.join(CODECS)}")
    try:
        codec = CODECS[wish.kind].build(image_shape, wish)
    except DataError as error:
        raise DataError(f"--codec {name!r}: {error}") from None
    # What the ledger and the pack say; where a file lies is nobody else's business.
    number = "" if wish.number is None else f":{wish.number}"
    codec.spec = wish.kind + number + (",entropy" if "entropy" in wish.options else "")
    return codec


def _wish(name: str) -> Wish:
    head, *options = name.split(",")
    kind, _, rest = head.partition(":")
    source, _, number = rest.rpartition(":")
    if not NUMBER.fullmatch(number):
        source, number = rest, ""
    return Wish(name, kind, source, int(number) if number else None, tuple(options))


def is_told(codec: str) -> bool:
    """Whether this is what `Codec.spec` says: a bare name, a number, `,entropy`. It never says where a file lies."""
    return _TOLD.fullmatch(codec) is not None


def codec_told(codec: str, image_shape: ImageShape) -> Codec:
    """The codec of which a file says that it made its exemplars.

    Whoever wrote the file chooses among what ships with the package, and nothing else: no path and no hub id of theirs
    is opened. Where that is not enough, the `DataError` says how the user names the codec.
    """
    told = _TOLD.fullmatch(codec)
    if not told:
        raise DataError(f"{shown(codec)} is no codec that a file may name: a file says a bare name, a number and "
                        f"',entropy', e.g. vqgan:4; name the one that wrote it with --codec")
    if told[1] not in _SHIPPED:
        raise DataError(f"the exemplars were written by the codec {codec}: {way_to(codec)}")
    try:
        return codec_named(codec, image_shape)
    except UserError as error:
        if told[1] != "vqgan":
            raise DataError(f"the exemplars cannot be of the codec {codec}: {error}") from None
        if not isinstance(error, DataError):  # a library that is missing is no fault of the file
            raise
        raise DataError(f"the exemplars were written by the codec {codec}, whose weights are not those that ship with "
                        f"protocore ({error}): {way_to(codec)}") from None


def way_to(codec: str) -> str:
    """How a user gives the codec that a file calls `codec`."""
    kind = re.split("[:,]", codec, maxsplit=1)[0]
    if kind not in CODECS:
        return f"give the one that wrote them from Python, as --codec knows no {kind!r}"
    if kind not in _SOURCES:
        return f"give the one that wrote them with --codec {codec}"
    shipped_too = f" ({codec} alone takes the weights that ship with protocore)" if kind == "vqgan" else ""
    return f"give the one that wrote them with --codec {kind}:{_SOURCES[kind]}{codec.removeprefix(kind)}{shipped_too}"
