"""Bytes of what is exported: a seal behind a graph, and arrays in the safetensors format, by numpy alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from protocore.errors import DataError, shown
from protocore.files import parse_json

FORMAT = "protocore graph 1"
CLASSES = "protocore classes 1"
META, LEARNT, SEAL = "protocore", "protocore.classes", "sha256"  # entries of a graph's metadata
MOST_GRAPH = 2 << 30  # bytes: an ONNX file has no more
MOST_CLASSES = 1 << 30
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}

# An ONNX file is a protobuf message, and such messages may be joined by writing one behind the other. The seal is a
# last entry of the metadata (field 14 of a model: key 1, value 2) with the hash of all bytes before it.
_SEAL = b"\x72\x4a\x0a\x06" + SEAL.encode() + b"\x12\x40"
_SEALED = len(_SEAL) + 64


def sealed(graph: bytes) -> bytes:
    """An ONNX model with the SHA-256 of its bytes as the last entry of its metadata."""
    return graph + _SEAL + hashlib.sha256(graph).hexdigest().encode()


def seal_of(data: bytes, name: object) -> str:
    """The SHA-256 that a graph carries, or an error where its bytes are not those that were written."""
    body, end = memoryview(data)[:-_SEALED], data[-_SEALED:]
    if len(data) <= _SEALED or not end.startswith(_SEAL):
        raise DataError(f"{name}: not a learner that `protocore export` has written, or cut short; export it again")
    digest = hashlib.sha256(body).hexdigest()
    if end[len(_SEAL):] != digest.encode():
        raise DataError(f"{name}: damaged, its content is not what was written; copy or export it again")
    return digest


def packed(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> bytes:
    """A safetensors file of arrays, with what is said about them and a SHA-256 over all of it."""
    entries: dict[str, Any] = {}
    at, parts = 0, []
    for name, array in sorted(arrays.items()):
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        entries[name] = {"dtype": _NAMES[array.dtype.newbyteorder("<")], "shape": list(array.shape),
                         "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    body, text = b"".join(parts), json.dumps(about, allow_nan=False)
    entries["__metadata__"] = {"protocore": text, "sha256": _sum(entries, text, body)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + body


def unpacked(data: bytes, name: object) -> tuple[dict[str, np.ndarray], Any]:
    """What `packed` was given, from bytes of any origin."""
    def refuse(why: str) -> DataError:
        return DataError(f"{name}: damaged, {why}; restore the file from a copy, or remove it")

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise refuse("it is cut short")
    header, body = parse_json(data[8 : 8 + length], name), data[8 + length :]
    about = header.pop("__metadata__", None) if isinstance(header, dict) else None
    text, digest = (about.get("protocore"), about.get("sha256")) if isinstance(about, dict) else (None, None)
    if not isinstance(text, str) or digest != _sum(header, text, body):
        raise refuse("its content is not what was written")
    arrays = {}
    for key, entry in header.items():
        try:
            dtype, shape, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)) or \
                    stop - start != dtype.itemsize * math.prod(shape) or stop > len(body):
                raise ValueError("its size is not that of its shape")
            arrays[key] = np.frombuffer(body[start:stop], dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as error:
            raise refuse(f"{shown(key)} is no array ({shown(str(error))})") from None
    return arrays, parse_json(text.encode(), name)


def _sum(entries: Mapping[str, Any], text: str, body: bytes) -> str:
    digest = hashlib.sha256(json.dumps([entries, text], sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()
