"""A memory becomes a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from torch import Tensor

from protocore.codecs.base import Codec
from protocore.files import write_atomic
from protocore.memory.ledger import Entry, Ledger
from protocore.memory.pack.checks import Judge
from protocore.memory.pack.format import Group, Info, Pack, groups_in, sealed, to_bytes
from protocore.memory.pack.reading import parse


def write_pack(path: Path, tensors: Mapping[str, Tensor], *, class_names: Sequence[str], codec: Codec,
               method: str, origins: Mapping[str, str] | None = None) -> Pack:
    """Write a method's `state()`. The same memory gives the same bytes: nothing depends on the time or the place.

    `origins` says by the name of a store how its exemplars were made; others are of real samples.
    """
    said, plain = origins or {}, "real" if codec.lossless else "coded"
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    groups = {
        name: Group(codec.spec, codec.digest, said.get(name, plain),
                    None if f"{name}/lengths" in held else codec.exemplar_bytes)
        for name in groups_in(held)
    }
    shared = [Entry(f"decoder {codec.spec}", codec.shared_bytes, 1, shared=True)] if groups else []
    ledger = Ledger(tuple(e for e in shared if e.bytes))
    channels, height, width = codec.image_shape
    return save_pack(path, sealed(held, Info((channels, height, width), tuple(class_names), groups, method, ledger)))


def save_pack(path: Path, pack: Pack) -> Pack:
    """Write a pack as it is. It is read back first: what could not be read is not written."""
    data = to_bytes(pack)
    again = parse(BytesIO(data), len(data), Judge(path, "this memory cannot be written as a pack"))
    write_atomic(path, data)
    return again
