"""Pictures: their shape, and the one place where Pillow opens a file (which formats, and how large it may be)."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from PIL import Image

ImageShape = tuple[int, int, int]  # channels, height, width

# Every other format stays closed: Pillow's reader of EPS, for one, starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
MOST_PIXELS = 50_000_000  # unpacked, Pillow holds 4 bytes for each, twice where colours are converted
MOST_WEBP = 24_000_000  # its decoder holds 16 bytes for each
_QUIET = threading.RLock()  # the filters of warnings belong to the whole process


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow's warnings (of bombs, of damaged notes within pictures) stay inside: an error says what matters."""
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def open_picture(source: str | os.PathLike[str] | BinaryIO, formats: Sequence[str] = FORMATS) -> Iterator[Image.Image]:
    """The picture with its size known and nothing decoded; of several frames the first. Errors are Pillow's own."""
    try:
        picture = Image.open(source, formats=tuple(formats))
    except Image.UnidentifiedImageError:
        raise ValueError(f"damaged, or none of {', '.join(formats)}") from None
    except Image.DecompressionBombError:
        raise ValueError(_too_large("far")) from None
    with picture:
        width, height = picture.size
        if width * height > (most := MOST_WEBP if picture.format == "WEBP" else MOST_PIXELS):
            raise ValueError(_too_large(f"{width:,} x {height:,} pixels,", most))
        yield picture


def _too_large(size: str, most: int = MOST_PIXELS) -> str:
    return f"{size} more than the {most // 10**6} million pixels that are read; save it smaller"


# What EXIF's note 274 says of how the camera was held, and what undoes it.
_TURNS = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
          5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
          8: Image.Transpose.ROTATE_90}
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
