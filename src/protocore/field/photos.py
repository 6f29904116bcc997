"""Picture files as one array of the learner's size, decoded once; those that cannot be read are named."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from protocore.data.images import ArrayImages, FileImages, Images, blocks_of
from protocore.pictures import ImageShape

IN_MEMORY = 256 << 20  # bytes; what is larger lies in a file without a name, gone with the process


def decoded(paths: Sequence[Path], hashes: Sequence[str] | None, shape: ImageShape,
            progress: Callable[[int, int], None]) -> tuple[Images, dict[int, str]]:
    """uint8 pictures of this shape, and why some of them could not be read (they are black).

    A file that has changed since its sha256 was taken is an error.
    """
    files = FileImages(paths, shape[1:], shape[0], hashes, upright=True)
    array, bad = _room((len(files), *shape)), dict[int, str]()
    for rows in blocks_of(files):
        array[rows], outcomes = files.attempt(rows)
        bad |= {row: outcome for row, outcome in zip(rows.tolist(), outcomes, strict=True) if isinstance(outcome, str)}
        progress(int(rows[-1]) + 1, len(files))
    return ArrayImages(array), bad


def _room(shape: tuple[int, ...]) -> np.ndarray:
    if math.prod(shape) <= IN_MEMORY:
        return np.empty(shape, np.uint8)
    with tempfile.TemporaryFile(prefix="protocore-") as file:  # the map keeps what the closed file holds
        file.truncate(math.prod(shape))
        return np.memmap(file, np.uint8, "r+", shape=shape)
