"""Decoded pictures, kept on disk: one memory-mapped .npy for each set, and beside it what was found in making it.

A file is served only if it is whole: the .json has a sha256 over both, and anything else is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from protocore.data.images import ArrayImages, FileImages, Images, ImageSet, blocks_of, refuse_pictures
from protocore.errors import DataError
from protocore.files import read_json, write_json

_MAKER = f"protocore 3, Pillow {PIL.__version__}"  # another Pillow may decode to other pixels


@dataclass
class Kept:
    """Images in one array; a row that could not be read is black, and `bad` says why."""

    images: ArrayImages
    bad: dict[int, str] = field(default_factory=dict)
    smallest: tuple[int, int] = (0, 0)  # width and height, by area
    largest: tuple[int, int] = (0, 0)
    cut: int = 0  # images that were not square

    def told(self) -> dict[str, Any]:
        return {"made by": _MAKER, "bad": {str(row): reason for row, reason in self.bad.items()},
                "smallest": self.smallest, "largest": self.largest, "cut": self.cut}


def cache_folder() -> Path:
    return Path(os.environ.get("PROTOCORE_CACHE") or Path.home() / ".cache" / "protocore")


def keep_decoded(part: ImageSet) -> Kept:
    """The pictures of a set, decoded once and kept in the user's cache."""
    return cached(part.images, part.digest, cache_folder())


def kept_pair(sets: tuple[ImageSet, ImageSet]) -> tuple[ImageSet, ImageSet]:
    """Both parts of a data set, decoded and kept; pictures that cannot be read are an error."""
    kept = [keep_decoded(part) for part in sets]
    refuse_pictures([(part.images.paths[row], reason) for part, found in zip(sets, kept, strict=True)
                     if isinstance(part.images, FileImages) for row, reason in found.bad.items()])
    train, test = (replace(part, images=found.images) for part, found in zip(sets, kept, strict=True))
    return train, test


def cached(images: Images, key: str, folder: Path,
           progress: Callable[[int, int], None] | None = None) -> Kept:
    """The same images from one memory-mapped .npy in `folder`, written on the first call.

    `key` names the content (a digest); the image shape is part of the file name. `progress` is told the images done
    and the images in all.
    """
    if not re.fullmatch(r"[\w-][\w.-]*", key, re.ASCII):
        raise ValueError(f"cache key {key!r} must be letters, digits, '_', '-' and '.'")
    wanted = (len(images), *images.shape)
    if not len(images):
        return Kept(ArrayImages(np.empty(wanted, np.uint8)))
    path = Path(folder) / f"{key}-{'x'.join(map(str, images.shape))}.npy"
    try:
        found = _found(path, wanted)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(images, path, wanted, progress)
            found = _found(path, wanted)
    except OSError as error:
        raise DataError(f"{path}: cannot keep the decoded images there ({error}); choose a folder that "
                        "is writable and has room (PROTOCORE_CACHE)") from error
    if found is None:
        raise DataError(f"{path}: changed while it was being written; run again")
    return found


def _found(path: Path, wanted: tuple[int, ...]) -> Kept | None:
    """What is kept there, if it is sound."""
    beside = path.with_suffix(".json")
    if not path.is_file() or not beside.is_file():
        return None
    try:
        told = read_json(beside)
        sound = told["told"]["made by"] == _MAKER and told["sha256"] == _hash(path, told["told"])
        array = np.lib.format.open_memmap(path, mode="r") if sound else None
        if array is None or array.shape != wanted or array.dtype != np.uint8 or not array.flags.c_contiguous:
            return None
        said = told["told"]
        return Kept(ArrayImages(array), {int(row): str(reason) for row, reason in said["bad"].items()},
                    tuple(said["smallest"]), tuple(said["largest"]), said["cut"])
    except (DataError, ValueError, EOFError, KeyError, TypeError, AttributeError):  # not what was written
        return None


def _hash(path: Path, told: dict[str, Any]) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(json.dumps(told, sort_keys=True).encode())
    return digest.hexdigest()


def _write(images: Images, path: Path, wanted: tuple[int, ...],
           progress: Callable[[int, int], None] | None) -> None:
    need, free = math.prod(wanted), shutil.disk_usage(path.parent).free
    if need > free:  # a memory map on a full disk ends in a bus error, not in an exception
        raise OSError(f"{need} bytes are needed, {free} are free")
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        array = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=wanted)
        kept = Kept(ArrayImages(array))
        for rows in blocks_of(images):
            array[rows], outcomes = images.attempt(rows)
            for row, outcome in zip(rows.tolist(), outcomes, strict=True):
                if isinstance(outcome, str):
                    kept.bad[row] = outcome
                    continue
                kept.largest = max(kept.largest, outcome, key=math.prod)
                kept.smallest = min(kept.smallest, outcome, key=math.prod) if any(kept.smallest) else outcome
                kept.cut += outcome[0] != outcome[1]
            if progress is not None:
                progress(int(rows[-1]) + 1, len(images))
        array.flush()
        told = kept.told()
        del array, kept
        told = json.loads(json.dumps(told))  # as it will be read
        digest = _hash(part, told)
        path.with_suffix(".json").unlink(missing_ok=True)
        os.replace(part, path)
        write_json(path.with_suffix(".json"), {"sha256": digest, "told": told})
    finally:
        part.unlink(missing_ok=True)
