"""Safetensors files taken apart without any reader of theirs, and put together again: with whatever is said in them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from fuzz.mutate import Raw, damaged_bytes, damaged_json, dumped

Parts = tuple[dict[str, Any], dict[str, bytes]]  # the header's JSON, and the bytes of each tensor


def apart(data: bytes) -> Parts | None:
    """Header and tensors, or None where the file is damaged already."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        body = data[8 + size :]
        spans = {name: row["data_offsets"] for name, row in header.items() if name != "__metadata__"}
        return header, {name: body[begin:end] for name, (begin, end) in spans.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def together(header: Any, tensors: dict[str, bytes]) -> bytes:
    """The file, in the layout that the offsets of the header's rows say as long as they say one."""
    def place(name: str) -> int:
        try:
            return int(header[name]["data_offsets"][0])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            return 0

    text = dumped(header).encode("utf-8", "surrogatepass")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors[name] for name in sorted(tensors, key=place))


def laid_out(header: dict[str, Any], tensors: dict[str, bytes]) -> dict[str, Any]:
    """The header with offsets as its tensors are long; the widest types first, as they are written."""
    wide = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "U16": 2}
    rows, at = {}, 0
    for name in sorted(tensors, key=lambda n: (-wide.get(str(header.get(n, {}).get("dtype")), 1), n)):
        rows[name] = {**header[name], "data_offsets": [at, at + len(tensors[name])]}
        at += len(tensors[name])
    kept = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}
    return {**rows, **kept}


def damaged_tensors(header: dict[str, Any], tensors: dict[str, bytes], draw: Random) -> Parts:
    """A file that is sound as safetensors, with a tensor less, twice, of another type or shape, or of other values."""
    header, tensors = json.loads(json.dumps(header)), dict(tensors)
    if not tensors:
        return header, tensors
    name = draw.choice(sorted(tensors))
    kind = draw.randrange(6)
    if kind == 0:
        del header[name], tensors[name]
    elif kind == 1:
        other = draw.choice((f"{name}x", "x", "", "a/b/c", "net/x", "\x1b[2J/bytes", "prototypes/x", "bytes", "/bytes",
                             "x/labels"))
        header[other], tensors[other] = header[name], tensors[name]
    elif kind == 2:  # as many bytes, another shape
        row = header[name]
        count = _product(row["shape"])
        row["shape"] = draw.choice(([count], [1, count], [count, 1], [*row["shape"], 1], [count, 1, 1, 1], [1] * 6
                                    + [count]))
    elif kind == 3:  # as many bytes, another type
        row = header[name]
        kind_of, size = draw.choice((("U8", 1), ("I8", 1), ("BOOL", 1), ("I16", 2), ("U16", 2), ("F16", 2), ("BF16", 2),
                                     ("I32", 4), ("F32", 4),
                                     ("U32", 4), ("I64", 8), ("F64", 8), ("U64", 8)))
        if len(tensors[name]) % size == 0:
            row["dtype"], row["shape"] = kind_of, [len(tensors[name]) // size]
    elif kind == 4 and tensors[name]:  # as long, other values
        length = len(tensors[name])
        filled = draw.choice((b"\0" * length, b"\xff" * length, damaged_bytes(tensors[name], draw)))
        tensors[name] = (filled + b"\x7f" * length)[:length]
    else:  # nothing, or one row less
        row, shape = header[name], header[name]["shape"]
        size = len(tensors[name]) // max(1, _product(shape))
        if shape:
            row["shape"] = [draw.choice((0, max(0, shape[0] - 1))), *shape[1:]]
            tensors[name] = tensors[name][: size * _product(row["shape"])]
    return header, tensors


def damaged_file(data: bytes, draw: Random) -> bytes:
    """Damage to the header's JSON or to a tensor; seals inside it are broken by this."""
    parts = apart(data)
    if parts is None:
        return damaged_bytes(data, draw)
    header, tensors = parts
    try:
        if draw.random() < 0.5:
            header, tensors = damaged_tensors(header, tensors, draw)
            return together(laid_out(header, tensors), tensors)
        said = damaged_json(header, draw)
        return together(said, tensors) if isinstance(said, dict) else _lone(said)
    except (ValueError, KeyError, RecursionError):  # what the header says was damaged before
        return damaged_bytes(data, draw)


def _lone(said: Any) -> bytes:
    text = dumped(said if isinstance(said, Raw) else Raw(json.dumps(said))).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text


def _product(shape: Any) -> int:
    if not isinstance(shape, list) or any(type(side) is not int for side in shape):  # a list times 2**31 takes 16 GB
        raise ValueError(f"no shape: {shape!r:.50}")
    count = 1
    for side in shape:
        count *= side
    return count
