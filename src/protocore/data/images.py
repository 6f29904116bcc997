"""Images held in arrays, memory maps or picture files, all read through one method: `take`."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from protocore.errors import DataError

_CHUNK_BYTES = 8 << 20
_POOL_FROM = 32  # pictures; below this, starting threads costs more than they save
_LONGEST = 50  # sides a picture may have relative to each other before resizing it would fill the memory


class Images(ABC):
    """A fixed sequence of equally shaped uint8 images."""

    shape: tuple[int, int, int]  # channels, height, width

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """A fresh, writable, contiguous uint8 array (n, channels, height, width)."""

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        rows = np.asarray(indices)
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise TypeError(f"take needs a vector of integers, got {rows.dtype} of shape {rows.shape}")
        rows = rows.astype(np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"take: indices {rows.min()} to {rows.max()}, but there are {len(self)} images")
        return rows


class ArrayImages(Images):
    """A uint8 array or memory map (n, channels, height, width) of any strides, kept without a copy."""

    def __init__(self, array: np.ndarray) -> None:
        if array.ndim != 4 or array.dtype != np.uint8:
            raise TypeError(f"need uint8 (n, channels, height, width), got {array.dtype} {array.shape}")
        self._array = np.asarray(array)
        self.shape = (array.shape[1], array.shape[2], array.shape[3])

    def __len__(self) -> int:
        return len(self._array)

    def take(self, indices: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._array[self._rows(indices)])


class JoinedImages(Images):
    """Several sources one after the other, such as the five training files of CIFAR-10."""

    def __init__(self, parts: Sequence[Images]) -> None:
        if len({part.shape for part in parts}) != 1:
            raise TypeError(f"joined images must have one shape, got {[part.shape for part in parts]}")
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape = parts[0].shape

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, indices: np.ndarray) -> np.ndarray:
        rows = self._rows(indices)
        owner = np.searchsorted(self._ends, rows, side="right")
        out = np.empty((len(rows), *self.shape), np.uint8)
        for number in np.unique(owner):
            part, mine = self._parts[number], owner == number
            out[mine] = part.take(rows[mine] - (self._ends[number] - len(part)))
        return out


class FileImages(Images):
    """Picture files decoded when taken: the shorter side resized to `size`, then the centre cut out."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], size: int, channels: int = 3) -> None:
        if channels not in (1, 3) or size < 1:
            raise ValueError(f"need 1 or 3 channels and a size of at least 1, got {channels} and {size}")
        self._paths = tuple(os.fspath(path) for path in paths)
        self.shape = (channels, size, size)

    def __len__(self) -> int:
        return len(self._paths)

    def take(self, indices: np.ndarray) -> np.ndarray:
        rows = self._rows(indices)
        out = np.empty((len(rows), *self.shape), np.uint8)

        def decode(place: int) -> None:
            out[place] = _decoded(self._paths[rows[place]], self.shape)

        if len(rows) < _POOL_FROM:
            for place in range(len(rows)):
                decode(place)
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for _ in pool.map(decode, range(len(rows))):
                    pass  # draining the iterator is what raises a thread's error here
        return out


def _decoded(path: str, shape: tuple[int, int, int]) -> np.ndarray:
    channels, size, _ = shape
    try:
        with Image.open(path) as picture:
            if picture.mode[0] in "IF":
                raise ValueError(f"pixels of more than 8 bits (mode {picture.mode}); save it with 8 bits")
            width, height = picture.size
            short = min(width, height)
            if max(width, height) > _LONGEST * short:
                raise ValueError(f"{width} x {height} pixels is too narrow to cut a square from")
            plain = picture.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # Pillow's plugins raise nearly every kind on damaged bytes
        raise DataError(f"{path}: cannot read this picture ({error}); replace or remove it") from error
    if short != size:
        width, height = round(width * size / short), round(height * size / short)
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    square = np.asarray(plain.crop((left, top, left + size, top + size)))
    return square.reshape(size, size, channels).transpose(2, 0, 1)


