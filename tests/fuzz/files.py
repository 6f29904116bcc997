"""Files of data sets: CIFAR's pickles and records, IDX, archives."""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np

from fuzz.mutate import damaged_bytes

_NAMES = [f"class {i}" for i in range(100)]
# Instructions of pickle with which small files ask for much, and odd values for where a label or a name belongs
_PIECES = (b"2", b"(", b"0", b"}", b"]", b")", b"l", b"t", b"d", b"\x85", b"\x86", b"\x87", b"N.", b"\x88", b"\x89",
           b"J\xff\xff\xff\x7f",
           b"\x8a\x04\xff\xff\xff\x7f", b"\x8b\x00\x10\x00\x00" + b"\xff" * 4096, b"G" + b"\x7f\xf0" + b"\0" * 6, b"I"
           + b"9" * 5000 + b"\n",
           b"L" + b"9" * 5000 + b"L\n", b"cos\nsystem\n", b"cbuiltins\neval\n", b"\x8c\x02os\x8c\x06system\x93",
           b"cnumpy\ndtype\n",
           b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"R", b"b", b"\x81", b"\x92", b"q\xff",
           b"r\xff\xff\xff\x7f",
           b"h\x00", b"j\xff\xff\xff\xff", b"\x94", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f",
           b"\x8e" + b"\xff" * 8,
           b"X\xff\xff\xff\x7f", b"V\x1b[2J\n", b"V\\ud800\n", b"\x8f", b"\x90", b"\x91", b"]" + b"\x85" * 3000,
           b"P\x1b[2J\n", b"Q",
           b"\x82\x01", b"i__main__\nx\n", b"\x96" + b"\xff" * 8, b"\x97", b"\x98", b"F1e999\n", b"S'\\x1b'\n",
           b"(K\x01K\x02d", b"a", b"e",
           b"s", b"u", b"((((((", b"]2a" * 50, b"]q\x01h\x01a")


def cifar_pickles() -> list[bytes]:
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    table = {b"data": pixels, b"fine_labels": [3, 99], b"coarse_labels": [0, 19], b"filenames": [b"a.png", b"b.png"]}
    return [pickle.dumps(table, protocol=p) for p in (0, 2, 4)] + [pickle.dumps({k.decode(): v for k,
                                                                                 v in table.items()}, protocol=2)]


def cifar_names() -> list[bytes]:
    return [pickle.dumps({"fine_label_names": _NAMES}, protocol=p) for p in (0, 2, 4)] + [
        pickle.dumps({b"fine_label_names": [name.encode() for name in _NAMES]}, protocol=2)]


def around_cifar() -> Mapping[str, bytes]:
    return {"cifar-100-python/test": cifar_pickles()[1], "cifar-100-python/meta": cifar_names()[1]}


def around_cifar_names() -> Mapping[str, bytes]:
    return {"cifar-100-python/test": cifar_pickles()[1], "cifar-100-python/train": cifar_pickles()[1]}


def cifar_records() -> list[bytes]:
    return [bytes([1, 7]) + bytes(range(256)) * 12 + bytes([19, 99]) + b"\x80" * 3072]


def around_records() -> Mapping[str, bytes]:
    return {"cifar-100-binary/test.bin": cifar_records()[0],
            "cifar-100-binary/fine_label_names.txt": "\n".join(_NAMES).encode()}


def read_cifar(path: Path) -> None:
    from protocore.data.sets.cifar100 import read_cifar100

    train, _ = read_cifar100(path.parent.parent)
    train.images.take(np.arange(len(train.images)))


def damaged_pickle(data: bytes, draw: Random) -> bytes:
    """An odd instruction or value put in or over; a list doubled many times; or damage to the bytes."""
    kind = draw.randrange(4)
    if kind == 0:
        return damaged_bytes(data, draw)
    at = draw.randrange(len(data) + 1)
    if kind == 1:  # behind a label or a name
        marks = [i + 2 for i in range(len(data) - 1) if data[i : i + 1] in b"KUXC"]
        at = draw.choice(marks) if marks else at
    piece = draw.choice(_PIECES) if draw.random() < 0.8 else doubled(draw.randrange(5, 40))
    return data[:at] + piece + data[at + draw.choice((0, 0, len(piece), 1)) :]


def doubled(times: int) -> bytes:
    """A list of twice the list before, and so on."""
    return b"]q\x00K\x01a" + b"".join(b"]q" + bytes([i + 1]) + b"(h" + bytes([i]) + b"h" + bytes([i]) + b"e"
                                      for i in range(times))


def idx_files() -> list[bytes]:
    return [bytes.fromhex("00000803" "00000002") + 2 * side.to_bytes(4, "big") + bytes(2 * side**2) for side in (1, 28)]


def idx_packed() -> list[bytes]:
    return [gzip.compress(bytes.fromhex("00000801" "00000002" "0309"), level, mtime=0) for level in (1, 9)]


def around_idx() -> Mapping[str, bytes]:
    pixels, labels = idx_files()[1], bytes.fromhex("00000801000000020309")
    return {"mnist/train-labels-idx1-ubyte": labels, "mnist/t10k-labels-idx1-ubyte": labels,
            "mnist/t10k-images-idx3-ubyte": pixels}


def around_idx_packed() -> Mapping[str, bytes]:
    sound = {name: content for name, content in around_idx().items() if "t10k" in name}
    return {**sound, "mnist/train-images-idx3-ubyte": idx_files()[1]}


def read_idx(path: Path) -> None:
    from protocore.data.idx import read_idx as read

    train, _ = read(path.parent, tuple("0123456789"))
    train.images.take(np.arange(len(train.images)))


def damaged_gzip(data: bytes, draw: Random) -> bytes:
    """Damage inside or outside of the compression; announced lengths; long runs of zeros."""
    try:
        inner = gzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error):
        return damaged_bytes(data, draw)
    kind = draw.randrange(4)
    if kind == 0:
        return damaged_bytes(data, draw)
    if kind == 1:
        count = draw.choice((0, 1, 2**16, 10**7, 60_000_000, 2**31, 2**32 - 1))
        return gzip.compress(inner[:4] + count.to_bytes(4, "big") + bytes(min(count, 10**7)), 1, mtime=0)
    return gzip.compress(damaged_bytes(inner, draw), 1, mtime=0)


def tars() -> list[bytes]:
    made = []
    for kind in ("w", "w:gz", "w:bz2", "w:xz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=kind) as tar:  # type: ignore[call-overload]
            for name in ("set/a.bin", "set/b.bin"):
                member = tarfile.TarInfo(name)
                member.size = 5
                tar.addfile(member, io.BytesIO(b"12345"))
        made.append(buffer.getvalue())
    return made


def zips() -> list[bytes]:
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as bundle:
            bundle.writestr("set/a.bin", b"12345" * 9)
            bundle.writestr("set/b.bin", b"12345")
        made.append(buffer.getvalue())
    return made


def read_archive(path: Path) -> None:
    from protocore.data.archives import unpack

    root = path.parent / "unpacked"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    unpack(path, root, 1 << 20)
    assert {p.name for p in path.parent.iterdir()} <= {path.name, root.name}
