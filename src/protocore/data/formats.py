"""Readers of the data sets' own formats. Each gives (train, test); what it cannot trust it refuses by name.

Labels follow the files; where a folder is a class, classes are in the sorted order of the folder names.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import mmap
import os
import pickle
import pickletools
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from protocore.data.images import ArrayImages, Images, ImageSet, JoinedImages, array_set, file_set
from protocore.errors import DataError

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"})
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
           "Ankle boot")
DIGITS = tuple("0123456789")

_PIXELS = 3 * 32 * 32  # one CIFAR picture
_AGAIN = "delete it and get it again (`protocore data get`)"
_DEFLATE = 1032  # no deflate stream grows by more than this factor

Pair = tuple[ImageSet, ImageSet]


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
        names = _names(folder / "batches.meta.txt", 10)
        train, test = ([_records(folder / f"{part}.bin", (10,)) for part in parts]
                       for parts in (batches, ["test_batch"]))
    else:
        folder = _folder(root, "cifar10", "cifar-10-batches-bin", "cifar-10-batches-py")
        names = _pickled_names(folder / "batches.meta", "label_names", 10)
        train, test = ([_batch(folder / part, "labels", 10) for part in parts]
                       for parts in (batches, ["test_batch"]))
    return _joined(train, names), _joined(test, names)


def read_cifar100(root: Path) -> Pair:
    """CIFAR-100, fine labels, from cifar-100-binary (memory-mapped) or cifar-100-python below `root`."""
    folder = Path(root) / "cifar-100-binary"
    if folder.is_dir():
        names = _names(folder / "fine_label_names.txt", 100)
        train, test = (_records(folder / part, (20, 100)) for part in ("train.bin", "test.bin"))
    else:
        folder = _folder(root, "cifar100", "cifar-100-binary", "cifar-100-python")
        names = _pickled_names(folder / "meta", "fine_label_names", 100)
        train, test = (_batch(folder / part, "fine_labels", 100) for part in ("train", "test"))
    return _joined([train], names), _joined([test], names)


def _joined(parts: Sequence[tuple[Images, np.ndarray]], names: Sequence[str]) -> ImageSet:
    images = parts[0][0] if len(parts) == 1 else JoinedImages([images for images, _ in parts])
    return array_set(images, np.concatenate([labels for _, labels in parts]), names)


def _records(path: Path, limits: tuple[int, ...]) -> tuple[Images, np.ndarray]:
    """Records of one byte for each limit (the last is the label), then the pixels, left where they are."""
    record = len(limits) + _PIXELS
    length = _length(path)
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
    raise DataError(f"{path}: record {record} has label {value}, expected 0 to {limit - 1}; "
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
    texts = (_text(name, path) if isinstance(name, bytes) else name for name in names)
    return _checked_names(path, texts, count)


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
            raise ValueError(f"array of type {code!r}")

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
        if not all(type(side) is int and side >= 0 for side in shape) or math.prod(shape) != len(raw):
            raise ValueError(f"array of shape {shape} in {len(raw)} bytes")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Reconstruct:
    def __new__(cls, kind: object, *_: object) -> object:
        if kind is not _Array:
            raise ValueError(f"array of class {kind!r}")
        return _Array()

    def __setstate__(self, state: object) -> None:
        raise ValueError("state given to a function")


class _Encode:
    def __new__(cls, text: object, coding: object) -> object:
        if not isinstance(text, str) or coding not in ("latin1", "latin-1"):
            raise ValueError(f"text coded as {coding!r}")
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
            raise DataError(f"{self._path}: asks for {module_name}.{global_name}, which no file of CIFAR "
                            "needs; nothing was run. Do not trust this file") from None


def restricted_load(path: Path) -> dict[str, object]:
    """The dictionary of a CIFAR pickle: numbers, text, lists, uint8 arrays; every other global is refused."""
    _length(path)
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # mmap.read gives no more than is there, whatever length the file claims. A memo number is the
            # other claim that makes pickle allocate; honest ones count up, so they stay below their position.
            stream = cast(BinaryIO, content)
            for code, argument, position in pickletools.genops(stream):
                if "PUT" in code.name and cast(int, argument) > cast(int, position):
                    raise ValueError(f"memo number {argument} at byte {position}")
            stream.seek(0)
            loaded = _Unpickler(stream, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly every kind
        raise DataError(f"{path}: not a pickle of CIFAR ({error}); {_AGAIN}") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: expected a dictionary, met {type(loaded).__name__}")
    return {_text(key, path) if isinstance(key, bytes) else str(key):
            value.value if isinstance(value, _Array) else value for key, value in loaded.items()}


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
    raise _missing(folder.name, f"{stem}.gz (or {stem})", folder)


def read_idx_file(path: Path, dims: int) -> np.ndarray:
    """The bytes of an IDX file of 3 (images) or 1 (labels) dimensions; mapped where it is not compressed."""
    length, start = _length(path), 4 + 4 * dims
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            head = file.read(start)
            shape = _idx_shape(path, head, dims)
            expected = math.prod(shape)
            if not packed:
                if length != start + expected:
                    raise DataError(f"{path}: {length} bytes, but its header announces "
                                    f"{start + expected}; {_AGAIN}")
                return np.memmap(path, np.uint8, "r", start, shape)
            if expected > _DEFLATE * length:
                raise DataError(f"{path}: its header announces {start + expected} bytes, more than {length} "
                                f"compressed bytes can hold; {_AGAIN}")
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


# folders of pictures


def read_tiny_imagenet(root: Path) -> Pair:
    """TinyImageNet, 200 classes at 64x64; the official validation set is the test set."""
    base = _folder(root, "tinyimagenet", "tiny-imagenet-200")
    wnids = sorted(_lines(base / "wnids.txt"))
    number = {wnid: label for label, wnid in enumerate(wnids)}
    train = [(f"train/{wnid}/images/{name}", length, label) for wnid, label in number.items()
             for name, length in _pictures(base / "train" / wnid / "images")]
    notes = base / "val" / "val_annotations.txt"
    lengths = dict(_pictures(base / "val" / "images"))
    test = []
    for line_number, line in enumerate(_lines(notes), 1):
        name, wnid = _columns(line)
        if wnid not in number or name not in lengths:
            raise DataError(f"{notes}: line {line_number} gives {name!r} the class {wnid!r}; expected a "
                            "picture of val/images, not yet named, and a class of wnids.txt")
        test.append((f"val/images/{name}", lengths.pop(name), number[wnid]))
    if lengths:
        raise DataError(f"{notes}: no class for {len(lengths)} pictures of val/images, {min(lengths)} first")
    words = base / "words.txt"
    known = dict(_columns(line) for line in _lines(words)) if words.is_file() else {}
    texts = (f"{wnid} {known.get(wnid, '')}".strip() for wnid in wnids)
    names = _checked_names(base / "wnids.txt", texts, len(wnids))
    return file_set(base, train, names, 64), file_set(base, test, names, 64)


def read_imagenet(root: Path, size: int = 224) -> Pair:
    """imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG; the validation set is the test set."""
    base = _folder(root, "imagenet", "imagenet")
    for part in ("train", "val"):
        if not (base / part).is_dir():
            raise _missing("imagenet", f"{part}/WNID/*.JPEG", base)
        if not _class_folders(base / part):
            raise DataError(f"{base / part}: no class folders; expected {part}/WNID/*.JPEG. The flat "
                            "validation folder of ILSVRC is not read: move each picture into the folder of "
                            "its class")
    return _split(base, "train", "val", size)


def read_folder(path: Path, size: int, test_fraction: float = 0.2) -> Pair:
    """Your own pictures, one folder a class.

    Where `path` has train/ and test/ (or val/) these are the split. Otherwise a hash of "class/file" picks
    about `test_fraction` of each class for the test set, so adding pictures leaves the others on their side.
    Only where the hashes would leave one side of a class empty does that side get the picture next in line.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give one that has a folder of pictures for each class")
    if size < 1 or not 0 < test_fraction < 1:
        raise DataError("pictures need a size of at least 1 and a test fraction between 0 and 1, "
                        f"got {size} and {test_fraction}")
    held_out = next((part for part in ("test", "val") if (path / part).is_dir()), None)
    if held_out and (path / "train").is_dir():
        return _split(path, "train", held_out, size)
    train: list[tuple[str, int, int]] = []
    test: list[tuple[str, int, int]] = []
    names = _classes(path)
    for label, name in enumerate(names):
        files = [(f"{name}/{file}", length, label) for file, length in _pictures(path / name)]
        if len(files) < 2:
            raise DataError(f"{path / name}: {len(files)} picture; a class needs at least 2, one to learn "
                            "from and one to test on")
        files.sort(key=lambda file: _share(file[0]))
        cut = sum(_share(file[0]) < test_fraction for file in files)
        cut = min(max(cut, 1), len(files) - 1)
        test += sorted(files[:cut])
        train += sorted(files[cut:])
    return file_set(path, train, names, size), file_set(path, test, names, size)


