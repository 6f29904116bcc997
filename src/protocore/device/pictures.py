"""Pictures as a device has them, as the graph wants them: uint8 (N, channels, height, width)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from protocore.errors import DataError, UserError, shown

if TYPE_CHECKING:
    from PIL import Image

Shape = tuple[int, int, int]
# In words, for the metadata: what `protocore.pictures.fitted` does, here and at home.
RESIZE = ("upright by EXIF; what is transparent on white; scaled bilinearly with antialiasing until both sides reach "
          "the size and one of them is equal to it; the middle cut out")
_LARGE = 4_000_000  # pixels, as at home


def as_pictures(given: Any, shape: Shape) -> np.ndarray:
    """An array that fits already, or paths of picture files and Pillow's pictures, which are made to fit."""
    if isinstance(given, str | os.PathLike) or hasattr(given, "convert"):
        given = [given]
    if isinstance(given, Sequence) and given and not hasattr(given[0], "shape"):
        return np.stack([_one(one, shape) for one in given])
    x = np.asarray(given)
    if x.ndim != 4 or x.shape[1:] != shape:
        last = x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == shape
        hint = ": channels come first, as .transpose(0, 3, 1, 2) puts them" if last else \
            ": one picture is images[None]" if x.shape == shape else ""
        raise UserError(f"pictures must have shape (N, {', '.join(map(str, shape))}); met {x.shape}{hint}")
    if x.dtype != np.uint8:
        raise UserError(f"pictures must be uint8, 0 to 255; met {x.dtype}")
    return np.ascontiguousarray(x)


def _one(given: Any, shape: Shape) -> np.ndarray:
    if not isinstance(given, str | os.PathLike):
        if not hasattr(given, "convert"):
            raise UserError(f"a picture must be a path or a picture of Pillow's; met {shown(given)}")
        try:
            return _fitted(given, shape)
        except ValueError as error:
            raise UserError(f"a picture cannot be made to fit: {error}") from None
    try:
        from protocore.pictures import open_picture, quiet
    except ImportError:
        raise UserError(f"{given}: picture files are read with Pillow, which is not installed; install pillow, or "
                        "give arrays") from None
    with quiet():
        try:
            with open_picture(given) as picture:
                if math.prod(picture.size) > _LARGE:  # a JPEG is then unpacked at a half, a quarter or an eighth
                    side = 4 * max(shape[1:])
                    picture.draft(None, (side, side))
                return _fitted(picture, shape)
        except (OSError, ValueError, SyntaxError, MemoryError) as error:
            raise DataError(f"{given}: cannot read this picture ({error}); give another one") from None


def _fitted(picture: Image.Image, shape: Shape) -> np.ndarray:
    from protocore.pictures import fitted, turn_of

    if shape[0] not in (1, 3):
        raise UserError(f"this learner takes {shape[0]} channels, which picture files do not have; give arrays")
    return fitted(picture, shape, turn_of(picture))
