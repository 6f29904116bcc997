"""The bytes of a pack: what it says of itself, its header, its ledger, the hash that covers all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.errors import DataError
from protocore.memory.ledger import HEADER, Entry, Ledger
from protocore.pictures import ImageShape
from protocore.version import __version__

VERSION = 1
KEY = "protocore pack"
ORIGINS = ("synthetic", "coded", "real")  # from random codes or a class mean; from a real sample; its very pixels
MAX_FILE = 2**33

DTYPES = {
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_NOTHING = Ledger(())


@dataclass(frozen=True)
class Group:
    """How the exemplars of one store are kept; `bytes` is None where they differ in size.

    `codec` is as --codec says it. The file calls it "decoder".
    """

    codec: str
    digest: str
    origin: str
    bytes: int | None


@dataclass(frozen=True)
class Info:
    """The JSON document of a pack. A label is an index into `class_names`."""

    image_shape: ImageShape
    class_names: tuple[str, ...]
    groups: Mapping[str, Group]
    method: str
    ledger: Ledger = _NOTHING
    created: str = f"protocore {__version__}"
    sha256: str = "0" * 64
    version: int = VERSION


@dataclass(frozen=True, eq=False)
class Pack:
    """A memory as it is in its file; `info.ledger.total` is that file's size."""

    tensors: Mapping[str, Tensor]
    info: Info


def to_bytes(pack: Pack) -> bytes:
    """The file."""
    parts = (raw_bytes(pack.tensors[name]).data for name in _layout(pack.tensors))
    return b"".join([header_of(pack.tensors, pack.info), *parts])


def groups_in(names: Mapping[str, Tensor]) -> list[str]:
    return sorted(name.removesuffix("/bytes") for name in names if name.endswith("/bytes"))


def prefix_of(name: str) -> str:
    return name.rpartition("/")[0]


def by_prefix(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by what stands before the last slash of their names, then by what stands after it."""
    made: dict[str, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        prefix, _, key = name.rpartition("/")
        made.setdefault(prefix, {})[key] = t
    return made


def raw_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    return tensor.numpy().reshape(-1).view(np.uint8)


def _layout(tensors: Mapping[str, Tensor]) -> list[str]:
    """The widest types first: everything is aligned without gaps."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _document(info: Info) -> dict[str, Any]:
    return {
        "version": info.version, "created": info.created, "method": info.method,
        "image shape": list(info.image_shape), "class names": list(info.class_names),
        "groups": {name: {"decoder": group.codec, "digest": group.digest, "origin": group.origin, "bytes": group.bytes}
                   for name, group in info.groups.items()},
        "ledger": [[e.name, e.bytes, e.rows] for e in info.ledger.entries if not e.shared],
        "shared": {e.name: e.bytes for e in info.ledger.entries if e.shared},
        "sha256": info.sha256,
    }


def header_of(tensors: Mapping[str, Tensor], info: Info) -> bytes:
    """The length and the JSON that a safetensors file begins with."""
    rows, at = {}, 0
    for name in _layout(tensors):
        t = tensors[name]
        if t.dtype not in _NAMES:
            raise DataError(f"{name} is {t.dtype}: a pack holds {', '.join(str(d) for d in _NAMES)}; convert it")
        rows[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    try:
        text = _dump({**rows, "__metadata__": {KEY: _dump(_document(info))}}).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a name holds {error.object[error.start]!r}, which is no Unicode text: rename it") from None
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def counted(tensors: Mapping[str, Tensor], info: Info) -> Info:
    """With the ledger of these tensors, whose row for the header counts the digits of that row as well."""
    size, met = -1, 0
    while size != met:  # a larger number never makes a shorter header, so this comes to rest
        size = met
        info = replace(info, ledger=counted_ledger(tensors, size, info))
        met = len(header_of(tensors, info))
    return info


def counted_ledger(tensors: Mapping[str, Tensor], header: int, info: Info) -> Ledger:
    """Rows of these tensors and of a header of so many bytes, and the shared ones that the pack says."""
    rows = [Entry(name, t.nbytes, len(t) if t.ndim else 1) for name, t in sorted(tensors.items())]
    shared = sorted((e for e in info.ledger.entries if e.shared), key=lambda e: e.name)
    return Ledger((*rows, Entry(HEADER, header, 1), *shared))


def sealed(tensors: Mapping[str, Tensor], info: Info) -> Pack:
    """A pack of these tensors: counted, and with the hash that covers them."""
    info = counted(tensors, info)
    return Pack(tensors, replace(info, sha256=sha256_of(tensors, info)))


def sha256_of(tensors: Mapping[str, Tensor], info: Info) -> str:
    """Over the document without this field, then each tensor in name order: name, type, shape and bytes."""
    said = _document(info)
    del said["sha256"]
    total = hashlib.sha256(_dump(said).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(_dump([name, _NAMES[t.dtype], list(t.shape)]).encode())
        total.update(raw_bytes(t).data)
    return total.hexdigest()


def ints(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.numpy().astype(np.int64)


def classes_of(pack: Pack) -> NDArray[np.int64]:
    names = [f"{g}/labels" for g in pack.info.groups] + ["prototypes/labels"] * ("prototypes/labels" in pack.tensors)
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(ints(pack.tensors[name]) for name in names)]))


def by_origin(info: Info) -> list[str]:
    return sorted(info.groups, key=lambda name: (ORIGINS.index(info.groups[name].origin), name))
