"""Getting the published data sets and checking what is on disk."""

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

from protocore.data import folders, formats
from protocore.data.archives import unpack
from protocore.data.images import FileImages, ImageSet, blocks
from protocore.data.transfer import Download, Progress, download
from protocore.errors import DataError


@dataclass(frozen=True)
class Content:
    """A file as it must lie in the data set's folder, unpacked; it may lie there gzipped under NAME.gz."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Source:
    """Where a data set is published and what it must be once it is here."""

    url: str
    files: tuple[Download, ...]
    folder: str
    read: Callable[[Path], tuple[ImageSet, ImageSet]]
    counts: tuple[int, int]  # training and test images
    contents: tuple[Content, ...] = ()
    unpacked: int = 0  # bytes the archive may grow to; 0: the files are used as they are
    other: str | None = None  # a second folder the reader takes


@dataclass(frozen=True)
class Finding:
    """One line of a check."""

    path: str
    expected: str
    met: str
    state: Literal["ok", "missing", "damaged"]

    @property
    def ok(self) -> bool:
        return self.state == "ok"


def _idx_source(folder: str, url: str, files: tuple[tuple[str, int, str, int, str], ...]) -> Source:
    """From rows of (name, bytes and md5 of NAME.gz, bytes and sha256 of NAME)."""
    return Source(
        url, tuple(Download(f"{name}.gz", size, f"md5:{md5}") for name, size, md5, _, _ in files), folder,
        lambda root: formats.read_idx(root / folder), (60000, 10000),
        tuple(Content(name, size, sha256) for name, _, _, size, sha256 in files))


# Checksums of downloads: the CIFAR page and torchvision (md5), several independent projects (sha256). Those
# of contents were computed from the files and agree with what other projects publish.
SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/",
        (Download("cifar-10-binary.tar.gz", 170052171,
                  "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
        "cifar-10-batches-bin", formats.read_cifar10, (50000, 10000), tuple(
            Content(f"{name}.bin", 30730000, sha256) for name, sha256 in (
                ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"))),
        unpacked=200_000_000, other="cifar-10-batches-py"),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/",
        (Download("cifar-100-binary.tar.gz", 168513733,
                  "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
        "cifar-100-binary", formats.read_cifar100, (50000, 10000), tuple(
            Content(f"{name}.bin", size, sha256) for name, size, sha256 in (
                ("train", 153700000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
                ("test", 30740000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"))),
        unpacked=200_000_000, other="cifar-100-python"),
    "mnist": _idx_source(
        "mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/", (
            ("train-images-idx3-ubyte", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
             47040016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            ("train-labels-idx1-ubyte", 28881, "d53e105ee54ea40749a09fcbcd1e9432",
             60008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            ("t10k-images-idx3-ubyte", 1648877, "9fb629c4189551a2d022fa330f9573f3",
             7840016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            ("t10k-labels-idx1-ubyte", 4542, "ec29112dd5afa0611ce80d1b7f02629c",
             10008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"))),
    "fashion-mnist": _idx_source(
        "fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", (
            ("train-images-idx3-ubyte", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
             47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            ("train-labels-idx1-ubyte", 29515, "25c81989df183df01b3e8a0aad5dffbe",
             60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            ("t10k-images-idx3-ubyte", 4422102, "bef4ecab320f06d8554ea6380940ec79",
             7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            ("t10k-labels-idx1-ubyte", 5148, "bb300cfdad3c16e7a12a480ee83cd310",
             10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"))),
    "tinyimagenet": Source(
        "http://cs231n.stanford.edu/",
        (Download("tiny-imagenet-200.zip", 248100043, "md5:90528d7ca1a48142e341f4ef8d21d0de"),),
        "tiny-imagenet-200", folders.read_tiny_imagenet, (100000, 10000), unpacked=600_000_000),
}


def get(name: str, root: Path, *, base_url: str | None = None, progress: Progress | None = None) -> Path:
    """Download data set `name` into `root` and return its folder; one that is already there is left alone.

    A broken transfer is resumed where it stopped, also by a later call. A folder or file that is there but
    damaged is renamed to NAME.damaged, not deleted. `base_url` is another server that has the same files.
    """
    source, root = _source(name), Path(root)
    url = source.url if base_url is None else base_url.rstrip("/") + "/"
    if not re.match(r"https?://", url):
        raise DataError(f"base_url {base_url!r}: expected an address that starts with http:// or https://")
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


def _source(name: str) -> Source:
    if name == "imagenet":
        raise DataError("imagenet cannot be downloaded without its licence: register at https://image-net.org"
                        " and lay the pictures out as DATA_ROOT/imagenet/train/WNID/*.JPEG and "
                        "DATA_ROOT/imagenet/val/WNID/*.JPEG")
    if name not in SOURCES:
        more = "; digits comes with scikit-learn" if name == "digits" else ""
        raise DataError(f"data set {name!r}: nothing to download under this name; there are "
                        f"{', '.join(SOURCES)}{more}")
    return SOURCES[name]


# checking


def check(name: str, root: Path, *, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    """What is on disk under `root` against what should be: sizes and sha256 of files, then all of it read.

    Picture files are decoded one and all, except ImageNet's, of which names and sizes are read. `progress` is
    told the pictures decoded so far and in all.
    """
    root = Path(root)
    if name == "digits":
        return [_reading("scikit-learn", formats.read_digits, (1442, 355))]
    if name == "imagenet":
        folder = root / "imagenet"
        if not folder.is_dir():
            return [Finding(str(folder), "train/WNID/*.JPEG and val/WNID/*.JPEG", "nothing", "missing")]
        return [_reading(str(folder), lambda: folders.read_imagenet(root), (1281167, 50000))]
    return _findings(_source(name), root, progress or (lambda done, total: None))


def _findings(source: Source, root: Path, decode: Callable[[int, int], None] | None = None) -> list[Finding]:
    """One finding a file, then one for reading the whole."""
    folder, other = root / source.folder, source.other
    found: list[Finding] = []
    if folder.is_dir():
        found = [_content(folder, content) for content in source.contents]
    elif other and (root / other).is_dir():
        folder = root / other
    else:
        return [Finding(str(folder), "a folder", "nothing", "missing")]
    return [*found, _reading(str(folder), lambda: source.read(root), source.counts, decode)]


def _content(folder: Path, content: Content) -> Finding:
    choices = (folder / content.name, folder / f"{content.name}.gz")
    path = next((path for path in choices if path.is_file()), None)
    note = f"sha256 {content.sha256}" if content.sha256 else "size only: no checksum is known"
    expected = f"{content.size} bytes, {note}"
    if path is None:
        return Finding(str(folder / content.name), expected, "nothing", "missing")
    digest, size = hashlib.sha256(), 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while size <= content.size and (block := file.read(1 << 20)):
                digest.update(block)
                size += len(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return Finding(str(path), expected, f"damaged gzip file ({error})", "damaged")
    if size > content.size:
        return Finding(str(path), expected, f"more than {content.size} bytes", "damaged")
    same = size == content.size and content.sha256 in (None, digest.hexdigest())
    met = f"{size} bytes, sha256 {digest.hexdigest()}"
    return Finding(str(path), expected, met, "ok" if same else "damaged")


def _reading(path: str, read: Callable[[], tuple[ImageSet, ImageSet]], counts: tuple[int, int],
             decode: Callable[[int, int], None] | None = None) -> Finding:
    expected = f"{counts[0]} training and {counts[1]} test images"
    try:
        train, test = (part.images for part in read())
        if decode is not None and isinstance(train, FileImages):  # arrays were read whole for their digest
            for images, before in ((train, 0), (test, len(train))):
                for start, block in blocks(images):
                    decode(before + start + len(block), len(train) + len(test))
    except DataError as error:
        return Finding(path, expected, str(error), "damaged")
    met = (len(train), len(test))
    fewer = any(here < there for here, there in zip(met, counts, strict=True))
    return Finding(path, expected, f"{met[0]} training and {met[1]} test images",
                   "ok" if met == counts else "missing" if fewer else "damaged")


# downloading


def _get_files(source: Source, url: str, folder: Path, found: list[Finding],
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
        os.rename(root / source.folder, folder)
