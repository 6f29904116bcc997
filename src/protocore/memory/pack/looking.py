"""A pack's table, its pictures, and whether it is whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.codecs import Codec
from protocore.config import plural
from protocore.errors import DataError
from protocore.memory.codings import at_once, to_uint8
from protocore.memory.ledger import HEADER
from protocore.memory.pack.checks import PackError, plain, short
from protocore.memory.pack.format import Pack, by_origin, by_prefix, classes_of, ints, prefix_of
from protocore.memory.pack.reading import read_pack
from protocore.memory.pack.rows import rank, take_apart
from protocore.memory.pack.unpacking import check_codec


@dataclass(frozen=True)
class Line:
    """One row of a pack's table. `pays_from` is for a shared decoder: the classes from which it saves bytes."""

    part: str
    bytes: int
    origin: str = ""
    classes: int | None = None
    exemplars: int | None = None
    shared: bool = False
    pays_from: int | None = None

    @property
    def class_bytes(self) -> float | None:
        return self.bytes / self.classes if self.classes else None


@dataclass(frozen=True)
class Verdict:
    """What `verify` found out about one thing."""

    ok: bool
    text: str


def summary(pack: Pack) -> list[Line]:
    """The pack's table: each group with its origin, the rest, the total (the file's size), the shared decoder apart."""
    info, tensors = pack.info, pack.tensors
    size: Counter[str] = Counter()
    for name, t in tensors.items():
        size[prefix_of(name)] += t.nbytes
    labels = {name: ints(tensors[f"{name}/labels"]) for name in by_origin(info)}
    lines = [Line(name, size[name], info.groups[name].origin, len(np.unique(mine)), len(mine))
             for name, mine in labels.items()]
    if "prototypes" in size:
        lines.append(Line("prototypes", size["prototypes"], classes=len(tensors["prototypes/labels"])))
    rest = size.total() - sum(line.bytes for line in lines)
    if rest:
        lines.append(Line("statistics", rest))
    count = sum(len(mine) for mine in labels.values())
    lines.append(Line(HEADER, info.ledger.total - size.total()))
    lines.append(Line("total", info.ledger.total, classes=len(classes_of(pack)), exemplars=count))
    codes = sum(tensors[f"{name}/{key}"].nbytes for name in labels for key in ("bytes", "lengths")
                if f"{name}/{key}" in tensors)
    saved = count * math.prod(info.image_shape) - codes  # labels and all else are the same with pixels
    classes = len(set().union(*(mine.tolist() for mine in labels.values())))
    for entry in info.ledger.entries:
        if entry.shared:
            pays = -(-entry.bytes * classes // saved) if saved > 0 else None
            lines.append(Line(entry.name, entry.bytes, shared=True, pays_from=pays))
    return lines


def exemplars(pack: Pack, codec: Codec, group: str, most: int | None = None) -> tuple[Tensor, Tensor]:
    """What replay sees of a group: uint8 images (n, C, H, W) and labels (int64); of each class the first `most`."""
    if group not in pack.info.groups:
        there = ", ".join(map(plain, pack.info.groups)) or "none"
        raise DataError(f"the pack has no exemplar group {short(group)}; it has {there}")
    labels = ints(pack.tensors[f"{group}/labels"])
    rows = np.arange(len(labels)) if most is None else np.flatnonzero(rank(labels) < most)
    with _decoding(group):
        images = torch.empty(len(rows), *pack.info.image_shape, dtype=torch.uint8)
    at = 0
    for part in _decode(pack, codec, group, rows):
        images[at : at + len(part)] = part
        at += len(part)
    return images, torch.from_numpy(labels[rows])


def _decode(pack: Pack, codec: Codec, group: str, rows: NDArray[np.int64]) -> Iterator[Tensor]:
    """These exemplars of a group as uint8 images, some at a time: a short file may hold large pictures."""
    said, shape = pack.info.groups[group], pack.info.image_shape
    check_codec(codec, plain(group), said.codec, said.digest, shape)
    stored = take_apart(by_prefix(pack.tensors)[group]).stored
    size = at_once(shape)
    for at in range(0, len(rows), size):
        part = [stored[i] for i in rows[at : at + size].tolist()]
        with _decoding(group), torch.no_grad():
            if codec.lossless:
                images = torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8).view(len(part), *shape)
            else:
                images = to_uint8(codec.decode(codec.from_bytes(part))).cpu()
        if images.shape != (len(part), *shape):
            raise DataError(f"{plain(group)} decode to {tuple(images.shape)}, expected {(len(part), *shape)}")
        yield images


@contextmanager
def _decoding(group: str) -> Iterator[None]:
    """Whatever a codec says to bytes that are not its own is an error of the data."""
    try:
        yield
    except MemoryError:
        raise DataError(f"{plain(group)}: there is not enough memory to decode them; free some, or use a larger "
                        f"machine") from None
    except (ValueError, RuntimeError, OSError) as error:
        raise DataError(f"{plain(group)} do not decode: {error}") from error


def verify(path: Path, codec: Codec | Callable[[Pack], Codec | None] | None = None) -> list[Verdict]:
    """Everything that reading checks; with a codec also that it is the right one and decodes every exemplar.

    `codec` may be a function that finds it for the pack. A file that cannot be read at all raises `DataError`: only
    what is there can be found whole or damaged.
    """
    try:
        pack = read_pack(path)
    except PackError as error:
        return [Verdict(False, str(error))]
    info = pack.info
    found = [
        Verdict(True, f"header, shapes and labels hold: {plural(len(pack.tensors), 'tensor')}, "
                f"{plural(len(info.class_names), 'class')}"),
        Verdict(True, f"the ledger adds up to the file's {info.ledger.total:,} bytes"),
        Verdict(True, f"sha256 {info.sha256}"),
    ]
    for name, t in pack.tensors.items():
        # Columns may hold NaN: a value that was never stored.
        if t.is_floating_point() and prefix_of(name) not in info.groups and not bool(t.isfinite().all()):
            found.append(Verdict(False, f"{plain(name)} holds values that are not finite"))
    try:
        mine = codec if codec is None or isinstance(codec, Codec) else codec(pack)
    except DataError as error:
        return [*found, Verdict(False, str(error))]
    return [*found, *(_decoded(pack, name, mine) for name in info.groups)]


def _decoded(pack: Pack, group: str, codec: Codec | None) -> Verdict:
    said, count = pack.info.groups[group], len(pack.tensors[f"{group}/labels"])
    name = plain(group)
    if codec is None:
        return Verdict(True, f"{name}: not decoded, as no codec was given ({said.codec}, {said.digest[:12]}…)")
    try:
        for _ in _decode(pack, codec, group, np.arange(count)):
            pass  # none is kept: all of them may be larger than the memory
    except DataError as error:
        return Verdict(False, f"{name}: {error}")
    return Verdict(True, f"{name}: {count} {said.origin} exemplars decode with {said.codec}")
