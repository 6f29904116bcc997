"""Reading a file that nobody vouches for: under hard limits, and each statement checked."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from protocore.errors import DataError
from protocore.memory.ledger import Ledger
from protocore.memory.pack.checks import Judge, are_naturals, check_tensors, read_info, short
from protocore.memory.pack.format import DTYPES, KEY, MAX_FILE, Pack, counted_ledger, header_of, sha256_of

MAX_HEADER = 2**23
MAX_STRUCTURE = 2**20  # characters of JSON outside strings: what bounds the objects that a parser makes of it
MAX_DEPTH = 8
MAX_TENSORS = 4096
MAX_RANK = 8
# Possessive, and an open string is taken as well: one pass over the text, whatever is in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_DEEPER = np.zeros(256, dtype=np.int8)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1


def read_pack(path: Path) -> Pack:
    """Read a pack, in time and memory bounded by the size that the file really has.

    A damaged file raises `PackError`; one that cannot be read at all another `DataError`.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError(f"{path}: expected a file, met a folder or device; give the path of a pack")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return parse(file, size, Judge(path, "it is damaged or no pack: take another copy"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of a pack") from None
    except MemoryError:
        raise DataError(f"{path}: there is not enough memory to read it; free some, or use a larger machine") from None


def parse(file: BufferedReader | BytesIO, size: int, judge: Judge) -> Pack:
    """The pack in an open file of `size` bytes; whatever does not hold goes to the judge."""
    judge.need(size <= MAX_FILE, f"at most {MAX_FILE:,} bytes", f"{size:,} bytes")
    spans, text, header = _read_header(file, size, judge)
    info = read_info(_read_json(text, "document", judge), judge)
    tensors = {name: _read_tensor(file, len(header), *spans[name], judge) for name in sorted(spans)}
    check_tensors(tensors, info, judge)
    ledger = counted_ledger(tensors, len(header), info)
    if ledger != info.ledger:
        judge.fail("a ledger of exactly what the file holds", _difference(ledger, info.ledger))
    # One content, one file: no second spelling of it is a pack.
    judge.need(header == header_of(tensors, info), "a header as packs are written", "the same in other words")
    found = sha256_of(tensors, info)
    judge.need(found == info.sha256, f"content of sha256 {info.sha256}", found)
    return Pack(tensors, info)


Span = tuple[torch.dtype, list[int], int, int]


def _read_header(file: BufferedReader | BytesIO, size: int, judge: Judge) -> tuple[dict[str, Span], str, bytes]:
    """Where each tensor lies, the document's text, and the header as it is. No tensor has been touched yet."""
    lead = file.read(8)
    judge.need(len(lead) == 8, "8 bytes of header length", f"{len(lead)} bytes in all")
    length = int.from_bytes(lead, "little")
    room = min(size - 8, MAX_HEADER)
    judge.need(length <= room, f"a header of at most {room:,} bytes", f"{length:,} bytes")
    raw = file.read(length)
    judge.need(len(raw) == length, f"a header of {length:,} bytes", f"{len(raw):,} bytes")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        judge.fail("a header of UTF-8 text", str(error)[:100])
    header = _read_json(text, "header", judge)
    meta = header.pop("__metadata__", None)
    if not isinstance(meta, dict) or meta.keys() != {KEY} or not isinstance(meta[KEY], str):
        judge.fail(f"metadata with one text, {KEY!r}", short(meta))
    judge.need(len(header) <= MAX_TENSORS, f"at most {MAX_TENSORS} tensors", f"{len(header)} of them")
    spans = {name: _read_span(name, entry, judge) for name, entry in header.items()}
    at = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        judge.need(begin == at, f"{short(name)} to begin at byte {at:,}, where the one before it ends", value=begin)
        at = end
    judge.need(8 + length + at == size, f"a file of {8 + length + at:,} bytes, as its header says", f"{size:,} bytes")
    return spans, meta[KEY], lead + raw


def _read_span(name: str, entry: object, judge: Judge) -> Span:
    what = f"tensor {short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        judge.fail(f"{what} with dtype, shape and data_offsets", short(entry))
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        judge.fail(f"{what} of a type among {', '.join(DTYPES)}", short(kind))
    judge.need(are_naturals(shape) and len(shape) <= MAX_RANK, f"{what} with a shape of up to {MAX_RANK} numbers",
               value=shape)
    judge.need(are_naturals(offsets) and len(offsets) == 2, f"{what} with two data_offsets", value=offsets)
    begin, end = offsets
    wide = DTYPES[kind].itemsize
    # The second product is for shapes like (0, 2^60): no bytes, but strides that overflow.
    judge.need(math.prod(shape) * wide == end - begin and math.prod(filter(None, shape)) <= MAX_FILE,
               f"{what} of {end - begin:,} bytes, as its offsets say", f"the shape {shape} of {kind}")
    return DTYPES[kind], shape, begin, end


def _read_tensor(file: BufferedReader | BytesIO, start: int, dtype: torch.dtype, shape: list[int], begin: int, end: int,
                 judge: Judge) -> Tensor:
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    file.seek(start + begin)
    data = bytearray(end - begin)
    met = file.readinto(data)
    judge.need(met == end - begin, f"{end - begin:,} bytes of a tensor", f"{met:,} bytes")
    return torch.frombuffer(data, dtype=dtype).view(shape)


def _read_json(text: str, what: str, judge: Judge) -> dict[str, Any]:
    """A JSON object, after a look at its size and depth: a parser must not be the first to meet it."""
    outside = np.frombuffer(_STRING.sub("", text).encode(errors="replace"), dtype=np.uint8)
    judge.need(len(outside) <= MAX_STRUCTURE, f"a {what} of at most {MAX_STRUCTURE:,} signs outside its strings",
               f"{len(outside):,}")
    depth = int(_DEEPER[outside].cumsum(dtype=np.int32).max(initial=0))
    judge.need(depth <= MAX_DEPTH, f"a {what} at most {MAX_DEPTH} levels deep", f"{depth} levels")
    try:
        value = json.loads(text, object_pairs_hook=_without_twins, parse_int=_small, parse_float=_no_number,
                           parse_constant=_no_number)
    except ValueError as error:
        judge.fail(f"a {what} of JSON", str(error)[:100])
    if not isinstance(value, dict):
        judge.fail(f"a {what} that is a JSON object", short(value))
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name that is given twice")
    return made


def _small(digits: str) -> int:
    if len(digits) > 19:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:20]}")


def _difference(real: Ledger, said: Ledger) -> str:
    wrong = sorted(set(said.entries) ^ set(real.entries), key=lambda e: e.name)
    return f"one that differs in {short(wrong[0].name)}" if wrong else "one in another order or with rows twice"
