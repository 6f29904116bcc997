"""Images held in arrays, memory maps or picture files, all read through one method: `take`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from protocore.data.bombs import refuse_bombs
from protocore.errors import DataError, printable
from protocore.files import read_bytes
from protocore.pictures import ImageShape, check_sides, fitted, open_picture, quiet, turn_of

MOST_BYTES = 256 << 20  # of a picture file
Outcome = tuple[int, int] | str  # width and height of a picture, or why it cannot be read
_CHUNK_BYTES = 8 << 20
_POOL_FROM = 32  # pictures; below this, starting threads costs more than they save
_MOST_THREADS = 8
_LARGE = 4_000_000  # pixels or bytes; of pictures above it one is decoded at a time, to keep within memory
_ONE_LARGE = threading.RLock()
_LISTED = 10  # bad files that an error names


class Images(ABC):
    """A fixed sequence of equally shaped uint8 images."""

    shape: ImageShape

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: np.ndarray) -> np.ndarray:
        """A fresh, writable, contiguous uint8 array (n, channels, height, width)."""

    def attempt(self, indices: np.ndarray) -> tuple[np.ndarray, list[Outcome]]:
        """As `take`, and for each image the size it had, or why it could not be read (it is black then)."""
        _, height, width = self.shape
        return self.take(indices), [(width, height)] * len(indices)

    def release(self) -> None:  # noqa: B027  # most have none
        """Give the pages of a mapped file back, which else count as memory of ours once they were read."""

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

    def release(self) -> None:
        base: object = self._array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
            base.madvise(mmap.MADV_DONTNEED)


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

    def release(self) -> None:
        for part in self._parts:
            part.release()


class ChosenImages(Images):
    """Some images of a source, in the order given."""

    def __init__(self, source: Images, rows: Sequence[int] | np.ndarray) -> None:
        self.source, self.rows, self.shape = source, np.asarray(rows, np.int64), source.shape

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: np.ndarray) -> np.ndarray:
        return self.source.take(self.rows[self._rows(indices)])


class FileImages(Images):
    """Picture files decoded when taken: resized to just cover `size` (a side, or height and width), then the centre
    cut out.

    `hashes` are the sha256 of the files as they were first read ("": not readable, None: not looked at); a file that
    has changed since is an error and never another picture in silence. `upright`: as the camera was held, which JPEGs
    note in their EXIF.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], size: int | tuple[int, int], channels: int = 3,
                 hashes: Sequence[str | None] | None = None, upright: bool = False) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        if channels not in (1, 3) or min(height, width) < 1:
            raise ValueError(f"need 1 or 3 channels and a size of at least 1, got {channels} and {size}")
        self.paths = tuple(os.fspath(path) for path in paths)
        self.hashes = tuple(hashes) if hashes is not None else (None,) * len(self.paths)
        self.shape, self.upright = (channels, height, width), upright

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, indices: np.ndarray) -> np.ndarray:
        out, outcomes = self.attempt(indices)
        refuse_pictures([(self.paths[row], outcome) for row, outcome in zip(indices, outcomes, strict=True)
                         if isinstance(outcome, str)])
        return out

    def attempt(self, indices: np.ndarray) -> tuple[np.ndarray, list[Outcome]]:
        rows = self._rows(indices)
        out = np.zeros((len(rows), *self.shape), np.uint8)

        def decode(place: int) -> Outcome:
            path = self.paths[rows[place]]
            try:
                out[place], size = _decoded(Path(path), self.hashes[rows[place]], self.shape, self.upright)
            except (_ChangedError, MemoryError):
                raise
            except Exception as error:  # Pillow's plugins raise nearly every kind on damaged bytes
                return printable(str(error).removeprefix(f"{path}: ") or type(error).__name__, 200)
            return size

        with quiet():
            if len(rows) < _POOL_FROM:
                return out, [decode(place) for place in range(len(rows))]
            with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
                return out, list(pool.map(decode, range(len(rows))))


def refuse_pictures(bad: Sequence[tuple[str, str]]) -> None:
    """One error for all pictures that cannot be read, given as (path, reason)."""
    if len(bad) == 1:
        raise DataError(f"{bad[0][0]}: cannot read this picture ({bad[0][1]}); replace or remove it")
    if bad:
        raise DataError(f"{len(bad):,} pictures cannot be read; replace or remove them:\n"
                        + listed(f"{path}: {reason}" for path, reason in bad))


