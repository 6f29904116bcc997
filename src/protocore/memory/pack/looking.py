"""A pack's table, its pictures, and whether it is whole."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protocore.decoders.base import Decoder
from protocore.errors import DataError
from protocore.memory.ledger import HEADER
from protocore.memory.pack.format import Pack, by_origin, by_prefix, classes_of, ints, prefix_of
from protocore.memory.pack.reading import read_pack
from protocore.memory.pack.rows import take_apart
from protocore.memory.store import to_uint8


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
class Finding:
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


def exemplars(pack: Pack, decoder: Decoder, group: str) -> tuple[Tensor, Tensor]:
    """What replay sees of a group: uint8 images (n, C, H, W) and labels (int64)."""
    if group not in pack.info.groups:
        raise DataError(f"the pack has no exemplar group {group!r}; it has {', '.join(pack.info.groups) or 'none'}")
    said = pack.info.groups[group]
    if decoder.digest != said.digest or tuple(decoder.image_shape) != pack.info.image_shape:
        raise DataError(f"{group} were written by the decoder {said.decoder} ({said.digest[:12]}…) for images of "
                        f"{pack.info.image_shape}; met {decoder.name} ({decoder.digest[:12]}…) for "
                        f"{decoder.image_shape}: give the one that wrote them")
    labels = torch.from_numpy(ints(pack.tensors[f"{group}/labels"]))
    if decoder.lossless:
        return pack.tensors[f"{group}/bytes"].reshape(len(labels), *decoder.image_shape).clone(), labels
    stored = take_apart(by_prefix(pack.tensors)[group]).stored
    with torch.no_grad():
        parts = [to_uint8(decoder.decode(decoder.from_bytes(stored[at : at + 256]))).cpu()
                 for at in range(0, len(stored), 256)]
    images = torch.cat(parts)
    if images.shape != (len(labels), *decoder.image_shape):
        raise DataError(f"{group} decode to {tuple(images.shape)}, expected {(len(labels), *decoder.image_shape)}")
    return images, labels


def verify(path: Path, decoder: Decoder | None = None) -> list[Finding]:
    """Everything that reading checks; with a decoder also that it is the right one and decodes every exemplar."""
    try:
        pack = read_pack(path)
    except DataError as error:
        return [Finding(False, str(error))]
    info = pack.info
    found = [
        Finding(True, f"header, shapes and labels hold: {len(pack.tensors)} tensors, {len(info.class_names)} classes"),
        Finding(True, f"the ledger adds up to the file's {info.ledger.total:,} bytes"),
        Finding(True, f"sha256 {info.sha256}"),
    ]
    for name, t in pack.tensors.items():
        # Columns may hold NaN: a value that was never stored.
        if t.is_floating_point() and prefix_of(name) not in info.groups and not bool(t.isfinite().all()):
            found.append(Finding(False, f"{name} holds values that are not finite"))
    for name in info.groups:
        found.append(_decoded(pack, name, decoder))
    return found


def _decoded(pack: Pack, group: str, decoder: Decoder | None) -> Finding:
    said = pack.info.groups[group]
    if decoder is None:
        return Finding(True, f"{group}: not decoded, as no decoder was given ({said.decoder}, {said.digest[:12]}…)")
    try:
        images, _ = exemplars(pack, decoder, group)
    except (DataError, ValueError, RuntimeError, OSError) as error:  # whatever a codec says to bytes not its own
        return Finding(False, f"{group}: {error}")
    return Finding(True, f"{group}: {len(images)} {said.origin} exemplars decode with {said.decoder}")
