"""MNIST's format, IDX: a header of lengths, then bytes; gzipped or not. What it announces is checked, not trusted."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protocore.data.base import Content, Download, Pair, Source
from protocore.data.images import ArrayImages, array_set
from protocore.data.reading import AGAIN, MOST_LABELS, file_length, missing_data, refuse_label
from protocore.errors import DataError

_DEFLATE = 1032  # no deflate stream grows by more than this factor
_MOST_UNPACKED = 512 << 20  # bytes of a gzipped file, which are held in memory


def idx_source(name: str, url: str, class_names: Sequence[str],
               files: tuple[tuple[str, int, str, int, str], ...]) -> Source:
    """From rows of (name, bytes and md5 of NAME.gz, bytes and sha256 of NAME)."""
    return Source(
        name, lambda root: read_idx(root / name, class_names), (60000, 10000), name, url,
        files=tuple(Download(f"{file}.gz", size, f"md5:{md5}") for file, size, md5, _, _ in files),
        contents=tuple(Content(file, size, sha256) for file, _, _, size, sha256 in files))


def read_idx(folder: Path, class_names: Sequence[str]) -> Pair:
    """The four files of a data set in MNIST's manner; the format holds no class names."""
    pairs = []
    for part in ("train", "t10k"):
        paths = [_idx_path(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        pixels, labels = read_idx_file(paths[0], 3), read_idx_file(paths[1], 1)
        if len(pixels) != len(labels):
            raise DataError(f"{paths[0]} has {len(pixels)} images but {paths[1]} has {len(labels)} labels; "
                            f"they are not of one set: {AGAIN}")
        wrong = np.flatnonzero(labels >= len(class_names))
        if wrong.size:
            refuse_label(paths[1], int(wrong[0]), int(labels[wrong[0]]), len(class_names))
        pairs.append(array_set(ArrayImages(pixels[:, None]), labels.astype(np.int64), class_names))
    return pairs[0], pairs[1]


def _idx_path(folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    raise missing_data(folder.name, f"{stem}.gz (or {stem})", folder)


def read_idx_file(path: Path, dims: int) -> np.ndarray:
    """The bytes of an IDX file of 3 (images) or 1 (labels) dimensions; mapped where it is not compressed."""
    length, start = file_length(path), 4 + 4 * dims
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            head = file.read(start)
            shape = _idx_shape(path, head, dims)
            expected = math.prod(shape)
            if dims == 1 and MOST_LABELS < expected <= max(length, _DEFLATE * length * packed):
                raise DataError(f"{path}: {expected:,} labels, where at most {MOST_LABELS:,} are read")
            if not packed:
                if length != start + expected:
                    raise DataError(f"{path}: {length} bytes, but its header announces "
                                    f"{start + expected}; {AGAIN}")
                return np.memmap(path, np.uint8, "r", start, shape)
            if expected > _DEFLATE * length:
                raise DataError(f"{path}: its header announces {start + expected} bytes, more than {length} "
                                f"compressed bytes can hold; {AGAIN}")
            if expected > _MOST_UNPACKED:
                raise DataError(f"{path}: its header announces {start + expected:,} bytes, where at most "
                                f"{_MOST_UNPACKED:,} are unpacked into memory; unpack the file with `gunzip`: a plain "
                                "file of any size is read where it lies")
            body = bytearray()
            while len(body) <= expected and (block := file.read(min(1 << 20, expected + 1 - len(body)))):
                body += block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); {AGAIN}") from error
    if len(body) != expected:
        met = "more" if len(body) > expected else str(start + len(body))
        raise DataError(f"{path}: holds {met} bytes, but its header announces {start + expected}; {AGAIN}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _idx_shape(path: Path, head: bytes, dims: int) -> tuple[int, ...]:
    magic, wanted = int.from_bytes(head[:4], "big"), 0x800 + dims
    if len(head) < 4 + 4 * dims or magic != wanted:
        kinds = {0x803: "images", 0x801: "labels"}
        swapped = f". It holds {kinds[magic]}: are two files swapped?" if magic in {*kinds} - {wanted} else ""
        raise DataError(f"{path}: starts with {head[:4].hex() or 'nothing'}, expected an IDX file of "
                        f"{kinds[wanted]} ({wanted:08x}, then {dims} lengths){swapped}")
    shape = tuple(int.from_bytes(head[at:at + 4], "big") for at in range(4, 4 + 4 * dims, 4))
    if 0 in shape:
        raise DataError(f"{path}: empty, its header announces {' x '.join(map(str, shape))}")
    return shape
