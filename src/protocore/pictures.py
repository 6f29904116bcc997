"""Pictures: their shape, the one place where Pillow opens a file (which formats, and how large it may be), and how any
picture becomes a square of 8 bits a channel."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from PIL import Image

ImageShape = tuple[int, int, int]  # channels, height, width

# Every other format stays closed: Pillow's reader of EPS, for one, starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
PLUGINS = {"HEIF": "pillow_heif"}  # formats that another package reads, where it is installed
MOST_PIXELS = 50_000_000  # unpacked, Pillow holds 4 bytes for each, twice where colours are converted
MOST_WEBP = 24_000_000  # its decoder holds 16 bytes for each
_LONGEST = 50  # sides a picture may have relative to each other before resizing it would fill the memory
_HEIF = tuple(b"ftyp" + kind for kind in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"))
_DEEPEST = 65535  # the largest value of 16 bits
_QUIET = threading.RLock()  # the filters of warnings belong to the whole process


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow's warnings (of bombs, of damaged notes within pictures) stay inside: an error says what matters."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def formats_read() -> tuple[str, ...]:
    """Every format that is read here: ours, and those of installed plugins."""
    found = [name for name, module in PLUGINS.items() if importlib.util.find_spec(module)]
    for name in found:
        importlib.import_module(PLUGINS[name]).register_heif_opener()
    return (*FORMATS, *found)


@contextlib.contextmanager
def open_picture(source: str | os.PathLike[str] | BinaryIO,
                 formats: Sequence[str] | None = None) -> Iterator[Image.Image]:
    """The picture with its size known and nothing decoded; of several frames the first. Errors are Pillow's own."""
    formats = formats_read() if formats is None else formats
    try:
        picture = Image.open(source, formats=tuple(formats))
    except Image.UnidentifiedImageError:
        if _is_heif(source):
            raise ValueError(f"HEIC: install the package {PLUGINS['HEIF']}, or save it as JPEG") from None
        raise ValueError(f"damaged, or none of {', '.join(formats)}") from None
    except Image.DecompressionBombError:
        raise ValueError(_too_large("far")) from None
    with picture:
        width, height = picture.size
        if width * height > (most := MOST_WEBP if picture.format == "WEBP" else MOST_PIXELS):
            raise ValueError(_too_large(f"{width:,} x {height:,} pixels,", most))
        yield picture


def _is_heif(source: str | os.PathLike[str] | BinaryIO) -> bool:
    """Whether a file that no reader took begins as those of telephones do, and only its reader is missing."""
    if "HEIF" in formats_read():
        return False
    with contextlib.nullcontext(source) if isinstance(source, io.IOBase) else open(source, "rb") as file:  # type: ignore
        file.seek(0)
        return file.read(12)[4:] in _HEIF


def _too_large(size: str, most: int = MOST_PIXELS) -> str:
    return f"{size} more than the {most // 10**6} million pixels that are read; save it smaller"


# What EXIF's note 274 says of how the camera was held, and what undoes it.
_TURNS = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
          5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
          8: Image.Transpose.ROTATE_90}
_STILL = (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM)  # upright
_MOST_EXIF = 1 << 16  # bytes; a note that claims more is not looked at


def turn_of(picture: Image.Image) -> Image.Transpose | None:
    """How a picture must be turned to stand upright; None where it does or does not say. Pillow turns a TIFF itself."""
    raw = picture.info.get("exif")
    if not isinstance(raw, bytes) or len(raw) > _MOST_EXIF or picture.format == "TIFF":
        return None
    notes = Image.Exif()
    try:
        notes.load(raw)
        return _TURNS.get(notes.get(274, 1))
    except Exception:  # damaged notes of a sound picture
        return None


def fitted(picture: Image.Image, shape: ImageShape, turn: Image.Transpose | None = None) -> np.ndarray:
    """The pixels (C, H, W) of a picture: resized so that it just covers them, then the centre cut out."""
    channels, high, wide = shape
    check_sides(picture)
    plain = _plain(picture, "RGB" if channels == 3 else "L")
    quarter = turn is not None and turn not in _STILL
    rows, columns = (wide, high) if quarter else (high, wide)
    width, height = plain.size
    if width * rows >= height * columns:
        width, height = round(width * rows / height), rows
    else:
        width, height = columns, round(height * columns / width)
    if plain.size != (width, height):
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    if turn is not None:
        plain = plain.transpose(turn)
        width, height = plain.size
    left, top = (width - wide) // 2, (height - high) // 2
    cut = np.asarray(plain.crop((left, top, left + wide, top + high)))
    return cut.reshape(high, wide, channels).transpose(2, 0, 1)


def check_sides(picture: Image.Image) -> None:
    if max(picture.size) > _LONGEST * min(picture.size):
        raise ValueError(f"{picture.width} x {picture.height} pixels is too narrow to cut a square from")


def _plain(picture: Image.Image, mode: str) -> Image.Image:
    """The picture with 8 bits a channel in this mode; what is transparent in it lies on white."""
    if picture.mode[0] in "IF":
        picture = _eight_bits(picture)
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Image.new("RGB", seen.size, (255, 255, 255))
        picture.paste(seen, mask=seen.getchannel("A"))
    return picture if picture.mode == mode else picture.convert(mode)


def _eight_bits(picture: Image.Image) -> Image.Image:
    """A grey picture of 16 bits in 8: white is white in both. Wider numbers have no range that all agree on."""
    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > _DEEPEST:
        raise ValueError(f"pixels of more than 16 bits (mode {picture.mode}); save it with 8 or 16 bits")
    return Image.fromarray(((values.astype(np.int32) + 128) // 257).astype(np.uint8))
