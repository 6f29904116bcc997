"""CIFAR's two formats: binary records, which are mapped as they lie, and pickles, of which nothing is run."""

from __future__ import annotations

import math
import mmap
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from protocore.data.images import ArrayImages, Images, ImageSet, JoinedImages, array_set
from protocore.data.reading import AGAIN, MOST_LABELS, checked_names, file_length, refuse_label, utf8
from protocore.errors import DataError, printable, shown

_PIXELS = 3 * 32 * 32  # one picture
_MOST_PICKLE = 256 << 20  # bytes; the largest of CIFAR's has 155 million
_MOST_STEPS = 1_000_000  # instructions of a pickle; CIFAR's have some hundred thousand


def joined(parts: Sequence[tuple[Images, np.ndarray]], names: Sequence[str]) -> ImageSet:
    images = parts[0][0] if len(parts) == 1 else JoinedImages([images for images, _ in parts])
    return array_set(images, np.concatenate([labels for _, labels in parts]), names)


def records(path: Path, limits: tuple[int, ...]) -> tuple[Images, np.ndarray]:
    """Records of one byte for each limit (the last is the label), then the pixels, left where they are."""
    record = len(limits) + _PIXELS
    length = file_length(path)
    if length == 0 or length % record:
        raise DataError(f"{path}: {length} bytes, expected a multiple of {record} (whole records); the file "
                        f"is cut short or not CIFAR's: {AGAIN}")
    if length // record > MOST_LABELS:
        raise DataError(f"{path}: {length // record:,} records, where at most {MOST_LABELS:,} are read")
    table = np.memmap(path, np.uint8, "r").reshape(-1, record)
    for column, limit in enumerate(limits):
        wrong = np.flatnonzero(table[:, column] >= limit)
        if wrong.size:
            refuse_label(path, int(wrong[0]), int(table[wrong[0], column]), limit)
    labels = table[:, len(limits) - 1].astype(np.int64)
    images = ArrayImages(table[:, len(limits):].reshape(-1, 3, 32, 32))
    images.release()  # a label lies on every page
    return images, labels


def batch(path: Path, key: str, classes: int) -> tuple[Images, np.ndarray]:
    content = restricted_load(path)
    pixels, labels = content.get("data"), content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise DataError(f"{path}: 'data' must be a uint8 array (n, {_PIXELS}), met {_kind(pixels)}")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
        raise DataError(f"{path}: {key!r} must be a list of {len(pixels)} labels, met {_kind(labels)}")
    for record, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < classes:
            refuse_label(path, record, label, classes)
    return ArrayImages(pixels.reshape(-1, 3, 32, 32)), np.array(labels, np.int64)


def pickled_names(path: Path, key: str, count: int) -> tuple[str, ...]:
    names = restricted_load(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names, met {_kind(names)}")
    texts = (utf8(name, path) if isinstance(name, bytes) else name for name in names)
    return checked_names(path, texts, count)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array {value.shape}"
    return f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__


# CIFAR's pickles, read without running anything of theirs: each global that numpy's pickles name is played by
# a stand-in that checks its arguments, so numpy's own unpickling never sees the file. They are classes with a
# __setstate__ of their own because the BUILD instruction would set attributes on a plain function.


class _Dtype:
    def __init__(self, code: object, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise ValueError(f"array of type {shown(code)}")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: one byte has neither."""


class _Array:
    value: np.ndarray | None = None

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("array state of an unknown form")
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes) or type(shape) is not tuple:
            raise ValueError("array state of an unknown form")
        # Few and small sides, before they are multiplied: a product of long numbers takes for ever.
        sound = len(shape) <= 4 and all(type(side) is int and 0 <= side < 1 << 40 for side in shape)
        if not sound or math.prod(shape) != len(raw):
            raise ValueError(f"array of shape {shown(shape)} in {len(raw)} bytes")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Reconstruct:
    def __new__(cls, kind: object, *_: object) -> object:
        if kind is not _Array:
            raise ValueError(f"array of class {shown(kind)}")
        return _Array()

    def __setstate__(self, state: object) -> None:
        raise ValueError("state given to a function")


class _Encode:
    def __new__(cls, text: object, coding: object) -> object:
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise ValueError(f"text coded as {shown(coding)}")
        return text.encode("latin-1")

    def __setstate__(self, state: object) -> None:
        raise ValueError("state given to a function")


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encode,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module_name: str, global_name: str) -> object:
        try:
            return _ADMITTED[module_name, global_name]
        except KeyError:
            asked = printable(f"{module_name}.{global_name}", 100)
            raise DataError(f"{self._path}: asks for {asked}, which no file of CIFAR needs; nothing was run. "
                            "Do not trust this file") from None


def restricted_load(path: Path) -> dict[str, object]:
    """The dictionary of a CIFAR pickle: numbers, text, lists, uint8 arrays; every other global is refused."""
    length = file_length(path)
    if length > _MOST_PICKLE:
        raise DataError(f"{path}: {length:,} bytes, where at most {_MOST_PICKLE:,} are read; {AGAIN}")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # mmap.read gives no more than is there, whatever length the file claims.
            stream = cast(BinaryIO, content)
            _look_through(stream)
            stream.seek(0)
            loaded = _Unpickler(stream, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly every kind
        raise DataError(f"{path}: not a pickle of CIFAR ({printable(str(error), 200)}); {AGAIN}") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: expected a dictionary, met {type(loaded).__name__}")
    odd = next((key for key in loaded if not isinstance(key, str | bytes)), None)
    if odd is not None:
        raise DataError(f"{path}: the key {shown(odd)} is no text, so this is not a pickle of CIFAR; {AGAIN}")
    return {utf8(key, path) if isinstance(key, bytes) else key:
            value.value if isinstance(value, _Array) else value for key, value in loaded.items()}


def _look_through(stream: BinaryIO) -> None:
    """Refuse what would make unpickling long or large although the file is small."""
    memo: set[int] = set()
    tuples: set[int] = set()  # their memo numbers
    before = ""
    for step, (code, argument, position) in enumerate(pickletools.genops(stream), 1):
        if isinstance(argument, int) and argument.bit_length() > 64:
            raise ValueError(f"{shown(argument)} at byte {position}, where a number of at most 64 bits belongs")
        if "PUT" in code.name or code.name == "MEMOIZE":
            number = cast(int, argument) if "PUT" in code.name else len(memo)
            # Honest memo numbers count up, so they stay below their position; a large one makes pickle allocate.
            if number > cast(int, position):
                raise ValueError(f"memo number {number} at byte {position}")
            memo.add(number)
            (tuples.add if "TUPLE" in before else tuples.discard)(number)
        # A tuple of twice the tuple before, and so on: hashing it as a key would never end. Nor has CIFAR sets.
        if code.name in ("DUP", "EMPTY_SET", "FROZENSET") or (code.name.endswith("GET") and argument in tuples):
            raise ValueError(f"the instruction {code.name} at byte {position}, which no file of CIFAR needs")
        if step > _MOST_STEPS:
            raise ValueError(f"more instructions than a file of CIFAR has, at byte {position}")
        before = code.name
