"""Readers of the data sets' own formats. Each gives (train, test); what it cannot trust it refuses by name.

Labels follow the files.
"""

from __future__ import annotations

import gzip
import math
import mmap
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from protocore.data.images import ArrayImages, Images, ImageSet, JoinedImages, array_set
from protocore.data.reading import Pair, checked_names, data_folder, file_length, missing_data, names_in, utf8
from protocore.errors import DataError, printable, shown

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
           "Ankle boot")
DIGITS = tuple("0123456789")

_PIXELS = 3 * 32 * 32  # one CIFAR picture
_AGAIN = "delete it and get it again (`protocore data get`)"
_DEFLATE = 1032  # no deflate stream grows by more than this factor
_MOST_PICKLE = 256 << 20  # bytes; the largest of CIFAR's has 155 million
_MOST_STEPS = 1_000_000  # instructions of a pickle; CIFAR's have some hundred thousand
_MOST_UNPACKED = 512 << 20  # bytes of a gzipped IDX file, which are held in memory
_MOST_LABELS = 50_000_000


def read_digits() -> Pair:
    """scikit-learn's 8x8 digits; the test set is every 5th image of each class, in file order."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    pixels, target = load_digits(return_X_y=True)
    grey = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = target.astype(np.int64)
    in_test = np.zeros(len(labels), bool)
    for label in range(10):
        in_test[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (array_set(ArrayImages(grey[rows]), labels[rows], DIGITS) for rows in (~in_test, in_test))
    return train, test


# CIFAR


def read_cifar10(root: Path) -> Pair:
    """CIFAR-10 from cifar-10-batches-bin (memory-mapped) or cifar-10-batches-py below `root`."""
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    folder = Path(root) / "cifar-10-batches-bin"
    if folder.is_dir():
        names = names_in(folder / "batches.meta.txt", 10)
        train, test = ([_records(folder / f"{part}.bin", (10,)) for part in parts]
                       for parts in (batches, ["test_batch"]))
    else:
        folder = data_folder(root, "cifar10", "cifar-10-batches-bin", "cifar-10-batches-py")
        names = _pickled_names(folder / "batches.meta", "label_names", 10)
        train, test = ([_batch(folder / part, "labels", 10) for part in parts]
                       for parts in (batches, ["test_batch"]))
    return _joined(train, names), _joined(test, names)


def read_cifar100(root: Path) -> Pair:
    """CIFAR-100, fine labels, from cifar-100-binary (memory-mapped) or cifar-100-python below `root`."""
    folder = Path(root) / "cifar-100-binary"
    if folder.is_dir():
        names = names_in(folder / "fine_label_names.txt", 100)
        train, test = (_records(folder / part, (20, 100)) for part in ("train.bin", "test.bin"))
    else:
        folder = data_folder(root, "cifar100", "cifar-100-binary", "cifar-100-python")
        names = _pickled_names(folder / "meta", "fine_label_names", 100)
        train, test = (_batch(folder / part, "fine_labels", 100) for part in ("train", "test"))
    return _joined([train], names), _joined([test], names)


def _joined(parts: Sequence[tuple[Images, np.ndarray]], names: Sequence[str]) -> ImageSet:
    images = parts[0][0] if len(parts) == 1 else JoinedImages([images for images, _ in parts])
    return array_set(images, np.concatenate([labels for _, labels in parts]), names)


def _records(path: Path, limits: tuple[int, ...]) -> tuple[Images, np.ndarray]:
    """Records of one byte for each limit (the last is the label), then the pixels, left where they are."""
    record = len(limits) + _PIXELS
    length = file_length(path)
    if length == 0 or length % record:
        raise DataError(f"{path}: {length} bytes, expected a multiple of {record} (whole records); the file "
                        f"is cut short or not CIFAR's: {_AGAIN}")
    table = np.memmap(path, np.uint8, "r").reshape(-1, record)
    for column, limit in enumerate(limits):
        wrong = np.flatnonzero(table[:, column] >= limit)
        if wrong.size:
            _refuse_label(path, int(wrong[0]), int(table[wrong[0], column]), limit)
    images = ArrayImages(table[:, len(limits):].reshape(-1, 3, 32, 32))
    return images, table[:, len(limits) - 1].astype(np.int64)


def _refuse_label(path: Path, record: int, value: object, limit: int) -> None:
    raise DataError(f"{path}: record {record} has label {shown(value)}, expected 0 to {limit - 1}; "
                    f"the file is damaged: {_AGAIN}")


def _batch(path: Path, key: str, classes: int) -> tuple[Images, np.ndarray]:
    content = restricted_load(path)
    pixels, labels = content.get("data"), content.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise DataError(f"{path}: 'data' must be a uint8 array (n, {_PIXELS}), met {_kind(pixels)}")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
        raise DataError(f"{path}: {key!r} must be a list of {len(pixels)} labels, met {_kind(labels)}")
    for record, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < classes:
            _refuse_label(path, record, label, classes)
    return ArrayImages(pixels.reshape(-1, 3, 32, 32)), np.array(labels, np.int64)


def _pickled_names(path: Path, key: str, count: int) -> tuple[str, ...]:
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
        raise DataError(f"{path}: {length:,} bytes, where at most {_MOST_PICKLE:,} are read; {_AGAIN}")
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
        raise DataError(f"{path}: not a pickle of CIFAR ({printable(str(error), 200)}); {_AGAIN}") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: expected a dictionary, met {type(loaded).__name__}")
    odd = next((key for key in loaded if not isinstance(key, str | bytes)), None)
    if odd is not None:
        raise DataError(f"{path}: the key {shown(odd)} is no text, so this is not a pickle of CIFAR; {_AGAIN}")
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


# MNIST and Fashion-MNIST


def read_idx(folder: Path, class_names: Sequence[str] | None = None) -> Pair:
    """MNIST's four IDX files, gzipped or not.

    IDX holds no class names: if none are given, a folder named fashion-mnist has Fashion-MNIST's, any other
    the ten digits.
    """
    folder = Path(folder)
    names = class_names or (FASHION if folder.name == "fashion-mnist" else DIGITS)
    pairs = []
    for part in ("train", "t10k"):
        paths = [_idx_path(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        pixels, labels = read_idx_file(paths[0], 3), read_idx_file(paths[1], 1)
        if len(pixels) != len(labels):
            raise DataError(f"{paths[0]} has {len(pixels)} images but {paths[1]} has {len(labels)} labels; "
                            f"they are not of one set: {_AGAIN}")
        wrong = np.flatnonzero(labels >= len(names))
        if wrong.size:
            _refuse_label(paths[1], int(wrong[0]), int(labels[wrong[0]]), len(names))
        pairs.append(array_set(ArrayImages(pixels[:, None]), labels.astype(np.int64), names))
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
            if dims == 1 and _MOST_LABELS < expected <= max(length, _DEFLATE * length * packed):
                raise DataError(f"{path}: {expected:,} labels, where at most {_MOST_LABELS:,} are read")
            if not packed:
                if length != start + expected:
                    raise DataError(f"{path}: {length} bytes, but its header announces "
                                    f"{start + expected}; {_AGAIN}")
                return np.memmap(path, np.uint8, "r", start, shape)
            if expected > _DEFLATE * length:
                raise DataError(f"{path}: its header announces {start + expected} bytes, more than {length} "
                                f"compressed bytes can hold; {_AGAIN}")
            if expected > _MOST_UNPACKED:
                raise DataError(f"{path}: its header announces {start + expected:,} bytes, where at most "
                                f"{_MOST_UNPACKED:,} are unpacked into memory; unpack the file with `gunzip`: a plain "
                                "file of any size is read where it lies")
            body = bytearray()
            while len(body) <= expected and (block := file.read(min(1 << 20, expected + 1 - len(body)))):
                body += block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); {_AGAIN}") from error
    if len(body) != expected:
        met = "more" if len(body) > expected else str(start + len(body))
        raise DataError(f"{path}: holds {met} bytes, but its header announces {start + expected}; {_AGAIN}")
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