def listed(lines: Iterable[str]) -> str:
    """The first ten, one a line, and how many more there are."""
    every = [f"  {printable(line, 300)}" for line in lines]
    more = [f"  and {len(every) - _LISTED:,} more"] if len(every) > _LISTED else []
    return "\n".join(every[:_LISTED] + more)


class _ChangedError(DataError):
    """A file is no longer what was read at first: nothing may be concluded about it, and nothing kept."""


def _decoded(path: Path, expected: str | None, shape: ImageShape,
             upright: bool) -> tuple[np.ndarray, tuple[int, int]]:
    changed = f"{path}: changed while it was being read; run again"
    with _one_at_a_time(os.path.exists(path) and os.path.getsize(path) > _LARGE):
        try:
            data = read_bytes(path, MOST_BYTES)
        except DataError as error:
            raise _ChangedError(changed) if expected else error from None
        if expected is not None and hashlib.sha256(data).hexdigest() != expected:
            raise _ChangedError(changed)
        refuse_bombs(data)
        with open_picture(io.BytesIO(data)) as picture:
            size = picture.size
            large = math.prod(size) > _LARGE or len(data) > _LARGE
            with _one_at_a_time(large):
                return _square(picture, shape, large, turn_of(picture) if upright else None), size


def _one_at_a_time(large: bool) -> contextlib.AbstractContextManager[object]:
    return _ONE_LARGE if large else contextlib.nullcontext()


def _square(picture: Image.Image, shape: ImageShape, large: bool, turn: Image.Transpose | None) -> np.ndarray:
    check_sides(picture)
    if large:  # a JPEG is then unpacked at half, a quarter or an eighth of its sides; other formats as they are
        side = 4 * max(shape[1:])
        picture.draft(None, (side, side))
    picture.load()
    return fitted(picture, shape, turn)


def blocks(images: Images) -> Iterator[tuple[int, np.ndarray]]:
    """All images in order, a few megabytes at a time, each block with the index of its first image."""
    for rows in blocks_of(images):
        yield int(rows[0]), images.take(rows)


def blocks_of(images: Images) -> Iterator[np.ndarray]:
    """All row numbers in order, in blocks of a few megabytes of images."""
    step = max(1, _CHUNK_BYTES // math.prod(images.shape))
    for start in range(0, len(images), step):
        yield np.arange(start, min(start + step, len(images)))


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with their labels; `digest` is a sha256 over what identifies the data."""

    images: Images
    labels: np.ndarray
    class_names: tuple[str, ...]
    digest: str
    notes: tuple[str, ...] = ()  # what a user should know: how much was read, what was left out

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
        images.release()
    return ImageSet(images, labels, tuple(class_names), digest.hexdigest())


def file_set(base: Path, files: Sequence[tuple[str, int, int]], class_names: Sequence[str], size: int,
             channels: int = 3, hashed: bool = True, upright: bool = False) -> ImageSet:
    """A set of picture files, given as (name relative to `base`, bytes, label).

    Names, labels and the content of the files identify it: all of them are read here. Without `hashed` their lengths
    stand for the content, for sets that nobody reads through at every start.
    """
    paths = [os.path.join(base, name) for name, _, _ in files]
    hashes = [content_hash(Path(path)) for path in paths] if hashed else [None] * len(paths)
    digest = files_digest([(name, found if hashed else str(length), label)
                           for (name, length, label), found in zip(files, hashes, strict=True)])
    labels = np.array([label for _, _, label in files], np.int64)
    return ImageSet(FileImages(paths, size, channels, hashes, upright), labels, tuple(class_names), digest)


def content_hash(path: Path) -> str:
    """The sha256 of a file, or "" where it cannot be read; reading it as a picture then says why."""
    try:
        return hashlib.sha256(read_bytes(path, MOST_BYTES)).hexdigest()
    except DataError:
        return ""


def files_digest(files: Iterable[tuple[str, str | None, int]]) -> str:
    """The digest of (name, what identifies the content, label)."""
    digest = hashlib.sha256()
    for name, content, label in files:
        digest.update(f"{name}\0{content}\0{label}\n".encode())
    return digest.hexdigest()
