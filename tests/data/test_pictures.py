"""Picture files of any origin: which are opened, how much they cost, what is said of those that cannot be used."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocore import api
from protocore.cli import main
from protocore.codecs.webp import WebP
from protocore.config import Settings
from protocore.data import cache, cifar, idx, images
from protocore.data.benchmarks import open_stream
from protocore.data.cache import cached, kept_pair
from protocore.data.images import ArrayImages, FileImages, file_set
from protocore.data.sets.cifar100 import read_cifar100
from protocore.data.sets.folder import read_folder
from protocore.data.stream import Stream
from protocore.errors import DataError
from protocore.pictures import FORMATS, MOST_PIXELS, open_picture

RED, GREEN, BLUE = (250, 0, 0), (0, 250, 0), (0, 0, 250)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def signs(root: Path, colours: dict[str, tuple[int, int, int]], count: int = 6, kind: str = "bmp") -> Path:
    for name, colour in colours.items():
        for number in range(count):
            paint(root / name / f"{number}.{kind}", colour)
    return root


def stream_of(path: Path, **settings: object) -> Stream:
    return open_stream(Settings(benchmark=f"folder:{path}", image_size=8, classes_per_task=1, **settings))  # type: ignore[arg-type]


def colours_of(stream: Stream) -> list[tuple[int, ...]]:
    return [tuple(part.take(0, 1)[0, :, 0, 0].tolist()) for part in stream.tests]


# the cache


def test_two_folders_of_equal_names_and_sizes_are_two_data_sets(tmp_path: Path) -> None:
    one = signs(tmp_path / "one", {"a": RED, "b": GREEN})
    two = signs(tmp_path / "two", {"a": BLUE, "b": RED})
    lengths = [[path.stat().st_size for path in sorted(root.rglob("*.bmp"))] for root in (one, two)]
    assert lengths[0] == lengths[1]
    first, second = stream_of(one), stream_of(two)
    assert colours_of(first) == [RED, GREEN]
    assert colours_of(second) == [BLUE, RED]
    assert first.digest != second.digest
    assert stream_of(one).digest == first.digest


@pytest.mark.parametrize("side", [0, 1])
def test_a_replaced_picture_is_seen_even_with_the_old_time_stamp(tmp_path: Path, side: int) -> None:
    root = signs(tmp_path / "one", {"a": RED, "b": GREEN})
    before = stream_of(root)
    parts = read_folder(root, 8)
    source, row = parts[side].images.source, parts[side].images.rows[0]  # type: ignore[attr-defined]
    path = Path(source.paths[row])
    stamps = path.stat()
    paint(path, BLUE)
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    assert path.stat().st_size == stamps.st_size
    after = stream_of(root)
    assert after.digest != before.digest  # of the whole: pictures to learn from and pictures to test on
    changed = read_folder(root, 8)[side]
    assert changed.digest != parts[side].digest


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_flipped_bit_in_the_cache_is_not_served(tmp_path: Path, suffix: str) -> None:
    source = ArrayImages(np.random.default_rng(1).integers(0, 256, (10, 3, 4, 4), dtype=np.uint8))
    cached(source, "key", tmp_path)
    (path,) = tmp_path.glob(f"*{suffix}")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
        again = cached(source, "key", tmp_path)
        assert np.array_equal(again.images.take(np.arange(10)), source._array)
        assert (again.bad, again.cut, again.smallest) == ({}, 0, (4, 4))
        assert path.read_bytes() == whole


def test_what_was_found_is_kept_with_the_pixels(tmp_path: Path) -> None:
    for name, size in (("a", (4, 4)), ("b", (9, 20)), ("c", (8, 6))):
        paint(tmp_path / f"{name}.png", RED, size)
    (tmp_path / "d.png").write_bytes(b"no picture")
    part = file_set(tmp_path, [(f"{name}.png", 0, 0) for name in "abcd"], ("x",), 4)
    for _ in range(2):
        kept = cached(part.images, part.digest, tmp_path / "cache")
        assert list(kept.bad) == [3]
        assert (kept.smallest, kept.largest, kept.cut) == ((4, 4), (9, 20), 2)
        assert kept.images.take(np.array([3])).max() == 0


def test_another_pillow_makes_the_cache_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ArrayImages(np.zeros((2, 1, 4, 4), np.uint8))
    cached(source, "key", tmp_path)
    (beside,) = tmp_path.glob("*.json")
    first = beside.read_bytes()
    monkeypatch.setattr(cache, "_MAKER", "another")
    cached(source, "key", tmp_path)
    assert beside.read_bytes() != first


# what is opened


def test_only_the_named_formats_are_opened(tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 8), RED)
    for format in FORMATS:
        path = tmp_path / f"{format}.png"  # the name does not matter, the content does
        picture.save(path, format)
        assert FileImages([path], 4).take(np.array([0])).shape == (1, 3, 4, 4)
    for format in ("ICO", "PCX", "TGA", "SGI", "PDF"):
        path = tmp_path / f"{format}.png"
        picture.save(path, format)
        with pytest.raises(DataError, match=rf"{format}\.png: cannot read.*none of JPEG, PNG"):
            FileImages([path], 4).take(np.array([0]))


def test_an_eps_file_named_png_starts_no_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "started"
    (tmp_path / "bin").mkdir()
    for name in ("gs", "gswin32c", "gswin64c"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (tmp_path / "bin" / name).chmod(0o755)
    root = signs(tmp_path / "mine", {"a": RED, "b": GREEN})
    Image.new("RGB", (8, 8)).save(root / "a" / "x.png", "EPS")
    code = ("import sys\nfrom protocore.data.images import FileImages\nimport numpy\n"
            "FileImages([sys.argv[1]], 8).take(numpy.array([0]))")
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = subprocess.run([sys.executable, "-c", code, str(root / "a" / "x.png")], capture_output=True, text=True,
                          env={**os.environ, "PATH": path})
    assert "cannot read this picture" in done.stderr
    assert not mark.exists()


def test_of_several_frames_the_first_is_read(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN)]
    for name in ("a.gif", "a.tiff"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert FileImages([tmp_path / name], 8).take(np.array([0]))[0, :, 4, 4].tolist() == list(RED)


@pytest.mark.parametrize("name", ["a.ppm", "a.pgm", "a.tif", "a.TIFF"])
def test_ppm_and_tiff_in_a_folder(tmp_path: Path, name: str) -> None:
    for kind, colour in (("x", RED), ("y", GREEN)):
        for number in range(2):
            paint(tmp_path / "mine" / kind / f"{number}{name}", colour)
    assert stream_of(tmp_path / "mine").class_names == ("x", "y")


# how large a picture may be


def large_png(path: Path, side: int) -> Path:
    """A black picture of one bit a pixel, written as Pillow would, but quickly."""
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = zlib.compress(bytes(side * (1 + -(-side // 8))), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 1, 0, 0, 0, 0))
                     + chunk(b"IDAT", packed) + chunk(b"IEND", b""))
    return path


def test_a_picture_beyond_the_limit_is_refused_undecoded(tmp_path: Path) -> None:
    path = large_png(tmp_path / "large.png", 13_300)
    assert path.stat().st_size < 1 << 20
    script = ("import resource, sys, numpy\nfrom protocore.data.images import FileImages\n"
              "from protocore.errors import DataError\nsource = FileImages([sys.argv[1]], 8)\n"
              "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
              "try:\n    source.take(numpy.array([0]))\nexcept DataError as error:\n    print(error)\n"
              "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
    done = subprocess.run([sys.executable, "-W", "error", "-c", script, str(path)], capture_output=True, text=True)
    message, grown = done.stdout.strip().rsplit("\n", 1)
    assert "large.png: cannot read" in message
    assert f"{MOST_PIXELS // 10**6} million pixels" in message
    assert int(grown) < 50_000  # kilobytes
    assert done.stderr == ""


def test_no_warning_of_pillow_gets_out(tmp_path: Path) -> None:
    path = large_png(tmp_path / "large.png", 10_000)  # 100 million pixels: Pillow warns of a bomb
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"10,000 x 10,000 pixels, more than the 50 million"):
            FileImages([path], 8).take(np.array([0]))
        filters = list(warnings.filters)
        FileImages([tmp_path / "none.png"] * 40, 8).attempt(np.arange(40))
        assert warnings.filters == filters


def test_a_decoder_of_exemplars_warns_of_nothing_either() -> None:
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "WEBP", quality=1)
    file = out.getvalue()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="more than the 24 million pixels"):
            WebP((3, 8, 8), 50).pixels(file[:26] + struct.pack("<2H", 10_000, 9_500) + file[30:])


def test_a_large_jpeg_is_read_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grain = np.random.default_rng(2).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(grain).resize((1000, 1200), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=95)
    whole, ((width, height),) = FileImages([tmp_path / "a.jpg"], 10).attempt(np.array([0]))
    monkeypatch.setattr(images, "_LARGE", 1000)
    loaded: list[tuple[int, int]] = []
    load = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda self: (loaded.append(self.size), load(self))[1])
    small, sizes = FileImages([tmp_path / "a.jpg"], 10).attempt(np.array([0]))
    assert sizes == [(width, height)] == [(1000, 1200)]
    assert max(max(size) for size in loaded) <= 400
    assert np.abs(small.astype(int) - whole).mean() < 6


def test_one_large_picture_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_LARGE", 10)
    monkeypatch.setattr(images.os, "cpu_count", lambda: 64)
    under_way, most, square = [0], [0], images._square

    def slowly(*arguments: object) -> np.ndarray:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.002)
        under_way[0] -= 1
        return square(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "_square", slowly)
    paint(tmp_path / "a.png", RED)
    source = FileImages([tmp_path / "a.png"] * 40, 4)
    source.take(np.arange(40))
    assert most[0] == 1
    monkeypatch.setattr(images, "_LARGE", 10**6)
    source.take(np.arange(40))
    assert 1 <= most[0] <= images._MOST_THREADS


def test_a_picture_file_of_too_many_bytes_or_none_at_all(tmp_path: Path) -> None:
    with open(tmp_path / "a.png", "wb") as file:
        file.truncate(images.MOST_BYTES + 1)
    os.mkfifo(tmp_path / "b.png")
    os.symlink("/dev/zero", tmp_path / "c.png")
    part = file_set(tmp_path, [(f"{name}.png", 0, 0) for name in "abcd"], ("x",), 4)
    _, outcomes = part.images.attempt(np.arange(4))
    for outcome, words in zip(outcomes, ("at most 268,435,456", "a pipe", "a device", "no such file"), strict=True):
        assert words in str(outcome)


def test_a_file_that_changes_between_two_readings_is_an_error(tmp_path: Path) -> None:
    for name in "ab":
        paint(tmp_path / f"{name}.png", RED)
    part = file_set(tmp_path, [("a.png", 0, 0), ("b.png", 0, 0)], ("x",), 4)
    paint(tmp_path / "b.png", GREEN)
    with pytest.raises(DataError, match=r"b\.png: changed while it was being read"):
        cached(part.images, part.digest, tmp_path / "cache")
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png: changed while it was being read"):
        cached(part.images, part.digest, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))


def test_open_picture_decodes_nothing(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", RED)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[:-20])
    with open_picture(tmp_path / "a.png") as picture:
        assert picture.size == (8, 8)


# folders with faults


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    root = signs(tmp_path / "mine", {"a": RED, "b": GREEN}, kind="png")
    for number in range(12):
        (root / "a" / f"bad{number:02d}.png").write_bytes(b"\x1b[31mno picture")
    whole = (root / "b" / "0.png").read_bytes()
    (root / "b" / "cut.png").write_bytes(whole[:-30])
    (root / "b" / "link.png").symlink_to(tmp_path / "nowhere.png")
    (root / "empty").mkdir()
    paint(root / "nested" / "deeper" / "0.png", RED)
    paint(root / "lonely" / "0.png", BLUE)
    paint(root / "__MACOSX" / "a" / "0.png", BLUE)
    (root / "a" / "__MACOSX").mkdir()
    (root / "a" / "Thumbs.db").write_bytes(b"x")
    (root / "a" / ".DS_Store").write_bytes(b"x")
    (root / "a" / "notes.txt").write_bytes(b"x")
    (root / ".hidden").mkdir()
    paint(root / "b" / "inner" / "0.png", RED)
    paint(root / "loose.png", RED)
    return root


def test_what_cannot_be_used_is_left_out_and_named(messy: Path) -> None:
    for _ in range(2):  # decoded first, from the cache then
        stream = stream_of(messy)
        assert stream.class_names == ("a", "b")
        assert colours_of(stream) == [RED, GREEN]
        assert sum(len(part.labels) for part in stream.tests) + sum(map(stream.task_size, range(2))) == 12
        told = "\n".join(stream.notes)
        for words in ("12 pictures of 2 classes", "8 x 8 pixels became 8 x 8", "held out to test on",
                      "14 pictures that cannot be read: ", "a/bad00.png", "2 folders without pictures: empty",
                      "nested (no pictures", "folders within it are not read", "1 class with fewer than two",
                      "lonely (1 picture", "2 folders of an archiver: __MACOSX",
                      "1 picture in no class folder: loose.png", "1 file that is no picture by its name: a/notes.txt",
                      "1 folder within a class folder: b/inner"):
            assert words in told
        assert len(stream.notes) == 9
        assert "Thumbs" not in told
        assert "hidden" not in told
        assert "\x1b" not in told


def test_strict_lists_everything_at_once(messy: Path) -> None:
    with pytest.raises(DataError) as caught:
        stream_of(messy, strict=True)
    told = str(caught.value)
    assert "19 faults" in told
    assert "--strict" in told
    assert "and 9 more" in told
    assert len(told.splitlines()) == 12


def test_a_clean_folder_is_the_same_with_strict(tmp_path: Path) -> None:
    root = signs(tmp_path / "mine", {"a": RED, "b": GREEN})
    assert stream_of(root, strict=True).digest == stream_of(root).digest
    (root / "a" / "bad.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"a/bad\.png: damaged, or none of"):
        stream_of(root, strict=True)


def test_a_folder_where_nothing_can_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "mine" / "a").mkdir(parents=True)
    for name in "xyz":
        (tmp_path / "mine" / "a" / f"{name}.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"(?s)no class folders with pictures.*a/x\.png: damaged.*a/z\.png"):
        stream_of(tmp_path / "mine")


def test_a_folder_one_too_high_is_recognised(tmp_path: Path) -> None:
    signs(tmp_path / "outer" / "mine", {"a": RED, "b": GREEN})
    with pytest.raises(DataError, match=r"did you mean .*outer/mine\?"):
        stream_of(tmp_path / "outer")


@pytest.mark.parametrize("test", [False, True])
def test_train_alone_is_split_like_a_plain_folder(tmp_path: Path, test: bool) -> None:
    plain = signs(tmp_path / "plain", {"a": RED, "b": GREEN}, count=20)
    shutil.copytree(plain, tmp_path / "mine" / "train")
    if test:
        (tmp_path / "mine" / "test" / "a").mkdir(parents=True)
    stream, same = stream_of(tmp_path / "mine"), stream_of(plain)
    assert stream.class_names == ("a", "b")
    assert [part.rows.tolist() for part in stream.tests] == [part.rows.tolist() for part in same.tests]
    assert "chosen by a hash" in stream.notes[0]


def test_notes_say_sizes_and_cropping(tmp_path: Path) -> None:
    for name in "ab":
        for number in range(3):
            paint(tmp_path / "train" / name / f"{number}.png", RED, (20 + number, 20))
        paint(tmp_path / "val" / name / "0.png", GREEN, (40, 30))
    stream = api.stream(f"folder:{tmp_path}", image_size=8)
    assert stream.notes[0].endswith("8 pictures of 2 classes; 6 to learn from, 2 held out to test on (those of val/)")
    assert stream.notes[1] == ("pictures of 20 x 20 to 40 x 30 pixels became 8 x 8; 6 were not square: scaled by the "
                               "shorter side, then the middle was cut out")


def test_the_command_line_tells_the_notes_unless_it_is_to_be_quiet(tmp_path: Path, messy: Path,
                                                                    capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run", "er", f"folder:{messy}", "--image-size", "8", "--epochs", "1", "--runs", str(tmp_path / "runs"),
             "--no-figures", "--width", "8"]
    assert main(words) == 0
    told = capfd.readouterr().err
    assert "12 pictures of 2 classes" in told
    assert "14 pictures that cannot be read" in told
    assert main([*words, "--again", "--quiet"]) == 0
    assert "pictures" not in capfd.readouterr().err


def test_bad_files_of_a_published_set_are_named_at_once(tmp_path: Path) -> None:
    part = file_set(tmp_path, [(f"{number}.png", 0, 0) for number in range(13)], ("x",), 4)
    with pytest.raises(DataError, match=r"(?s)13 pictures cannot be read.*0\.png.*9\.png.*and 3 more") as caught:
        part.images.take(np.arange(13))
    assert len(str(caught.value).splitlines()) == 12


def test_a_published_set_is_kept_decoded_only_if_all_its_pictures_can_be_read(tmp_path: Path) -> None:
    """A black one in place of a damaged file would be learned and tested on."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture at all")
    sound, broken = (file_set(tmp_path, [(name, (tmp_path / name).stat().st_size, 0)], ("x",), 4)
                     for name in ("good.png", "bad.png"))
    for pair in ((sound, broken), (broken, sound)):
        with pytest.raises(DataError, match=r"bad\.png: cannot read this picture"):
            kept_pair(pair)
    for part in kept_pair((sound, sound)):
        assert isinstance(part.images, ArrayImages)
        assert np.array_equal(part.images.take(np.arange(1))[0], pixels.transpose(2, 0, 1))