def _share(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def _split(base: Path, train: str, test: str, size: int) -> Pair:
    names = _classes(base / train)
    if (others := _classes(base / test)) != names:
        odd = sorted(set(names) ^ set(others))
        raise DataError(f"{base}: {train}/ and {test}/ must have the same classes; {len(odd)} are in only "
                        f"one of them, {odd[0]!r} first")
    first, second = ([(f"{part}/{name}/{file}", length, label) for label, name in enumerate(names)
                      for file, length in _pictures(base / part / name)] for part in (train, test))
    return file_set(base, first, names, size), file_set(base, second, names, size)


def _classes(folder: Path) -> tuple[str, ...]:
    names = _class_folders(folder)
    if not names:
        raise DataError(f"{folder}: no class folders; put the pictures of each class into one named after it")
    return names


def _class_folders(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        return tuple(sorted(_utf8(entry) for entry in entries if entry.is_dir() and entry.name[0] != "."))


def _pictures(folder: Path) -> list[tuple[str, int]]:
    """Name and length of each picture file, sorted by name; other files are passed over."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; the data set is incomplete: get it again")
    with os.scandir(folder) as entries:
        found = sorted((_utf8(entry), entry.stat().st_size) for entry in entries
                       if os.path.splitext(entry.name)[1].lower() in PICTURES and entry.name[0] != "."
                       and entry.is_file())
    if not found:
        raise DataError(f"{folder}: no pictures ({' '.join(sorted(PICTURES))}); add some or remove it")
    return found


def _utf8(entry: os.DirEntry[str]) -> str:
    _text(os.fsencode(entry.name), Path(entry.path))
    return entry.name


# what the readers share


def _missing(name: str, wanted: str, where: Path) -> DataError:
    return DataError(f"{name}: looked for {wanted} in {where} and did not find it. Name the folder that "
                     "holds the data by --data-root DIR or the environment variable PROTOCORE_DATA; "
                     f"`protocore data get {name}` downloads it")


def _folder(root: Path, name: str, *choices: str) -> Path:
    """The last choice below `root`; the earlier ones were looked for already and are named in the error."""
    folder = Path(root) / choices[-1]
    if not folder.is_dir():
        raise _missing(name, " or ".join(f"{choice}/" for choice in choices), Path(root))
    return folder


def _length(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path}: missing; the data set is incomplete: delete its folder and get it again")
    return path.stat().st_size


def _text(raw: bytes, path: Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        where = os.fsencode(path).decode("utf-8", "backslashreplace")
        shown = raw[max(0, error.start - 20):error.start + 20]
        raise DataError(f"{where}: {shown!r} is not UTF-8 text; rename or replace it") from error


def _lines(path: Path) -> list[str]:
    _length(path)
    return [line for line in (line.strip() for line in _text(path.read_bytes(), path).split("\n")) if line]


def _columns(line: str) -> tuple[str, str]:
    first, second = [*line.split("\t"), ""][:2]
    return first, second


def _names(path: Path, count: int) -> tuple[str, ...]:
    return _checked_names(path, _lines(path), count)


def _checked_names(path: Path, names: Iterable[str], count: int) -> tuple[str, ...]:
    found = tuple(names)
    if len(found) != count or len(set(found)) != count:
        raise DataError(f"{path}: {len(found)} names, {len(set(found))} of them different; expected {count}")
    return found