def blocks(images: Images) -> Iterator[tuple[int, np.ndarray]]:
    """All images in order, a few megabytes at a time, each block with the index of its first image."""
    step = max(1, _CHUNK_BYTES // math.prod(images.shape))
    for start in range(0, len(images), step):
        yield start, images.take(np.arange(start, min(start + step, len(images))))


def cached(images: Images, key: str, folder: Path,
           progress: Callable[[int, int], None] | None = None) -> ArrayImages:
    """The same images from one memory-mapped .npy in `folder`, written on the first call.

    `key` names the content (a digest); the image shape is part of the file name. A file that is cut short or
    of another shape is made again. `progress` is told the images done and the images in all.
    """
    if not re.fullmatch(r"[\w-][\w.-]*", key, re.ASCII):
        raise ValueError(f"cache key {key!r} must be letters, digits, '_', '-' and '.'")
    if not len(images):
        return ArrayImages(np.empty((0, *images.shape), np.uint8))
    path = Path(folder) / f"{key}-{'x'.join(map(str, images.shape))}.npy"
    wanted = (len(images), *images.shape)
    try:
        found = _mapped(path, wanted)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(images, path, wanted, progress)
            found = _mapped(path, wanted)
    except OSError as error:
        raise DataError(f"{path}: cannot keep the decoded images there ({error}); choose a folder that "
                        "is writable and has room") from error
    if found is None:
        raise DataError(f"{path}: changed while it was being written; run again")
    return ArrayImages(found)


def _mapped(path: Path, wanted: tuple[int, ...]) -> np.ndarray | None:
    """The cache file if it is sound; otherwise it is removed."""
    if not path.exists():
        return None
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError):  # not a header of numpy, or shorter than its header says
        array = None
    if (array is not None and array.shape == wanted and array.dtype == np.uint8 and array.flags.c_contiguous
            and path.stat().st_size == array.offset + array.nbytes):
        return array
    path.unlink(missing_ok=True)
    return None


def _write(images: Images, path: Path, wanted: tuple[int, ...],
           progress: Callable[[int, int], None] | None) -> None:
    need, free = math.prod(wanted), shutil.disk_usage(path.parent).free
    if need > free:  # a memory map on a full disk ends in a bus error, not in an exception
        raise OSError(f"{need} bytes are needed, {free} are free")
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        array = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=wanted)
        for start, block in blocks(images):
            array[start:start + len(block)] = block
            if progress is not None:
                progress(start + len(block), len(images))
        array.flush()
        del array
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels; `digest` is a sha256 over what identifies the data."""

    images: Images
    labels: np.ndarray
    class_names: tuple[str, ...]
    digest: str

    def __post_init__(self) -> None:
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise DataError(f"labels must be an int64 vector, got {self.labels.dtype} {self.labels.shape}")
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images but {len(self.labels)} labels")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.class_names)))
        if wrong.size:
            raise DataError(f"image {wrong[0]} has label {self.labels[wrong[0]]}, "
                            f"but there are {len(self.class_names)} class names")


def array_set(images: Images, labels: np.ndarray, class_names: Sequence[str]) -> ImageSet:
    """A set identified by its shape, labels and pixels."""
    digest = hashlib.sha256(repr((len(images), *images.shape)).encode())
    digest.update(np.ascontiguousarray(labels, "<i8").data)
    for _, block in blocks(images):
        digest.update(block.data)
    return ImageSet(images, labels, tuple(class_names), digest.hexdigest())


def file_set(base: Path, files: Sequence[tuple[str, int, int]], class_names: Sequence[str], size: int,
             channels: int = 3) -> ImageSet:
    """A set of picture files, given as (name relative to `base`, bytes, label) and identified by these."""
    digest = hashlib.sha256()
    for name, length, label in files:
        digest.update(f"{name}\0{length}\0{label}\n".encode())
    images = FileImages([os.path.join(base, name) for name, _, _ in files], size, channels)
    labels = np.array([label for _, _, label in files], np.int64)
    return ImageSet(images, labels, tuple(class_names), digest.hexdigest())