# pickles and IDX files that cost more than they look


def doubled(times: int) -> list[object]:
    """A list of twice the list before, `times` over: a few bytes each in a pickle."""
    value: list[object] = []
    for _ in range(times):
        value = [value, value]
    return value


def cifar100(root: Path, label: object) -> None:
    base = root / "cifar-100-python"
    base.mkdir()
    names = {"fine_label_names": [f"fine {number}" for number in range(100)]}
    (base / "meta").write_bytes(pickle.dumps(names, protocol=2))
    content = {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [label]}
    (base / "train").write_bytes(pickle.dumps(content, protocol=2))
    assert (base / "train").stat().st_size < 1 << 20


@pytest.mark.parametrize(("label", "message"), [
    (doubled(26), r"record 0 has label \[\[\[…"),
    (10**5000, "a whole number of 16,610 bits"),
    ("\x1b[31m" * 10**5, r"label '\\x1b\[31m"),
    (2.5, "record 0 has label 2.5"),
    (None, "record 0 has label None"),
    ({}, r"record 0 has label \{\}"),
], ids=["lists", "long", "escapes", "float", "none", "mapping"])
def test_labels_that_are_no_numbers_are_refused_at_once(tmp_path: Path, label: object, message: str) -> None:
    cifar100(tmp_path, label)
    start = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            read_cifar100(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)
    assert peak < 16 << 20
    assert time.perf_counter() - start < 10


