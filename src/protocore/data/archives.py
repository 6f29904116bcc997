"""Unpacking archives that nobody need trust."""

from __future__ import annotations

import errno
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from protocore.errors import DataError, shown

_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}  # no fault of the file


MOST_FILES = 1_000_000


def unpack(archive: Path, root: Path, limit: int) -> None:
    """Write the plain files of a tar or zip below `root`.

    Only names and bytes are taken over: no links, devices, owners or permissions, nothing outside `root`, and
    no more than `limit` bytes.
    """
    total = 0
    try:
        for number, (name, size, stream) in enumerate(_zip(archive) if archive.suffix == ".zip" else _tar(archive)):
            if number == MOST_FILES:
                raise DataError(f"{archive}: more than {MOST_FILES:,} files and folders; do not trust this file")
            if stream is None:
                continue
            place = PurePosixPath(name)
            odd = any(sign in name for sign in "\\:\0")  # a path of Windows, or one cut short by C
            if odd or place.is_absolute() or ".." in place.parts or not place.parts:
                raise DataError(f"{archive}: the name {shown(name)} points outside; do not trust this file")
            total += size
            if total > limit:
                raise DataError(f"{archive}: would unpack to more than {limit} bytes; do not trust this file")
            target = root / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with stream, open(target, "xb") as out:
                shutil.copyfileobj(stream, out)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError,
            ValueError, OverflowError, IndexError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        raise DataError(f"{archive}: cannot be unpacked ({error}); delete it and get it again") from error


def _tar(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.isdir():
                yield member.name, 0, None
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise DataError(f"{archive}: {shown(member.name)} is a link or device; do not trust this file")
            yield member.name, member.size, stream


def _zip(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.infolist():
            if member.is_dir():
                yield member.filename, 0, None
                continue
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                raise DataError(f"{archive}: {shown(member.filename)} is a link or device; do not trust this file")
            yield member.filename, member.file_size, bundle.open(member)
