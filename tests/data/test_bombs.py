"""Pictures that are small files and would cost minutes or gigabytes, and ordinary ones that come near to them."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocore.config import Settings
from protocore.data import archives
from protocore.data import images as images_module
from protocore.data.benchmarks import open_stream
from protocore.data.bombs import refuse_bombs
from protocore.data.cifar import records
from protocore.data.images import FileImages, Images
from protocore.data.reading import checked_names
from protocore.errors import DataError
from protocore.pictures import MOST_WEBP, open_picture, quiet, turn_of

NOISE = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)


def saved(kind: str, picture: Image.Image | None = None, **options: object) -> bytes:
    file = io.BytesIO()
    (picture or Image.fromarray(NOISE)).save(file, format=kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def png_with(kind: bytes, body: bytes, count: int) -> bytes:
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    plain = saved("PNG")
    return plain[:33] + chunk * count + plain[33:]


def tiff(*entries: tuple[int, int, int, int], order: str = "<", big: bool = False) -> bytes:
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    head += struct.pack(order + ("HHQQ" if big else "IH"), *((8, 0, 16, len(entries)) if big else (8, len(entries))))
    return head + b"".join(struct.pack(order + ("HHQQ" if big else "HHII"), *entry) for entry in entries)


def many_scans(scans: int) -> bytes:
    data = saved("JPEG", progressive=True)
    last = data[data.rfind(b"\xff\xda"):-2]
    return data[:-2] + last * scans + data[-2:]


@pytest.mark.parametrize(("data", "message"), [
    (png_with(b"tEXt", b"k\0v", 101), "101 notes"),
    (png_with(b"iCCP", b"k\0\0" + zlib.compress(bytes(1000)), 101), "101 notes"),
    (png_with(b"IDAT", b"", 100_001), "100,001 chunks"),
    (many_scans(101), "101 scans"),
    (saved("JPEG")[:2] + b"\xff\xfe\0\2" * 501 + saved("JPEG")[2:], "501 segments"),
    (tiff(*[(270 + i, 2, 1, 0) for i in range(1001)]), "1,001 entries"),
    (tiff((273, 4, 200_001, 8)), "200,001 numbers in one entry"),
    (tiff((273, 3, 200_001, 8), order=">"), "200,001 numbers in one entry"),
    (tiff((273, 16, 1 << 60, 8), big=True), "numbers in one entry"),
    (tiff((270, 2, 4000, 8), (271, 2, 4000, 8)), "8,000 bytes in its entries"),
    (tiff((270, 2, 4000, 8))[:15], "truncated"),
    (b"GIF89a" + b"!\xfe\1x\0" * 10_001, "10,001 comments"),
    (b"BM" + bytes(28) + b"\1\0\0\0" + bytes(5 << 20), "bytes of runs"),
    (b"BM" + bytes(28) + b"\2\0\0\0" + bytes(5 << 20), "bytes of runs"),
    (b"P3 12 12 255\n" + b"0 " * (3 << 20), "bytes of text"),
    (b"P6" + b" " * 5000 + b"12 12 255\n", "no size of a picture within"),
    (b"P6 #" + b"x" * 5000 + b"\n12 12 255\n", "no size of a picture within"),
    (b"P", "no size of a picture within"),
])
def test_costly_pictures_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refuse_bombs(data)


@pytest.mark.parametrize("data", [
    *(saved(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP")),
    saved("JPEG", progressive=True), saved("TIFF", compression="tiff_lzw"), saved("TIFF", compression="jpeg"),
    saved("PPM", Image.new("1", (9, 9))), saved("TIFF", big_tiff=True),
    png_with(b"tEXt", b"k\0v", 100), many_scans(80),
    b"P3\n# by hand\n2 1\n255\n0 0 0  255 255 255\n", b"P1 2 1\n0 1",
    saved("JPEG", icc_profile=bytes(500_000)),
    saved("JPEG") + b"\xff\xda" * 1000,  # a film that a telephone has put after the picture
])
def test_ordinary_pictures_pass(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(data)
    _, (outcome,) = FileImages([tmp_path / "picture"], 1).attempt(np.array([0]))
    assert isinstance(outcome, tuple), outcome


def test_a_bomb_in_a_folder_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "set" / name / f"{i}.png").write_bytes(saved("PNG"))
    (tmp_path / "set" / "a" / "bomb.jpg").write_bytes(many_scans(101))
    notes = open_stream(Settings(benchmark=f"folder:{tmp_path / 'set'}", image_size=8)).notes
    assert [note for note in notes if "a/bomb.jpg (101 scans" in note]


def test_webp_may_have_fewer_pixels_for_its_decoder_takes_more_memory() -> None:
    side = int(MOST_WEBP**0.5) + 1
    data = saved("WEBP", Image.new("L", (side, side)), quality=1, method=0)
    with pytest.raises(ValueError, match="more than the 24 million pixels"), open_picture(io.BytesIO(data)):
        pass


def test_large_files_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them is what takes the memory, so the waiting is done before."""
    monkeypatch.setattr(images_module, "_LARGE", 10)
    monkeypatch.setattr(images_module.os, "cpu_count", lambda: 8)
    paths = []
    for i in range(40):
        paths.append(tmp_path / f"{i}.png")
        paths[-1].write_bytes(saved("PNG"))
    inside, most, read = 0, 0, images_module.read_bytes
    lock, turn = threading.Lock(), threading.Event()

    def counted(path: Path, limit: int) -> bytes:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        turn.wait(0.002)
        with lock:
            inside -= 1
        return read(path, limit)

    monkeypatch.setattr(images_module, "read_bytes", counted)
    FileImages(paths, 8).take(np.arange(40))
    assert most == 1