def nested_key(times: int) -> bytes:
    code = b"}N\x85q\x00"
    for number in range(times):
        code += b"h" + bytes([number]) + b"\x86q" + bytes([number + 1])
    return code + b"Ns."


@pytest.mark.parametrize(("body", "message"), [
    (nested_key(200), "instruction BINGET"),
    (b"}N\x85" + b"2\x86" * 200 + b"Ns.", "instruction DUP"),
    (b"}(" + b"]" * 1_100_000 + b"u.", "more instructions"),
    (b"}\x8f(Ne0.", "instruction EMPTY_SET"),
    (b"}K\x01Ns.", "the key 1 is no text"),
    (b"}N\x85Ns.", r"the key \(None.*\) is no text"),
])
def test_pickles_that_would_never_end_are_refused(tmp_path: Path, body: bytes, message: str) -> None:
    (tmp_path / "train").write_bytes(b"\x80\x04" + body)
    start = time.perf_counter()
    with pytest.raises(DataError, match=message):
        cifar.restricted_load(tmp_path / "train")
    assert time.perf_counter() - start < 60


def test_a_pickle_of_too_many_bytes_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "train", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="1,099,511,627,776 bytes, where at most 268,435,456 are read"):
        cifar.restricted_load(tmp_path / "train")


def test_a_long_shape_is_not_multiplied_out() -> None:
    sides = (1 << 60,) * 100_000
    with pytest.raises(ValueError, match="array of shape"):
        cifar._Array().__setstate__((1, sides, cifar._Dtype("u1"), False, b""))


