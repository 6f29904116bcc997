"""What lies on disk: pictures and the formats of the data sets."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import struct
import sys
import time
import tracemalloc
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from protocore import pictures
from protocore.data import cache, cifar, images
from protocore.data.benchmarks import source_named
from protocore.data.cache import cached
from protocore.data.idx import read_idx
from protocore.data.images import ArrayImages, ChosenImages, FileImages, Images, ImageSet, JoinedImages
from protocore.data.sets.cifar10 import read_cifar10
from protocore.data.sets.cifar100 import read_cifar100
from protocore.data.sets.digits import read_digits
from protocore.data.sets.folder import read_folder
from protocore.data.sets.imagenet import read_imagenet
from protocore.data.sets.tinyimagenet import read_tiny_imagenet
from protocore.errors import DataError

RNG = np.random.default_rng(5)


def random_images(count: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def everything(source: Images) -> np.ndarray:
    return source.take(np.arange(len(source)))


# images


def test_array_images_take_copies_out_of_a_strided_read_only_map(tmp_path: Path) -> None:
    table = RNG.integers(0, 256, (9, 2 + 3 * 4 * 5), dtype=np.uint8)
    (tmp_path / "records").write_bytes(table.tobytes())
    mapped = np.memmap(tmp_path / "records", np.uint8, "r").reshape(9, -1)
    source = ArrayImages(mapped[:, 2:].reshape(9, 3, 4, 5))
    assert source.shape == (3, 4, 5)
    assert len(source) == 9
    got = source.take(np.array([7, 0, 7]))
    assert type(got) is np.ndarray
    assert got.dtype == np.uint8
    assert got.flags.c_contiguous
    assert got.flags.writeable
    assert np.array_equal(got, np.stack([table[row, 2:].reshape(3, 4, 5) for row in (7, 0, 7)]))
    got[:] = 0
    assert np.array_equal(everything(source), table[:, 2:].reshape(9, 3, 4, 5))


def test_array_images_of_a_transposed_array_are_contiguous() -> None:
    last = random_images(6, 4, 5, 3)
    source = ArrayImages(last.transpose(0, 3, 1, 2))
    got = source.take(np.array([3, 1]))
    assert got.flags.c_contiguous
    assert np.array_equal(got, last[[3, 1]].transpose(0, 3, 1, 2))
    assert source.take(np.array([], np.int64)).shape == (0, 3, 4, 5)


@pytest.mark.parametrize("indices", [[-1], [4], [0, 9]])
def test_take_refuses_rows_that_do_not_exist(indices: list[int], tmp_path: Path) -> None:
    for source in (ArrayImages(random_images(4, 1, 2, 2)), FileImages([tmp_path / "a.png"] * 4, 2),
                   JoinedImages([ArrayImages(random_images(2, 1, 2, 2))] * 2)):
        with pytest.raises(IndexError, match="4 images"):
            source.take(np.array(indices))


@pytest.mark.parametrize("indices", [np.array([True, False]), np.array([1.0]), np.array([[1]])])
def test_take_wants_a_vector_of_integers(indices: np.ndarray) -> None:
    with pytest.raises(TypeError, match="vector of integers"):
        ArrayImages(random_images(4, 1, 2, 2)).take(indices)


def test_array_images_refuses_other_types() -> None:
    with pytest.raises(TypeError, match="float64"):
        ArrayImages(np.zeros((2, 3, 4, 4)))
    with pytest.raises(TypeError, match="uint8"):
        ArrayImages(np.zeros((2, 4, 4), np.uint8))


def test_joined_images_are_the_concatenation() -> None:
    parts = [random_images(count, 3, 2, 2) for count in (3, 1, 4)]
    source = JoinedImages([ArrayImages(part) for part in parts])
    rows = np.array([7, 2, 3, 0, 4, 3])
    assert len(source) == 8
    assert np.array_equal(source.take(rows), np.concatenate(parts)[rows])
    with pytest.raises(TypeError, match="one shape"):
        JoinedImages([ArrayImages(random_images(1, 3, 2, 2)), ArrayImages(random_images(1, 1, 2, 2))])


def picture(path: Path, width: int, height: int, mode: str = "RGB") -> Path:
    grain = Image.fromarray(random_images(height, width, 3))
    grain.convert(mode).save(path)
    return path


def resized_then_cut(path: Path, size: int, mode: str) -> np.ndarray:
    with Image.open(path) as opened:
        seen = opened.convert("RGBA")
        lies_on_white = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
        plain = (lies_on_white if "A" in opened.mode else opened).convert(mode)
    width, height = plain.size
    if width <= height:
        plain = plain.resize((size, round(height * size / width)), Image.Resampling.BILINEAR)
    else:
        plain = plain.resize((round(width * size / height), size), Image.Resampling.BILINEAR)
    array = np.asarray(plain).reshape(plain.height, plain.width, -1)
    top, left = (plain.height - size) // 2, (plain.width - size) // 2
    return array[top:top + size, left:left + size].transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("width", "height", "mode"), [
    (20, 31, "RGB"), (33, 12, "L"), (12, 12, "RGB"), (5, 9, "P"), (12, 40, "RGBA"), (16, 16, "1")])
def test_file_images_resize_then_cut_the_centre(tmp_path: Path, width: int, height: int, mode: str,
                                                channels: int) -> None:
    path = picture(tmp_path / "a.png", width, height, mode)
    got = FileImages([path], 12, channels).take(np.array([0]))
    assert got.shape == (1, channels, 12, 12)
    assert got.flags.writeable
    assert np.array_equal(got[0], resized_then_cut(path, 12, "RGB" if channels == 3 else "L"))


def test_a_picture_of_the_right_size_is_not_resampled(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path / "a.png", 12, 20)
    monkeypatch.setattr(Image.Image, "resize", None)
    with Image.open(path) as opened:
        expected = np.asarray(opened)[4:16]
    assert np.array_equal(everything(FileImages([path], 12))[0], expected.transpose(2, 0, 1))


def test_many_files_are_decoded_in_the_order_asked_for(tmp_path: Path) -> None:
    paths = [picture(tmp_path / f"{number}.png", 8, 8) for number in range(20)]
    source = FileImages(paths, 8)
    rows = RNG.integers(0, 20, images._POOL_FROM * 3)
    one_by_one = np.concatenate([source.take(rows[at:at + 1]) for at in range(len(rows))])
    assert np.array_equal(source.take(rows), one_by_one)


@pytest.mark.parametrize("count", [1, images._POOL_FROM * 2])
def test_a_damaged_picture_is_named(tmp_path: Path, count: int) -> None:
    good, bad = picture(tmp_path / "good.jpg", 40, 40), tmp_path / "bad.jpg"
    bad.write_bytes(good.read_bytes()[:600])
    source = FileImages([good] * (count - 1) + [bad], 8)
    with pytest.raises(DataError, match=r"bad\.jpg"):
        everything(source)
    bad.write_bytes(b"no picture at all")
    with pytest.raises(DataError, match=r"bad\.jpg"):
        everything(source)


@pytest.mark.parametrize("kind", ["png", "tif", "pgm"])
def test_sixteen_bits_become_eight(tmp_path: Path, kind: str) -> None:
    """White is white and black black; between them each value goes to the nearest."""
    values = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    path = tmp_path / f"deep.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 8 8 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    got = everything(FileImages([path], 8))[0]
    assert np.array_equal(got, np.repeat((values / 257).round().astype(np.uint8)[None], 3, axis=0))


def test_what_is_transparent_lies_on_white(tmp_path: Path) -> None:
    drawn = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    drawn.paste((200, 0, 0, 255), (0, 0, 4, 8))
    drawn.save(tmp_path / "logo.png")
    got = everything(FileImages([tmp_path / "logo.png"], 8))[0]
    assert got[:, 0, 0].tolist() == [200, 0, 0]
    assert got[:, 0, 7].tolist() == [255, 255, 255]


def test_a_picture_of_a_telephone_says_what_its_reader_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PLUGINS", {"HEIF": "no_such_reader"})
    pictures.formats_read.cache_clear()
    path = tmp_path / "IMG_1.HEIC"
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(DataError, match=r"IMG_1\.HEIC.*install the package no_such_reader, or save it as JPEG"):
        everything(FileImages([path], 8))
    pictures.formats_read.cache_clear()


def test_a_plugin_that_is_there_registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    reader = ModuleType("a_reader_of_heif")
    reader.__spec__ = ModuleSpec("a_reader_of_heif", None)
    vars(reader)["register_heif_opener"] = lambda: called.append(1)
    monkeypatch.setitem(sys.modules, "a_reader_of_heif", reader)
    monkeypatch.setattr(pictures, "PLUGINS", {"HEIF": "a_reader_of_heif"})
    pictures.formats_read.cache_clear()
    assert pictures.formats_read() == pictures.formats_read() == (*pictures.FORMATS, "HEIF")
    assert called == [1]
    pictures.formats_read.cache_clear()


def test_pictures_that_would_be_read_wrongly_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "deep.tif")
    with pytest.raises(DataError, match=r"deep\.tif.*8 or 16 bits"):
        everything(FileImages([tmp_path / "deep.tif"], 8))
    Image.new("L", (1, 3000)).save(tmp_path / "thin.png")  # at 8 pixels wide it would be 24,000 high
    with pytest.raises(DataError, match=r"thin\.png.*narrow"):
        everything(FileImages([tmp_path / "thin.png"], 8))
    with pytest.raises(ValueError, match="1 or 3 channels"):
        FileImages([], 8, 2)


class Counted(ArrayImages):
    taken = 0

    def take(self, indices: np.ndarray) -> np.ndarray:
        self.taken += len(indices)
        return super().take(indices)


def test_cached_writes_once_and_maps_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_CHUNK_BYTES", 3 * 4 * 4 * 4)
    source = Counted(random_images(10, 3, 4, 4))
    told: list[tuple[int, int]] = []
    first = cached(source, "key", tmp_path / "new", lambda done, total: told.append((done, total)))
    assert told == [(4, 10), (8, 10), (10, 10)]
    second = cached(source, "key", tmp_path / "new", lambda done, total: told.append((done, total)))
    assert source.taken == 10
    assert len(told) == 3
    for kept in (first, second):
        assert np.array_equal(everything(kept.images), source._array)
        assert not kept.images._array.flags.writeable
    assert sorted(path.suffix for path in (tmp_path / "new").iterdir()) == [".json", ".npy"]


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(path.read_bytes()[:20]),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes() + b"x"),
    lambda path: path.write_bytes(b"garbage" * 100),
    lambda path: np.save(path, np.zeros((9, 3, 4, 4), np.uint8)),
    lambda path: np.save(path, np.zeros((10, 3, 4, 4), np.int8)),
    lambda path: np.save(path, np.asfortranarray(np.zeros((10, 3, 4, 4), np.uint8))),
])
def test_a_spoilt_cache_is_made_again(tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    source = Counted(random_images(10, 3, 4, 4))
    cached(source, "key", tmp_path)
    (path,) = tmp_path.glob("*.npy")
    spoil(path)
    again = cached(source, "key", tmp_path)
    assert source.taken == 20
    assert np.array_equal(everything(again.images), source._array)


def test_what_was_found_in_making_a_cache_is_sealed_with_it(tmp_path: Path) -> None:
    source = Counted(random_images(10, 3, 4, 4))
    cached(source, "key", tmp_path)
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    document["told"]["cut"] = 7
    path.write_text(json.dumps(document))
    assert cached(source, "key", tmp_path).cut == 0


def test_a_cache_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [picture(tmp_path / f"{name}.png", 4, 4) for name in "ab"]
    monkeypatch.setattr(images, "_CHUNK_BYTES", 1)
    paths[1].write_bytes(b"damaged")
    good = images.file_set(tmp_path, [("a.png", 0, 0), ("b.png", 0, 0)], ("x",), 4)
    paths[1].write_bytes(b"changed")
    with pytest.raises(DataError, match=r"b\.png: changed while it was being read"):
        cached(good.images, "key", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_needs_room_and_a_plain_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ArrayImages(random_images(2, 1, 4, 4))
    for key in ("../up", "", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="key"):
            cached(source, key, tmp_path)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 31})())
    with pytest.raises(DataError, match="32 bytes are needed, 31 are free"):
        cached(source, "key", tmp_path)
    assert len(cached(ArrayImages(random_images(0, 1, 4, 4)), "none", tmp_path).images) == 0


@pytest.mark.parametrize(("labels", "message"), [
    (np.array([0, 1], np.int64), "3 images but 2 labels"),
    (np.array([0, 2, 1], np.int64), "image 1 has label 2"),
    (np.array([0, 1, -1], np.int64), "image 2 has label -1"),
    (np.array([0, 1, 1], np.int32), "int64"),
])
def test_image_set_checks_its_labels(labels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageSet(ArrayImages(random_images(3, 1, 2, 2)), labels, ("a", "b"), "")


def test_the_digest_of_arrays_covers_labels_pixels_and_shape() -> None:
    pixels, labels = random_images(6, 1, 4, 4), np.array([0, 1, 0, 1, 0, 1])

    def digest(pixels: np.ndarray, labels: np.ndarray) -> str:
        return images.array_set(ArrayImages(pixels), labels, ("a", "b")).digest

    other_pixel, other_label = pixels.copy(), labels.copy()
    other_pixel[5, 0, 3, 3] ^= 1
    other_label[5] = 0
    strided = np.concatenate([pixels, pixels], axis=3)[..., :4]
    assert digest(strided, labels) == digest(pixels, labels)
    assert len({digest(pixels, labels), digest(other_pixel, labels), digest(pixels, other_label),
                digest(pixels.reshape(6, 1, 2, 8), labels)}) == 4


# digits


def test_digits_are_split_by_counting() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits()
    seen = dict.fromkeys(range(10), 0)
    rows: dict[bool, list[int]] = {True: [], False: []}
    for row, label in enumerate(raw.target.tolist()):
        seen[label] += 1
        rows[seen[label] % 5 == 0].append(row)
    for part, of_test in zip(read_digits(), (False, True), strict=True):
        assert part.class_names == tuple("0123456789")
        assert part.labels.tolist() == raw.target[rows[of_test]].tolist()
        exact = raw.images[rows[of_test]] * (255 / 16)
        got = everything(part.images)[:, 0]
        assert np.abs(got - exact).max() <= 0.5
        assert (got.min(), got.max()) == (0, 255)


# CIFAR


def records(count: int, limits: tuple[int, ...]) -> np.ndarray:
    heads = [RNG.integers(0, limit, (count, 1), dtype=np.uint8) for limit in limits]
    return np.concatenate([*heads, random_images(count, 3072)], axis=1)


def binary10(root: Path) -> dict[str, np.ndarray]:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("\n".join(f"name {number}" for number in range(10)) + "\n\n")
    tables = {name: records(4, (10,)) for name in [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]}
    for name, table in tables.items():
        (folder / f"{name}.bin").write_bytes(table.tobytes())
    return tables


def binary100(root: Path) -> dict[str, np.ndarray]:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine {number}" for number in range(100)))
    tables = {"train": records(6, (20, 100)), "test": records(3, (20, 100))}
    for name, table in tables.items():
        (folder / f"{name}.bin").write_bytes(table.tobytes())
    return tables


def python2_pickle(content: dict[str, object]) -> bytes:
    """What Python 2 with numpy 1 wrote: plain strings for text and for the pixels."""
    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def value(item: object) -> bytes:
        if isinstance(item, np.ndarray):
            shape = b"K" + bytes([item.shape[0]]) + b"M" + struct.pack("<H", item.shape[1]) + b"\x86"
            kind = (b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
                    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb")
            return (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
                    + b"\x87R(K\x01" + shape + kind + b"\x89" + text(item.tobytes()) + b"tb")
        assert isinstance(item, list)
        entries = (b"K" + bytes([x]) if isinstance(x, int) else text(x.encode()) for x in item)
        return b"](" + b"".join(entries) + b"e"

    return b"\x80\x02}(" + b"".join(text(key.encode()) + value(item) for key, item in content.items()) + b"u."


def numpy1_pickle(content: dict[str, object]) -> bytes:
    return pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def bytes_pickle(content: dict[str, object]) -> bytes:
    def value(item: object) -> object:
        return [x.encode() if isinstance(x, str) else x for x in item] if isinstance(item, list) else item

    return pickle.dumps({key.encode(): value(item) for key, item in content.items()}, protocol=2)


def python10(root: Path, tables: dict[str, np.ndarray], dump) -> Path:  # type: ignore[no-untyped-def]
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "batches.meta").write_bytes(dump({"label_names": [f"name {number}" for number in range(10)]}))
    for name, table in tables.items():
        (folder / name).write_bytes(dump({"data": table[:, 1:], "labels": table[:, 0].tolist()}))
    return folder


def python100(root: Path, tables: dict[str, np.ndarray], dump) -> Path:  # type: ignore[no-untyped-def]
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(dump({"fine_label_names": [f"fine {number}" for number in range(100)]}))
    for name, table in tables.items():
        (folder / name).write_bytes(dump({
            "data": table[:, 2:].copy(), "coarse_labels": table[:, 0].tolist(),
            "fine_labels": table[:, 1].tolist()}))
    return folder


def test_cifar10_binary(tmp_path: Path) -> None:
    tables = binary10(tmp_path)
    train, test = read_cifar10(tmp_path)
    whole = np.concatenate([tables[f"data_batch_{number}"] for number in range(1, 6)])
    assert train.labels.tolist() == whole[:, 0].tolist()
    assert np.array_equal(everything(train.images), whole[:, 1:].reshape(-1, 3, 32, 32))
    assert np.array_equal(everything(test.images), tables["test_batch"][:, 1:].reshape(-1, 3, 32, 32))
    assert train.class_names == test.class_names == tuple(f"name {number}" for number in range(10))


def test_cifar100_binary_is_mapped_not_copied(tmp_path: Path) -> None:
    tables = binary100(tmp_path)
    train, test = read_cifar100(tmp_path)
    for part, table in ((train, tables["train"]), (test, tables["test"])):
        assert part.labels.dtype == np.int64
        assert part.labels.tolist() == table[:, 1].tolist()
        assert np.array_equal(everything(part.images), table[:, 2:].reshape(-1, 3, 32, 32))
        assert isinstance(part.images, ArrayImages)
        base = part.images._array
        while not isinstance(base, np.memmap):
            assert isinstance(base, np.ndarray)
            base = base.base
    assert train.class_names[99] == "fine 99"


@pytest.mark.parametrize("dump", [
    python2_pickle, numpy1_pickle, bytes_pickle, lambda content: pickle.dumps(content, protocol=4)])
def test_pickled_cifar_is_the_same_data_as_the_binary(tmp_path: Path, dump) -> None:  # type: ignore[no-untyped-def]
    python10(tmp_path / "p", binary10(tmp_path / "b"), dump)
    python100(tmp_path / "p", binary100(tmp_path / "b"), dump)
    for read in (read_cifar10, read_cifar100):
        for binary, pickled in zip(read(tmp_path / "b"), read(tmp_path / "p"), strict=True):
            assert pickled.digest == binary.digest
            assert pickled.class_names == binary.class_names
            assert pickled.labels.tolist() == binary.labels.tolist()


def test_cut_records_are_refused_with_both_sizes(tmp_path: Path) -> None:
    binary100(tmp_path)
    path = tmp_path / "cifar-100-binary" / "train.bin"
    whole = path.read_bytes()
    for length in (len(whole) - 1, 0):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"train\.bin: {length} bytes, expected a multiple of 3074"):
            read_cifar100(tmp_path)


@pytest.mark.parametrize(("column", "value", "limit"), [(1, 100, 99), (0, 20, 19), (1, 255, 99)])
def test_a_label_out_of_range_is_named(tmp_path: Path, column: int, value: int, limit: int) -> None:
    tables = binary100(tmp_path)
    tables["test"][2, column] = value
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(tables["test"].tobytes())
    with pytest.raises(DataError, match=rf"test\.bin: record 2 has label {value}, expected 0 to {limit}"):
        read_cifar100(tmp_path)


def test_cifar_label_names_are_checked(tmp_path: Path) -> None:
    binary100(tmp_path)
    path = tmp_path / "cifar-100-binary" / "fine_label_names.txt"
    good = path.read_text()
    path.write_text(good.replace("fine 7\n", ""))
    with pytest.raises(DataError, match=r"fine_label_names\.txt: 99 names"):
        read_cifar100(tmp_path)
    path.write_text(good.replace("fine 7\n", "fine 8\n"))
    with pytest.raises(DataError, match="99 of them different"):
        read_cifar100(tmp_path)
    path.write_bytes(good.encode().replace(b"fine 7\n", b"caf\xe9\n"))
    with pytest.raises(DataError, match=r"fine_label_names\.txt: .*not UTF-8"):
        read_cifar100(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"fine_label_names\.txt: missing"):
        read_cifar100(tmp_path)


@pytest.mark.parametrize(("read", "name", "wanted"), [
    (read_cifar10, "cifar10", "cifar-10-batches-bin/ or cifar-10-batches-py/"),
    (read_cifar100, "cifar100", "cifar-100-binary/ or cifar-100-python/"),
    (read_tiny_imagenet, "tinyimagenet", "tiny-imagenet-200/"),
    (read_imagenet, "imagenet", "imagenet/"),
    (lambda root: read_idx(root / "mnist", "0123456789"), "mnist", "train-images-idx3-ubyte.gz"),
])
def test_missing_data_says_what_where_and_the_way_out(tmp_path: Path, read, name: str,  # type: ignore[no-untyped-def]
                                                      wanted: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    for part in (wanted, str(tmp_path), "--data-root DIR", "PROTOCORE_DATA", f"protocore data get {name}"):
        assert part in str(caught.value)


# hostile pickles


class Call:
    """Pickles into a call of `function` with `arguments`."""

    def __init__(self, function, *arguments: object) -> None:  # type: ignore[no-untyped-def]
        self.function, self.arguments = function, arguments

    def __reduce__(self):  # type: ignore[no-untyped-def]
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(("function", "name"), [
    (os.mkdir, "mkdir"), (eval, "eval"), (getattr, "getattr"), (np.load, "numpy.load"),
    (np.ndarray.view, "getattr"), (pickle.loads, "ickle.loads"), (bytearray, "bytearray")])
def test_restricted_load_runs_nothing(tmp_path: Path, function, name: str,  # type: ignore[no-untyped-def]
                                      protocol: int) -> None:
    path, mark = tmp_path / "train", tmp_path / "ran"
    path.write_bytes(pickle.dumps({"data": Call(function, str(mark))}, protocol=protocol))
    with pytest.raises(DataError, match=rf"{path}.*{name}, which.*nothing was run"):
        cifar.restricted_load(path)
    assert not mark.exists()


def test_only_the_exact_names_are_admitted(tmp_path: Path) -> None:
    path = tmp_path / "train"
    for module, name in [("numpy", "ndarray.__class__"), ("numpy", "dtype.__class__"), ("codecs", "encode"),
                         ("numpy.core.multiarray", "array"), ("_codecs", "decode"),
                         ("numpy._core.multiarray", "fromstring")]:
        code = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
        path.write_bytes(b"\x80\x04" + code + b"\x93.")
        with pytest.raises(DataError, match=rf"{module}.{name}"):
            cifar.restricted_load(path)


REBUILD = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = REBUILD + b"cnumpy\nndarray\nK\x00\x85C\x01b\x87R"
UINT8 = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1K\x00K\x01\x87R"


@pytest.mark.parametrize(("code", "reason"), [
    (ARRAY + b"(K\x01J\xff\xff\xff\x7f\x85" + UINT8 + b"\x89C\x03abctb.", "in 3 bytes"),
    (ARRAY + b"(K\x01J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86" + UINT8 + b"\x89C\x01atb.", "in 1 bytes"),
    (ARRAY + b"(K\x01K\x01\x85NK\x00C\x01atb.", "unknown form"),
    (ARRAY + b"(K\x01K\x01\x85" + UINT8 + b"\x89](Natb.", "pickle"),
    (ARRAY + b"}b.", "unknown form"),
    (b"cnumpy\ndtype\nX\x01\x00\x00\x00OK\x00K\x01\x87R.", "type 'O'"),
    (b"cnumpy\ndtype\nX\x03\x00\x00\x00f8,K\x00K\x01\x87R.", "type 'f8,'"),
    (REBUILD + b"cnumpy\ndtype\nK\x00\x85C\x01b\x87R.", "class"),
    (b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.", "coded as 'zip'"),
    (b"c_codecs\nencode\nNX\x06\x00\x00\x00latin1\x86R.", "coded as"),
    (b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.", "pickle"),
    (REBUILD + b"}X\x01\x00\x00\x00aK\x01sb.", "pickle"),
    (b"Nr\xff\xff\xff\x0f.", "memo number 268435455"),
    (b"Np99999999999\n.", "memo number"),
    (b"B\xff\xff\xff\x7fabc.", "pickle"),
    (b"\x96\xff\xff\xff\xff\x0f\x00\x00\x00abc.", "pickle"),
    (b"Pname\n.", "pickle"),
    (b"K\x01.", "expected a dictionary, met int"),
    (b"", "pickle"),
    (b"}", "pickle"),
    (b"}}s.", "pickle"),
])
def test_pickles_that_lie_are_refused_within_bounded_memory(tmp_path: Path, code: bytes, reason: str) -> None:
    path = tmp_path / "train"
    path.write_bytes(b"\x80\x05" + code if code else b"")
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            cifar.restricted_load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert peak < 4 << 20
    assert not hasattr(cifar._Encode, "a")
    assert not hasattr(cifar._Reconstruct, "a")


@pytest.mark.parametrize(("change", "message"), [
    ({"data": np.zeros((3, 3071), np.uint8)}, r"\(n, 3072\), met uint8 array \(3, 3071\)"),
    ({"data": [1, 2, 3]}, "met a list of 3"),
    ({"data": np.zeros(3072, np.uint8)}, "met uint8 array"),
    ({"data": None}, "met NoneType"),
    ({"data": np.zeros((0, 3072), np.uint8), "fine_labels": []}, "list of 0 labels"),
    ({"fine_labels": [1, 2]}, "list of 3 labels, met a list of 2"),
    ({"fine_labels": (1, 2, 3)}, "met tuple"),
    ({"fine_labels": [1, 100, 3]}, "record 1 has label 100, expected 0 to 99"),
    ({"fine_labels": [1, 2, -1]}, "record 2 has label -1"),
    ({"fine_labels": [True, 2, 1]}, "record 0 has label True"),
    ({"fine_labels": [1, "2", 1]}, "record 1 has label '2'"),
    ({"fine_labels": [1, 2**40, 1]}, "record 1 has label 1099511627776"),
])
def test_pickled_values_are_checked(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = python100(tmp_path, {name: records(3, (20, 100)) for name in ("train", "test")}, numpy1_pickle)
    good = {"data": random_images(3, 3072), "fine_labels": [1, 2, 3]}
    (folder / "train").write_bytes(pickle.dumps(good | change, protocol=4))
    with pytest.raises(DataError, match=rf"train: .*{message}"):
        read_cifar100(tmp_path)


def test_pickled_names_are_checked(tmp_path: Path) -> None:
    folder = python100(tmp_path, {name: records(3, (20, 100)) for name in ("train", "test")}, numpy1_pickle)
    for names, message in [(["a"] * 100, "1 of them different"), ([b"caf\xe9"] * 100, "not UTF-8"),
                           ([1] * 100, "list of names"), ("abc", "met str")]:
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
        with pytest.raises(DataError, match=rf"meta: .*{message}"):
            read_cifar100(tmp_path)


# IDX


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def idx_folder(folder: Path, packed: bool = True) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", 12), ("t10k", 5)):
        arrays[f"{part}-images-idx3-ubyte"] = random_images(count, 6, 7)
        arrays[f"{part}-labels-idx1-ubyte"] = RNG.integers(0, 10, count, dtype=np.uint8)
    for name, array in arrays.items():
        store(folder, name, idx(array), packed)
    return arrays


def store(folder: Path, name: str, content: bytes, packed: bool) -> Path:
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read(tmp_path: Path, packed: bool) -> None:
    arrays = idx_folder(tmp_path / "mnist", packed)
    for part, name in zip(read_idx(tmp_path / "mnist", "0123456789"), ("train", "t10k"), strict=True):
        assert np.array_equal(everything(part.images)[:, 0], arrays[f"{name}-images-idx3-ubyte"])
        assert part.labels.tolist() == arrays[f"{name}-labels-idx1-ubyte"].tolist()
        assert part.images.shape == (1, 6, 7)


def test_idx_names_and_digest(tmp_path: Path) -> None:
    arrays = idx_folder(tmp_path / "fashion-mnist")
    packed = source_named("fashion-mnist").read(tmp_path)
    assert packed[0].class_names[9] == "Ankle boot"
    (tmp_path / "mine").mkdir()
    for name, array in arrays.items():
        store(tmp_path / "mine", name, idx(array), packed=False)
    plain = read_idx(tmp_path / "mine", "0123456789")
    assert plain[0].class_names == tuple("0123456789")
    assert [part.digest for part in plain] == [part.digest for part in packed]
    assert read_idx(tmp_path / "mine", "abcdefghij")[1].class_names == tuple("abcdefghij")
    with pytest.raises(DataError, match="expected 0 to 0"):
        read_idx(tmp_path / "mine", ["only"])


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "content", "message"), [
    (IMAGES, idx(np.zeros(12, np.uint8)), r"images-idx3.*00000801.*swapped"),
    (LABELS, idx(np.zeros((12, 6, 7), np.uint8)), r"labels-idx1.*00000803.*swapped"),
    (IMAGES, b"\x89PNG" + bytes(600), "starts with 89504e47"),
    (IMAGES, b"", "starts with nothing"),
    (IMAGES, idx(np.zeros((12, 6, 7), np.uint8))[:10], "expected an IDX file of images"),
    (IMAGES, idx(np.zeros((12, 6, 7), np.uint8))[:-1], r"519 bytes, but its header announces 520"),
    (IMAGES, idx(np.zeros((12, 6, 7), np.uint8)) + b"x", r"(more|521) bytes, but its header announces 520"),
    (IMAGES, idx(np.zeros((11, 6, 7), np.uint8)), r"11 images but .*labels.* has 12 labels"),
    (IMAGES, idx(np.zeros((0, 6, 7), np.uint8)), "empty"),
    (IMAGES, struct.pack(">4I", 0x803, *[2**32 - 1] * 3) + bytes(600), "announces 79228162458924105"),
    (IMAGES, struct.pack(">4I", 0x803, 12, 6, 2000) + bytes(600), "announces 144016"),
    (LABELS, idx(np.array([0] * 11 + [10], np.uint8)), "record 11 has label 10, expected 0 to 9"),
])
def test_idx_files_that_lie_are_refused(tmp_path: Path, packed: bool, name: str, content: bytes,
                                        message: str) -> None:
    idx_folder(tmp_path / "mnist", packed)
    store(tmp_path / "mnist", name, content, packed)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "mnist", "0123456789")


def peak_of_refusal(folder: Path, message: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            read_idx(folder, "0123456789")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_idx_memory_is_bounded_by_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    idx_folder(folder)
    bomb = store(folder, IMAGES, idx(np.zeros((12, 6, 7), np.uint8)) + bytes(64 << 20), packed=True)
    assert bomb.stat().st_size < 1 << 20
    assert peak_of_refusal(folder, "more bytes") < 4 << 20
    store(folder, IMAGES, struct.pack(">4I", 0x803, 50, 1000, 1000) + bytes(100_000), packed=True)
    assert peak_of_refusal(folder, "more than .* compressed bytes can hold") < 4 << 20


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    idx_folder(tmp_path / "mnist")
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:-8] + b"\0\0\0\0" + whole[-4:], b"plain" + whole):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"images-idx3-ubyte\.gz: damaged gzip"):
            read_idx(tmp_path / "mnist", "0123456789")


# folders of pictures


def tiny(root: Path) -> Path:
    base = root / "tiny-imagenet-200"
    (base / "val" / "images").mkdir(parents=True)
    for wnid in ("n02", "n01"):
        (base / "train" / wnid / "images").mkdir(parents=True)
        for number in (10, 9):
            picture(base / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", 64, 64)
    (base / "wnids.txt").write_text("n02\nn01\n")
    (base / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\tbullfrog\nn03\tother\n")
    for number in range(3):
        picture(base / "val" / "images" / f"val_{number}.JPEG", 64, 64, "L")
    (base / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t63\t63\nval_2.JPEG\tn01\t0\t0\t63\t63\nval_1.JPEG\tn01\t0\t0\t63\t63\n")
    return base


def test_tiny_imagenet(tmp_path: Path) -> None:
    base = tiny(tmp_path)
    train, test = read_tiny_imagenet(tmp_path)
    assert train.class_names == ("n01 goldfish, Carassius", "n02 bullfrog")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert test.labels.tolist() == [1, 0, 0]
    first = resized_then_cut(base / "train" / "n01" / "images" / "n01_10.JPEG", 64, "RGB")
    assert np.array_equal(everything(train.images)[0], first)
    assert np.array_equal(everything(test.images)[1],
                          resized_then_cut(base / "val" / "images" / "val_2.JPEG", 64, "RGB"))
    (base / "words.txt").unlink()
    assert read_tiny_imagenet(tmp_path)[0].class_names == ("n01", "n02")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("val_2.JPEG\tn01", "val_2.JPEG\tn09", r"line 2 gives 'val_2\.JPEG' the class 'n09'"),
    ("val_2.JPEG\tn01", "../x.JPEG\tn01", r"line 2 gives '\.\./x\.JPEG'"),
    ("val_2.JPEG\tn01", "val_0.JPEG\tn01", r"line 2 gives 'val_0\.JPEG'"),
    ("val_2.JPEG\tn01\t0\t0\t63\t63\n", "", r"no class for 1 pictures of val/images, val_2\.JPEG first"),
    ("val_2.JPEG\tn01", "val_2.JPEG", "line 2"),
])
def test_tiny_imagenet_annotations_are_checked(tmp_path: Path, old: str, new: str, message: str) -> None:
    notes = tiny(tmp_path) / "val" / "val_annotations.txt"
    assert old in notes.read_text()
    notes.write_text(notes.read_text().replace(old, new))
    with pytest.raises(DataError, match=rf"val_annotations\.txt: {message}"):
        read_tiny_imagenet(tmp_path)


def test_tiny_imagenet_without_a_class_folder(tmp_path: Path) -> None:
    base = tiny(tmp_path)
    (base / "wnids.txt").write_text("n01\nn02\nn03\n")
    with pytest.raises(DataError, match=r"n03.*incomplete"):
        read_tiny_imagenet(tmp_path)


def test_imagenet(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for wnid in ("n09", "n08"):
            (tmp_path / "imagenet" / part / wnid).mkdir(parents=True)
            for number in range(count):
                picture(tmp_path / "imagenet" / part / wnid / f"{number}.JPEG", 30, 20)
    train, test = read_imagenet(tmp_path, size=16)
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1])
    assert train.class_names == ("n08", "n09")
    assert train.images.shape == (3, 16, 16)
    assert read_imagenet(tmp_path)[1].images.shape == (3, 224, 224)
    (tmp_path / "imagenet" / "val" / "n07").mkdir()
    with pytest.raises(DataError, match=r"same classes.*'n07'"):
        read_imagenet(tmp_path)


def test_the_flat_validation_folder_of_imagenet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "imagenet" / "train" / "n08").mkdir(parents=True)
    with pytest.raises(DataError, match="looked for val/WNID"):
        read_imagenet(tmp_path)
    (tmp_path / "imagenet" / "val").mkdir()
    picture(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_00000001.JPEG", 20, 20)
    with pytest.raises(DataError, match="flat validation folder of ILSVRC is not read"):
        read_imagenet(tmp_path)


def own_pictures(root: Path, classes: dict[str, int]) -> Path:
    for name, count in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number:03d}.png").write_bytes(b"x" * (number + 1))
    return root


def names_of(part: ImageSet, root: Path) -> list[str]:
    assert isinstance(part.images, ChosenImages)
    assert isinstance(part.images.source, FileImages)
    return [Path(part.images.source.paths[row]).relative_to(root).as_posix() for row in part.images.rows]


def test_a_folder_is_split_by_hash_and_adding_moves_nothing(tmp_path: Path) -> None:
    own_pictures(tmp_path, {"dog": 60, "cat": 60})
    before = [names_of(part, tmp_path) for part in read_folder(tmp_path, 8)]

    def in_test(name: str, fraction: float) -> bool:
        return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) < fraction * 2**64

    everyone = sorted(f"{name}/{number:03d}.png" for name in ("cat", "dog") for number in range(60))
    for fraction in (0.2, 0.5):
        got = [names_of(part, tmp_path) for part in read_folder(tmp_path, 8, fraction)]
        assert got == [[name for name in everyone if in_test(name, fraction) is side] for side in (False, True)]
    cats, dogs = ({name[4:] for name in before[1] if name[0] == first} for first in "cd")
    assert cats != dogs
    own_pictures(tmp_path, {"dog": 90, "ant": 20})
    after = read_folder(tmp_path, 8)
    assert after[0].class_names == ("ant", "cat", "dog")
    for part, old in zip(after, before, strict=True):
        names = names_of(part, tmp_path)
        assert set(old) <= set(names)
        assert [part.class_names[label] for label in part.labels] == [name.split("/")[0] for name in names]


def test_small_classes_still_have_both_sides(tmp_path: Path) -> None:
    own_pictures(tmp_path, {f"class {number}": 2 for number in range(30)})
    for fraction in (0.001, 0.999):
        for part in read_folder(tmp_path, 8, fraction):
            assert np.bincount(part.labels, minlength=30).tolist() == [1] * 30
    own_pictures(tmp_path, {"lonely": 1})
    with pytest.raises(DataError, match="lonely: 1 picture; a class needs at least 2"):
        read_folder(tmp_path, 8, strict=True)


@pytest.mark.parametrize("second", ["test", "val"])
def test_a_folder_with_its_own_split(tmp_path: Path, second: str) -> None:
    own_pictures(tmp_path / "train", {"b": 3, "a": 1})
    own_pictures(tmp_path / second, {"a": 2, "b": 1})
    train, test = read_folder(tmp_path, 8)
    order = ["a/000", "b/000", "b/001", "b/002"]
    assert names_of(train, tmp_path) == [f"train/{name}.png" for name in order]
    assert test.labels.tolist() == [0, 0, 1]
    own_pictures(tmp_path / second, {"c": 1})
    with pytest.raises(DataError, match=rf"c: pictures in {second}/ only"):
        read_folder(tmp_path, 8, strict=True)
    train, test = read_folder(tmp_path, 8)
    assert train.class_names == test.class_names == ("a", "b")
    assert any("not on both sides" in note and "c (" in note for note in train.notes)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    own_pictures(tmp_path, {"train": 4, "bus": 4})
    assert read_folder(tmp_path, 8)[0].class_names == ("bus", "train")


def test_which_files_of_a_folder_are_pictures(tmp_path: Path) -> None:
    for name in ("a.PNG", "b.jpg", "c.JpEg", "d.webp", "e.bmp", "f.gif", "g.PPM", "h.pgm", "i.tif", "j.tiff",
                 "note.txt", ".g.png", "Thumbs.db"):
        for kind in ("x", "y"):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / name).write_bytes(b"x")
    (tmp_path / "x" / "folder.png").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "loose.png").write_bytes(b"x")
    train, test = read_folder(tmp_path, 8)
    assert train.class_names == ("x", "y")
    found = sorted(names_of(train, tmp_path) + names_of(test, tmp_path))
    assert found == [f"{kind}/{name}" for kind in "xy"
                     for name in ("a.PNG", "b.jpg", "c.JpEg", "d.webp", "e.bmp", "f.gif", "g.PPM", "h.pgm", "i.tif",
                                  "j.tiff")]


def test_the_digest_of_files_covers_names_sizes_and_labels(tmp_path: Path) -> None:
    own_pictures(tmp_path / "one", {"a": 5, "b": 5})
    own_pictures(tmp_path / "two", {"a": 5, "b": 5})

    def digests(root: Path) -> list[str]:
        return [part.digest for part in read_folder(root, 8)]

    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    met = {tuple(digests(tmp_path / "one"))}
    (tmp_path / "two" / "b" / "000.png").write_bytes(b"longer")
    met.add(tuple(digests(tmp_path / "two")))
    own_pictures(tmp_path / "one", {"0": 2})
    met.add(tuple(digests(tmp_path / "one")))
    assert len(met) == 3
    rows = [("a/0.png", 1, 0), ("a/1.png", 1, 1)]
    swapped = [("a/0.png", 1, 1), ("a/1.png", 1, 0)]
    one, two = (images.file_set(tmp_path, files, ("a", "b"), 8).digest for files in (rows, swapped))
    assert one != two


def test_folders_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders"):
        read_folder(tmp_path, 8)
    with pytest.raises(DataError, match="nowhere: no such folder"):
        read_folder(tmp_path / "nowhere", 8)
    own_pictures(tmp_path, {"a": 2, "empty": 0})
    with pytest.raises(DataError, match=r"empty: no pictures \(\.bmp"):
        read_folder(tmp_path, 8, strict=True)
    assert read_folder(tmp_path, 8)[0].class_names == ("a",)
    for size, fraction in ((0, 0.2), (8, 0.0), (8, 1.0)):
        with pytest.raises(DataError, match="test fraction between 0 and 1"):
            read_folder(tmp_path, size, fraction)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    own_pictures(tmp_path, {"a": 2})
    odd = os.fsencode(tmp_path) + b"/a/caf\xe9.png"
    with open(odd, "wb"):
        pass
    with pytest.raises(DataError, match=r"caf\\xe9\.png.*not UTF-8") as caught:
        read_folder(tmp_path, 8, strict=True)
    str(caught.value).encode()
    os.unlink(odd)
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    with pytest.raises(DataError, match="not UTF-8"):
        read_folder(tmp_path, 8, strict=True)


# the real thing


@pytest.mark.skipif("PROTOCORE_DATA" not in os.environ, reason="PROTOCORE_DATA, a folder of data, is not set")
def test_real_cifar100_is_ready_in_two_seconds() -> None:
    root = Path(os.environ["PROTOCORE_DATA"])
    if not (root / "cifar-100-binary").is_dir():
        pytest.skip(f"no cifar-100-binary in {root}")
    read_cifar100(root)  # the first reading may wait for the disk
    start = time.perf_counter()
    train, test = read_cifar100(root)
    assert time.perf_counter() - start < 2
    assert np.bincount(train.labels).tolist() == [500] * 100
    assert np.bincount(test.labels).tolist() == [100] * 100
    assert train.class_names[:2] == ("apple", "aquarium_fish")
    assert train.digest.startswith("fea113de5b3d")
    assert test.digest.startswith("c89736e6fa81")
