"""Getting a published data set and checking what is on disk, whatever its source says that should be."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocore.data.archives import unpack
from protocore.data.base import Content, Source
from protocore.data.images import FileImages, blocks
from protocore.data.transfer import Progress, download
from protocore.errors import DataError, shown


@dataclass(frozen=True)
class FileCheck:
    """One line of a check."""

    path: str
    expected: str
    met: str
    state: Literal["ok", "missing", "damaged"]

    @property
    def ok(self) -> bool:
        return self.state == "ok"


def get(source: Source, root: Path, *, base_url: str | None = None, progress: Progress | None = None) -> Path:
    """Download a data set into `root` and return its folder; one that is already there is left alone.

    A broken transfer is resumed where it stopped, also by a later call. A folder or file that is there but
    damaged is renamed to NAME.damaged, not deleted. `base_url` is another server that has the same files.
    """
    if source.url is None or source.folder is None:
        raise DataError(source.by_hand or f"{source.name}: nobody has said where it can be downloaded")
    name, root = source.name, Path(root)
    url = source.url if base_url is None else base_url.rstrip("/") + "/"
    if not re.match(r"https?://", url):
        raise DataError(f"{shown(url)}: expected an address that starts with http:// or https://")
    found = _findings(source, root)
    if all(finding.ok for finding in found):
        return Path(found[-1].path)
    folder = root / source.folder
    try:
        (root if source.unpacked else folder).mkdir(parents=True, exist_ok=True)
        need, free = sum(file.size for file in source.files) + source.unpacked, shutil.disk_usage(root).free
        if need > free:
            raise DataError(f"{root}: {name} needs {need} bytes, {free} are free; choose another --data-root")
        if source.unpacked:
            archive = root / source.files[0].name
            download(url, archive, source.files[0], progress)
            _install(source, archive, folder)
            archive.unlink()
        else:
            _get_files(source, url, folder, found, progress)
    except OSError as error:
        raise DataError(f"{root}: cannot store {name} there ({error}); choose another --data-root") from error
    return folder


# checking


def check(source: Source, root: Path, *, progress: Callable[[int, int], None] | None = None) -> list[FileCheck]:
    """What is on disk under `root` against what should be: sizes and sha256 of files, then all of it read.

    Picture files are decoded one and all, where the source does not say otherwise: of ImageNet names and sizes are
    read. `progress` is told the pictures decoded so far and in all.
    """
    return _findings(source, Path(root), (progress or (lambda done, total: None)) if source.decoded else None)


def _findings(source: Source, root: Path, decode: Callable[[int, int], None] | None = None) -> list[FileCheck]:
    """One finding a file, then one for reading the whole."""
    if source.folder is None:
        return [_reading(source, source.name, root, decode)]
    folder, other = root / source.folder, source.other
    found: list[FileCheck] = []
    if folder.is_dir():
        found = [_content(folder, content) for content in source.contents]
    elif other and (root / other).is_dir():
        folder = root / other
    else:
        return [FileCheck(str(folder), "a folder", "nothing", "missing")]
    return [*found, _reading(source, str(folder), root, decode)]


def _content(folder: Path, content: Content) -> FileCheck:
    choices = (folder / content.name, folder / f"{content.name}.gz")
    path = next((path for path in choices if path.is_file()), None)
    note = f"sha256 {content.sha256}" if content.sha256 else "size only: no checksum is known"
    expected = f"{content.size} bytes, {note}"
    if path is None:
        return FileCheck(str(folder / content.name), expected, "nothing", "missing")
    digest, size = hashlib.sha256(), 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while size <= content.size and (block := file.read(1 << 20)):
                digest.update(block)
                size += len(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return FileCheck(str(path), expected, f"damaged gzip file ({error})", "damaged")
    if size > content.size:
        return FileCheck(str(path), expected, f"more than {content.size} bytes", "damaged")
    same = size == content.size and content.sha256 in (None, digest.hexdigest())
    met = f"{size} bytes, sha256 {digest.hexdigest()}"
    return FileCheck(str(path), expected, met, "ok" if same else "damaged")


def _reading(source: Source, path: str, root: Path, decode: Callable[[int, int], None] | None) -> FileCheck:
    counts = source.counts
    expected = f"{counts[0]} training and {counts[1]} test images"
    try:
        train, test = (part.images for part in source.read(root))
        if decode is not None and isinstance(train, FileImages):  # arrays were read whole for their digest
            for images, before in ((train, 0), (test, len(train))):
                for start, block in blocks(images):
                    decode(before + start + len(block), len(train) + len(test))
    except DataError as error:
        return FileCheck(path, expected, str(error), "damaged")
    met = (len(train), len(test))
    fewer = any(here < there for here, there in zip(met, counts, strict=True))
    return FileCheck(path, expected, f"{met[0]} training and {met[1]} test images",
                     "ok" if met == counts else "missing" if fewer else "damaged")


# downloading


def _get_files(source: Source, url: str, folder: Path, found: list[FileCheck],
               progress: Progress | None) -> None:
    good = {Path(finding.path).name.removesuffix(".gz") for finding in found if finding.ok}
    for file, content in zip(source.files, source.contents, strict=True):
        if content.name in good:
            continue
        fresh = folder / f".{file.name}.new"
        download(url, fresh, file, progress)
        for old in (folder / content.name, folder / file.name):
            if old.exists():
                os.rename(old, _aside(old))
        os.replace(fresh, folder / file.name)
    bad = [finding for finding in _findings(source, folder.parent) if not finding.ok]
    if bad:
        raise DataError(f"{bad[0].path}: expected {bad[0].expected}, met {bad[0].met}; the server's files "
                        "are not the published ones")


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged{f'-{number}' if number > 1 else ''}")).exists():
        number += 1
    return aside


# unpacking


def _install(source: Source, archive: Path, folder: Path) -> None:
    """Unpack beside the folder, check, and only then move it to its place."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder.parent) as temporary:
        root = Path(temporary)
        unpack(archive, root, source.unpacked)
        bad = [finding for finding in _findings(source, root) if not finding.ok]
        if bad:
            where = Path(bad[0].path).relative_to(root)
            raise DataError(f"{archive}: {where} is {bad[0].state}, expected {bad[0].expected}, met "
                            f"{bad[0].met}; delete the archive and get it again")
        if folder.exists():
            os.rename(folder, _aside(folder))
        os.rename(root / folder.name, folder)