def test_reading_a_mapped_file_through_does_not_keep_it_in_memory(tmp_path: Path) -> None:
    count = 256  # megabytes
    with open(tmp_path / "train-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">4I", 0x803, count, 1024, 1024))
        file.truncate(16 + (count << 20))
    script = ("import resource, sys, numpy\nfrom pathlib import Path\nfrom protocore.data import idx, images\n"
              "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
              "pixels = idx.read_idx_file(Path(sys.argv[1]), 3)[:, None]\n"
              "labels = numpy.zeros(len(pixels), numpy.int64)\n"
              "print(images.array_set(images.ArrayImages(pixels), labels, 'x').digest)\n"
              "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "train-images-idx3-ubyte")],
                          capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1]) < 100_000  # kilobytes


def test_a_gzipped_idx_file_beyond_the_limit_is_refused_by_its_header(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx, "_MOST_UNPACKED", 1 << 20)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 3, 1000, 1000) + bytes(3_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"3,000,016 bytes, where at most 1,048,576.*gunzip"):
            idx.read_idx_file(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    plain = path.with_suffix("")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert isinstance(idx.read_idx_file(plain, 3), np.memmap)
    monkeypatch.setattr(idx, "MOST_LABELS", 5)
    for name, pack in (("labels", bytes), ("labels.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(struct.pack(">2I", 0x801, 6) + bytes(6)))
        with pytest.raises(DataError, match="6 labels, where at most 5"):
            idx.read_idx_file(tmp_path / name, 1)