# how the camera was held


@pytest.mark.parametrize("note", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_picture_stands_as_the_camera_was_held(tmp_path: Path, note: int, kind: str) -> None:
    """Pillow's own transposition of the whole picture is the reference."""
    from PIL import ImageOps

    rows, columns = np.mgrid[:24, :40]
    picture = Image.fromarray((rows * 4 + columns * 3).astype(np.uint8)).convert("RGB")
    notes = Image.Exif()
    notes[274] = note
    data = saved(kind, picture, exif=notes, **({"quality": 100} if kind != "PNG" else {}))
    (tmp_path / "held").write_bytes(data)
    with Image.open(io.BytesIO(data)) as told:
        ImageOps.exif_transpose(told).save(tmp_path / "upright", format="PNG")
    held, upright = (FileImages([tmp_path / name], 8, upright=True).take(np.array([0])) for name in ("held", "upright"))
    assert np.abs(held.astype(int) - upright.astype(int)).max() <= 2
    turned = not np.array_equal(held, FileImages([tmp_path / "held"], 8).take(np.array([0])))
    assert turned == (note > 1 and kind != "TIFF")  # other data sets take pictures as they lie; Pillow turns a TIFF


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", bytes(1 << 17), "text"])
def test_damaged_notes_do_not_lose_the_picture(exif: object) -> None:
    picture = Image.new("L", (2, 2))
    picture.info["exif"] = exif
    with quiet():
        assert turn_of(picture) is None


# folders and records


def test_a_link_to_itself_costs_no_other_class_or_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    for name in "abcd":
        (tmp_path / "set" / name).mkdir(parents=True)
        os.symlink("self.png", tmp_path / "set" / name / "self.png")
        for i in range(3):
            (tmp_path / "set" / name / f"{i}.png").write_bytes(saved("PNG"))
    os.symlink("loop", tmp_path / "set" / "loop")
    os.symlink("nowhere", tmp_path / "set" / "gone")
    stream = open_stream(Settings(benchmark=f"folder:{tmp_path / 'set'}", image_size=8))
    assert stream.class_names == ("a", "b", "c", "d")
    assert "12 pictures of 4 classes" in stream.notes[0]
    assert [note for note in stream.notes if "2 links that lead nowhere" in note and "gone" in note]


def test_records_give_their_pages_back_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(3 * 3073))
    released: list[Images] = []
    monkeypatch.setattr("protocore.data.cifar.ArrayImages.release", lambda self: released.append(self))
    assert len(records(tmp_path / "x.bin", (10,))[0]) == 3
    assert len(released) == 1
    monkeypatch.setattr("protocore.data.cifar.MOST_LABELS", 2)
    with pytest.raises(DataError, match="3 records, where at most 2 are read"):
        records(tmp_path / "x.bin", (10,))


def test_names_that_would_steer_a_terminal_are_no_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    for name in ("a", "b", "c\x1b[31m", "d\nd", "😀", "ع"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(3):
            (tmp_path / "set" / name / f"{i}.png").write_bytes(saved("PNG"))
    stream = open_stream(Settings(benchmark=f"folder:{tmp_path / 'set'}", image_size=8))
    assert stream.class_names == ("a", "b", "ع", "😀")
    (note,) = [note for note in stream.notes if "2 folders with control characters" in note]
    assert "\x1b" not in note
    with pytest.raises(DataError, match=r"control characters") as caught:
        checked_names(tmp_path, ["a", "\x1b[2J"], 2)
    assert "\x1b" not in str(caught.value)


def test_an_archive_of_countless_empty_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 5)
    for suffix in ("tar", "zip"):
        for count, folders in ((5, False), (6, False), (6, True)):
            path = tmp_path / f"{count}{folders}.{suffix}"
            names = [f"{i}/" if folders else str(i) for i in range(count)]
            if suffix == "zip":
                with zipfile.ZipFile(path, "w") as bundle:
                    for name in names:
                        bundle.writestr(name, b"")
            else:
                with tarfile.open(path, "w") as tar:
                    for name in names:
                        entry = tarfile.TarInfo(name.rstrip("/"))
                        entry.type = tarfile.DIRTYPE if folders else tarfile.REGTYPE
                        tar.addfile(entry)
            root = tmp_path / f"{count}{folders}{suffix}"
            if count == 5:
                archives.unpack(path, root, 100)
                assert len(list(root.iterdir())) == 5
            else:
                with pytest.raises(DataError, match="more than 5 files and folders"):
                    archives.unpack(path, root, 100)
