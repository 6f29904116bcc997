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
MOST_PIXELS = 50_000_000  # unpacked, Pillow holds 4 bytes for each
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
        if width * height > MOST_PIXELS:
            raise ValueError(_too_large(f"{width:,} x {height:,} pixels,"))
        yield picture


def _too_large(size: str) -> str:
    return f"{size} more than the {MOST_PIXELS // 10**6} million pixels that are read; save it smaller"
