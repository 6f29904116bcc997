"""`memory.pack`: a whole memory in one file, which can be inspected, verified, merged and pruned.

The file is safetensors; its metadata hold one JSON document that says what the tensors are. Nothing in a file is
believed: the header is read under hard limits, every statement is held against the tensors, and one SHA-256 covers
the document and every tensor's name, type, shape and bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.decoders.base import Decoder, ImageShape
from protocore.errors import BudgetError, DataError
from protocore.memory.ledger import HEADER, Entry, Ledger, write_atomic
from protocore.memory.prototypes import to_int8
from protocore.memory.store import smallest_dtype, to_uint8
from protocore.version import __version__

VERSION = 1
KEY = "protocore pack"
ORIGINS = ("synthetic", "coded", "real")  # from random codes or a class mean; from a real sample; its very pixels
SIGMA = "statistics/sigma"

MAX_FILE = 2**33
MAX_HEADER = 2**23
MAX_STRUCTURE = 2**20  # characters of JSON outside strings: what bounds the objects that a parser makes of it
MAX_DEPTH = 8
MAX_TENSORS = 4096
MAX_RANK = 8
MAX_SIDE = 2**16

_DTYPES = {
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_COUNTS = (torch.uint8, torch.uint16, torch.int32)  # labels, lengths and counters
_HASH = re.compile(r"[0-9a-f]{64}")
# Possessive, and an open string is taken as well: one pass over the text, whatever is in it.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPER = np.zeros(256, dtype=np.int8)
_DEEPER[list(b"[{")], _DEEPER[list(b"]}")] = 1, -1
_NOTHING = Ledger(())


@dataclass(frozen=True)
class Group:
    """How the exemplars of one store are kept; `bytes` is None where they differ in size."""

    decoder: str
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


# -- writing -----------------------------------------------------------------------------------------------------


def write_pack(path: Path, tensors: Mapping[str, Tensor], *, class_names: Sequence[str], decoder: Decoder,
               method: str) -> Pack:
    """Write a method's `state()`. The same memory gives the same bytes: nothing depends on the time or the place."""
    held = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    groups = {
        name: Group(decoder.codec, decoder.digest, _origin(name, decoder.lossless),
                    None if f"{name}/lengths" in held else decoder.exemplar_bytes)
        for name in _groups_in(held)
    }
    shared = [Entry(f"decoder {decoder.codec}", decoder.shared_bytes, 1, shared=True)] if groups else []
    ledger = Ledger(tuple(e for e in shared if e.bytes))
    channels, height, width = decoder.image_shape
    return save_pack(path, _sealed(held, Info((channels, height, width), tuple(class_names), groups, method, ledger)))


def save_pack(path: Path, pack: Pack) -> Pack:
    """Write a pack as it is. It is read back first: what could not be read is not written."""
    data = to_bytes(pack)
    again = _parse(BytesIO(data), len(data), _Judge(path, "this memory cannot be written as a pack"))
    write_atomic(path, data)
    return again


def to_bytes(pack: Pack) -> bytes:
    """The file."""
    parts = (_raw(pack.tensors[name]).data for name in _layout(pack.tensors))
    return b"".join([_header(pack.tensors, pack.info), *parts])


def _origin(group: str, lossless: bool) -> str:
    """The stores' names tell; one that says nothing holds real samples."""
    for origin in ("synthetic", "coded"):
        if group.startswith(f"{origin} "):
            return origin
    return "real" if lossless else "coded"


def _groups_in(names: Mapping[str, Tensor]) -> list[str]:
    return sorted(name.removesuffix("/bytes") for name in names if name.endswith("/bytes"))


def _prefix(name: str) -> str:
    return name.rpartition("/")[0]


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by what stands before the last slash of their names, then by what stands after it."""
    made: dict[str, dict[str, Tensor]] = {}
    for name, t in tensors.items():
        prefix, _, key = name.rpartition("/")
        made.setdefault(prefix, {})[key] = t
    return made


def _raw(tensor: Tensor) -> NDArray[np.uint8]:
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
        "groups": {name: asdict(group) for name, group in info.groups.items()},
        "ledger": [[e.name, e.bytes, e.rows] for e in info.ledger.entries if not e.shared],
        "shared": {e.name: e.bytes for e in info.ledger.entries if e.shared},
        "sha256": info.sha256,
    }


def _header(tensors: Mapping[str, Tensor], info: Info) -> bytes:
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


def _counted(tensors: Mapping[str, Tensor], info: Info) -> Info:
    """With the ledger of these tensors, whose row for the header counts the digits of that row as well."""
    size, met = -1, 0
    while size != met:  # a larger number never makes a shorter header, so this comes to rest
        size = met
        info = replace(info, ledger=_ledger(tensors, size, info))
        met = len(_header(tensors, info))
    return info


def _ledger(tensors: Mapping[str, Tensor], header: int, info: Info) -> Ledger:
    rows = [Entry(name, t.nbytes, len(t) if t.ndim else 1) for name, t in sorted(tensors.items())]
    shared = sorted((e for e in info.ledger.entries if e.shared), key=lambda e: e.name)
    return Ledger((*rows, Entry(HEADER, header, 1), *shared))


def _sealed(tensors: Mapping[str, Tensor], info: Info) -> Pack:
    info = _counted(tensors, info)
    return Pack(tensors, replace(info, sha256=_sha256(tensors, info)))


def _sha256(tensors: Mapping[str, Tensor], info: Info) -> str:
    """Over the document without this field, then each tensor in name order: name, type, shape and bytes."""
    said = _document(info)
    del said["sha256"]
    total = hashlib.sha256(_dump(said).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(_dump([name, _NAMES[t.dtype], list(t.shape)]).encode())
        total.update(_raw(t).data)
    return total.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------


class _Judge:
    """Holds what was met against what was expected, and names the file where they differ."""

    def __init__(self, source: object, way_out: str) -> None:
        self.source = source
        self.way_out = way_out

    def fail(self, expected: str, met: str) -> NoReturn:
        raise DataError(f"{self.source}: expected {expected}, met {met}; {self.way_out}")

    def need(self, holds: bool, expected: str, met: str = "", *, value: object = None) -> None:
        """`met` is told as it is; `value` is something of the file, told in short and with its odd signs escaped."""
        if not holds:
            self.fail(expected, met or _short(value))


def read_pack(path: Path) -> Pack:
    """Read a pack, or raise `DataError`: in time and memory bounded by the size that the file really has."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its writer
            raise DataError(f"{path}: expected a file, met a folder or device; give the path of a pack")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            return _parse(file, size, _Judge(path, "it is damaged or no pack: take another copy"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give the path of a pack") from None
    except MemoryError:
        raise DataError(f"{path}: there is not enough memory to read it; free some, or use a larger machine") from None


def _parse(file: BufferedReader | BytesIO, size: int, judge: _Judge) -> Pack:
    judge.need(size <= MAX_FILE, f"at most {MAX_FILE:,} bytes", f"{size:,} bytes")
    spans, text, header = _read_header(file, size, judge)
    info = _read_info(_read_json(text, "document", judge), judge)
    tensors = {name: _read_tensor(file, len(header), *spans[name], judge) for name in sorted(spans)}
    _check_tensors(tensors, info, judge)
    ledger = _ledger(tensors, len(header), info)
    if ledger != info.ledger:
        judge.fail("a ledger of exactly what the file holds", _difference(ledger, info.ledger))
    # One content, one file: no second spelling of it is a pack.
    judge.need(header == _header(tensors, info), "a header as packs are written", "the same in other words")
    found = _sha256(tensors, info)
    judge.need(found == info.sha256, f"content of sha256 {info.sha256}", found)
    return Pack(tensors, info)


Span = tuple[torch.dtype, list[int], int, int]


def _read_header(file: BufferedReader | BytesIO, size: int, judge: _Judge) -> tuple[dict[str, Span], str, bytes]:
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
        judge.fail(f"metadata with one text, {KEY!r}", _short(meta))
    judge.need(len(header) <= MAX_TENSORS, f"at most {MAX_TENSORS} tensors", f"{len(header)} of them")
    spans = {name: _read_span(name, entry, judge) for name, entry in header.items()}
    at = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        judge.need(begin == at, f"{_short(name)} to begin at byte {at:,}, where the one before it ends", value=begin)
        at = end
    judge.need(8 + length + at == size, f"a file of {8 + length + at:,} bytes, as its header says", f"{size:,} bytes")
    return spans, meta[KEY], lead + raw


def _read_span(name: str, entry: object, judge: _Judge) -> Span:
    what = f"tensor {_short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        judge.fail(f"{what} with dtype, shape and data_offsets", _short(entry))
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _DTYPES:
        judge.fail(f"{what} of a type among {', '.join(_DTYPES)}", _short(kind))
    judge.need(_naturals(shape) and len(shape) <= MAX_RANK, f"{what} with a shape of up to {MAX_RANK} numbers",
               value=shape)
    judge.need(_naturals(offsets) and len(offsets) == 2, f"{what} with two data_offsets", value=offsets)
    begin, end = offsets
    wide = _DTYPES[kind].itemsize
    # The second product is for shapes like (0, 2^60): no bytes, but strides that overflow.
    judge.need(math.prod(shape) * wide == end - begin and math.prod(filter(None, shape)) <= MAX_FILE,
               f"{what} of {end - begin:,} bytes, as its offsets say", f"the shape {shape} of {kind}")
    return _DTYPES[kind], shape, begin, end


def _read_tensor(file: BufferedReader | BytesIO, start: int, dtype: torch.dtype, shape: list[int], begin: int, end: int,
                 judge: _Judge) -> Tensor:
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    file.seek(start + begin)
    data = bytearray(end - begin)
    met = file.readinto(data)
    judge.need(met == end - begin, f"{end - begin:,} bytes of a tensor", f"{met:,} bytes")
    return torch.frombuffer(data, dtype=dtype).view(shape)


def _read_json(text: str, what: str, judge: _Judge) -> dict[str, Any]:
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
        judge.fail(f"a {what} that is a JSON object", _short(value))
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


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}…"


def _natural(value: object) -> bool:
    return type(value) is int and value >= 0


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(map(_natural, value))


def _text(value: object) -> bool:
    """Text that can be written again: half of a surrogate pair cannot."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "created": (_text, "a text"),
    "method": (_text, "a text"),
    "image shape": (lambda v: _naturals(v) and len(v) == 3 and all(0 < n <= MAX_SIDE for n in v),
                    "channels, height and width"),
    "class names": (lambda v: isinstance(v, list) and all(map(_text, v)), "a list of texts"),
    "groups": (lambda v: isinstance(v, dict), "an object"),
    "ledger": (lambda v: isinstance(v, list) and all(
        isinstance(r, list) and len(r) == 3 and _text(r[0]) and _naturals(r[1:]) for r in v), "rows of three"),
    "shared": (lambda v: isinstance(v, dict) and all(map(_text, v)) and _naturals(list(v.values())),
               "bytes by name"),
    "sha256": (_is_hash, "64 hexadecimal digits"),
}


def _read_info(said: dict[str, Any], judge: _Judge) -> Info:
    version = said.pop("version", None)
    if type(version) is not int or version != VERSION:
        judge.fail(f"a pack of version {VERSION}, the one that this program reads", f"version {_short(version)}")
    judge.need(said.keys() == _FIELDS.keys(), f"the fields {', '.join(_FIELDS)}", value=list(said))
    for field, (holds, kind) in _FIELDS.items():
        judge.need(holds(said[field]), f"{kind} as {field!r}", value=said[field])
    groups = {name: _read_group(name, entry, judge) for name, entry in said["groups"].items()}
    rows = [Entry(name, size, count) for name, size, count in said["ledger"]]
    shared = [Entry(name, size, 1, shared=True) for name, size in said["shared"].items()]
    channels, height, width = said["image shape"]
    return Info((channels, height, width), tuple(said["class names"]), groups, said["method"],
                Ledger((*rows, *shared)), said["created"], said["sha256"])


def _read_group(name: str, entry: object, judge: _Judge) -> Group:
    what = f"the exemplar group {_short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"decoder", "digest", "origin", "bytes"}:
        judge.fail(f"{what} with decoder, digest, origin and bytes", _short(entry))
    may_be = [_origin(name, lossless) for lossless in (True, False)]
    judge.need(_text(entry["decoder"]), f"{what} with a decoder's name", value=entry["decoder"])
    judge.need(_is_hash(entry["digest"]), f"{what} with a decoder digest of 64 hexadecimal digits",
               value=entry["digest"])
    judge.need(entry["origin"] in may_be, f"{what} of origin {' or '.join(dict.fromkeys(may_be))}",
               value=entry["origin"])
    judge.need(entry["bytes"] is None or (_natural(entry["bytes"]) and entry["bytes"] > 0),
               f"{what} with bytes an exemplar or null", value=entry["bytes"])
    return Group(**entry)


def _check_tensors(tensors: Mapping[str, Tensor], info: Info, judge: _Judge) -> None:
    judge.need(all(map(_text, tensors)), "tensor names of Unicode text", value=list(tensors))
    found = _groups_in(tensors)
    judge.need(found == sorted(info.groups), f"the exemplar groups {_short(found)} described",
               value=list(info.groups))
    judge.need("prototypes" not in found and "" not in found, "exemplar groups with a name of their own", value=found)
    parts = _parts(tensors)
    for name, group in info.groups.items():
        _check_group(name, group, parts[name], info, judge)
    mine = parts.get("prototypes")
    if mine is None:
        return
    judge.need(mine.keys() >= {"features", "labels"}, "prototypes with features and labels", value=list(mine))
    labels = _check_labels("prototypes", mine, info, judge)
    judge.need(len(np.unique(labels)) == len(labels), "one prototype a class", "a class with two")
    judge.need(mine["features"].ndim == 2, "a feature vector a prototype", value=tuple(mine["features"].shape))
    for key, t in mine.items():
        judge.need(t.ndim > 0 and len(t) == len(labels), f"{len(labels)} rows of {_short(f'prototypes/{key}')}",
                   value=tuple(t.shape))


def _check_labels(group: str, mine: Mapping[str, Tensor], info: Info, judge: _Judge) -> NDArray[np.int64]:
    name = _short(f"{group}/labels")
    t, classes = mine.get("labels"), len(info.class_names)
    if t is None or t.ndim != 1 or not len(t) or t.dtype not in _COUNTS:
        judge.fail(f"{name}, a row of class numbers", "none" if t is None else f"{t.dtype} of shape {tuple(t.shape)}")
    labels = _ints(t)
    judge.need(labels.min() >= 0 and labels.max() < classes, f"{name} within the {classes} class names",
               f"labels from {labels.min()} to {labels.max()}")
    return labels


def _check_group(group: str, said: Group, mine: Mapping[str, Tensor], info: Info, judge: _Judge) -> None:
    labels = _check_labels(group, mine, info, judge)
    payload, lengths, seen = mine["bytes"], mine.get("lengths"), mine.get("seen")
    what = _short(f"{group}/bytes")
    met = f"{payload.dtype} of shape {tuple(payload.shape)}"
    if said.bytes is None:
        if lengths is None:
            judge.fail(f"{_short(f'{group}/lengths')}, as exemplars differ in size", "none")
        judge.need(lengths.dtype in _COUNTS and lengths.shape == (len(labels),),
                   f"{len(labels)} lengths of {_short(group)}", f"{lengths.dtype} of shape {tuple(lengths.shape)}")
        sizes = _ints(lengths)
        judge.need(bool((sizes > 0).all()), f"lengths of {_short(group)} above 0", value=int(sizes.min()))
        judge.need(payload.dtype == torch.uint8 and payload.shape == (int(sizes.sum()),),
                   f"{int(sizes.sum()):,} bytes of {what}, as the lengths add up", met)
    else:
        forms = [list(info.image_shape)] if said.origin == "real" else [list(info.image_shape), [said.bytes]]
        judge.need(lengths is None, f"no lengths, as all of {_short(group)} have {said.bytes} bytes", "lengths")
        judge.need(payload.dtype == torch.uint8 and list(payload.shape[1:]) in forms
                   and len(payload) == len(labels) and math.prod(payload.shape[1:]) == said.bytes,
                   f"{len(labels)} rows of {said.bytes} bytes in {what}", met)
    judge.need(said.origin != "real" or said.bytes == math.prod(info.image_shape),
               f"{_short(group)} with the pixels of real samples", f"{said.bytes} bytes an exemplar")
    if seen is not None:
        classes = len(np.unique(labels))
        judge.need(seen.dtype in _COUNTS and seen.ndim == 1 and len(seen) in (1, classes) and _ints(seen).min() >= 0,
                   f"1 or {classes} counters in {_short(f'{group}/seen')}", f"{seen.dtype} of {tuple(seen.shape)}")
    for key in mine.keys() - {"bytes", "labels", "lengths", "seen"}:
        judge.need(mine[key].ndim > 0 and len(mine[key]) == len(labels),
                   f"{len(labels)} rows of {_short(f'{group}/{key}')}", value=tuple(mine[key].shape))


def _ints(tensor: Tensor) -> NDArray[np.int64]:
    return tensor.numpy().astype(np.int64)


def _difference(real: Ledger, said: Ledger) -> str:
    wrong = sorted(set(said.entries) ^ set(real.entries), key=lambda e: e.name)
    return f"one that differs in {_short(wrong[0].name)}" if wrong else "one in another order or with rows twice"


# -- looking -----------------------------------------------------------------------------------------------------


def summary(pack: Pack) -> list[Line]:
    """The pack's table: each group with its origin, the rest, the total (the file's size), the shared decoder apart."""
    info, tensors = pack.info, pack.tensors
    size: Counter[str] = Counter()
    for name, t in tensors.items():
        size[_prefix(name)] += t.nbytes
    labels = {name: _ints(tensors[f"{name}/labels"]) for name in _by_origin(info)}
    lines = [Line(name, size[name], info.groups[name].origin, len(np.unique(mine)), len(mine))
             for name, mine in labels.items()]
    if "prototypes" in size:
        lines.append(Line("prototypes", size["prototypes"], classes=len(tensors["prototypes/labels"])))
    rest = size.total() - sum(line.bytes for line in lines)
    if rest:
        lines.append(Line("statistics", rest))
    count = sum(len(mine) for mine in labels.values())
    lines.append(Line(HEADER, info.ledger.total - size.total()))
    lines.append(Line("total", info.ledger.total, classes=len(_classes(pack)), exemplars=count))
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
    labels = torch.from_numpy(_ints(pack.tensors[f"{group}/labels"]))
    if decoder.lossless:
        return pack.tensors[f"{group}/bytes"].reshape(len(labels), *decoder.image_shape).clone(), labels
    stored = _take(_parts(pack.tensors)[group]).stored
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
        if t.is_floating_point() and _prefix(name) not in info.groups and not bool(t.isfinite().all()):
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


# -- changing ----------------------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """A group taken apart: one `bytes`, label and row of each column an exemplar. `form` is None where sizes differ."""

    stored: list[bytes]
    labels: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    seen: NDArray[np.int64] | None
    form: tuple[int, ...] | None

    @property
    def seen_by_class(self) -> bool | None:
        """Whether there is a counter a class; None where one counter may be either."""
        if self.seen is None or (len(self.seen) == 1 and len(np.unique(self.labels)) == 1):
            return None
        return len(self.seen) > 1

    def keep(self, rows: NDArray[np.int64]) -> _Rows:
        labels, seen = self.labels[rows], self.seen
        if seen is not None and self.seen_by_class:
            seen = seen[np.isin(np.unique(self.labels), labels)]
        return _Rows([self.stored[i] for i in rows.tolist()], labels,
                     {k: v[rows] for k, v in self.columns.items()}, seen, self.form)


def _take(part: Mapping[str, Tensor]) -> _Rows:
    columns = dict(part)
    payload, labels = columns.pop("bytes"), columns.pop("labels")
    lengths, seen = columns.pop("lengths", None), columns.pop("seen", None)
    data = payload.numpy().tobytes()
    sizes = np.full(len(labels), len(data) // len(labels)) if lengths is None else _ints(lengths)
    ends = sizes.cumsum()
    stored = [data[begin:end] for begin, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
    return _Rows(stored, _ints(labels), {k: t.numpy() for k, t in columns.items()},
                 None if seen is None else _ints(seen), tuple(payload.shape[1:]) if lengths is None else None)


def _put(group: str, rows: _Rows) -> dict[str, Tensor]:
    flat = torch.frombuffer(bytearray(b"".join(rows.stored)), dtype=torch.uint8)
    made = {"bytes": flat if rows.form is None else flat.view(-1, *rows.form), "labels": _narrow(rows.labels)}
    if rows.form is None:
        made["lengths"] = _narrow(np.array([len(s) for s in rows.stored]))
    if rows.seen is not None:
        made["seen"] = torch.from_numpy(rows.seen.clip(max=2**31 - 1).astype(np.int32))
    made |= {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in rows.columns.items()}
    return {f"{group}/{key}": t for key, t in made.items()}


def _narrow(numbers: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(numbers).to(smallest_dtype(int(numbers.max())))


def _rest(pack: Pack) -> dict[str, Tensor]:
    """What is neither exemplar nor prototype."""
    return {name: t for name, t in pack.tensors.items()
            if _prefix(name) not in pack.info.groups and _prefix(name) != "prototypes"}


def merge(a: Pack, b: Pack) -> Pack:
    """One memory of two that were made with the same decoder. Classes are matched by name; `a` keeps its numbers.

    A class in both has the exemplars of both (one that is in both, byte for byte, once) and the mean of the two
    prototypes, weighted by its exemplars in each pack, at least 1: this supposes that both come of one network.
    The noise's σ is pooled over the classes, as it is defined: a root mean square. Any other statistic must be in
    one pack only, or the same in both; so must columns of several values an exemplar when b's classes get new
    numbers, for such values may be numbered by class (logits).
    """
    _check_mergeable(a.info, b.info)
    known = set(a.info.class_names)
    names = [*a.info.class_names, *(name for name in b.info.class_names if name not in known)]
    number = {name: i for i, name in enumerate(names)}
    renumber = np.array([number[name] for name in b.info.class_names], dtype=np.int64)
    groups = {**b.info.groups, **a.info.groups}
    tensors = _merged_rest(a, b, groups)
    first, second = _parts(a.tensors), _parts(b.tensors)
    for group in groups:
        mine = _take(first[group]) if group in a.info.groups else None
        other = _renumbered(group, _take(second[group]), renumber) if group in b.info.groups else None
        rows = _united(group, mine, other) if mine and other else mine or other
        assert rows is not None
        tensors |= _put(group, rows)
    tensors |= _merged_prototypes(a, b, renumber)
    shared = {e.name: e for pack in (a, b) for e in pack.info.ledger.entries if e.shared}
    methods = dict.fromkeys([*a.info.method.split("+"), *b.info.method.split("+")])
    return _sealed(tensors, Info(a.info.image_shape, tuple(names), groups, "+".join(methods),
                                 Ledger(tuple(shared.values()))))


def _check_mergeable(a: Info, b: Info) -> None:
    if a.version != b.version or a.image_shape != b.image_shape:
        raise DataError(f"packs of version {a.version} for images of {a.image_shape} and of version {b.version} for "
                        f"{b.image_shape} cannot be merged: both must be the same")
    digests = {g.digest: g.decoder for info in (a, b) for g in info.groups.values()}
    if len(digests) > 1:
        told = ", ".join(f"{name} ({digest[:12]}…)" for digest, name in digests.items())
        raise DataError(f"packs of different decoders cannot be merged: met {told}")
    for info in (a, b):
        name, times = next(iter(Counter(info.class_names).most_common(1)), ("", 0))
        if times > 1:
            raise DataError(f"classes are matched by name, but a pack has the name {name!r} {times} times: rename them")
    for group in a.groups.keys() & b.groups.keys():
        if a.groups[group] != b.groups[group]:
            raise DataError(f"{group} differ: {a.groups[group]} and {b.groups[group]} cannot be merged")


def _renumbered(group: str, rows: _Rows, renumber: NDArray[np.int64]) -> _Rows:
    wide = [name for name, values in rows.columns.items() if values.ndim > 1]
    if wide and not np.array_equal(renumber, np.arange(len(renumber))):
        raise DataError(f"{group}/{wide[0]} has several values an exemplar, which may be numbered by class, but the "
                        f"second pack's classes get new numbers: merge packs that list their classes alike")
    labels, seen = renumber[rows.labels], rows.seen
    if seen is not None and rows.seen_by_class:
        seen = seen[np.argsort(renumber[np.unique(rows.labels)])]
    return replace(rows, labels=labels, seen=seen)


def _united(group: str, a: _Rows, b: _Rows) -> _Rows:
    kinds = [{k: (v.dtype, v.shape[1:]) for k, v in rows.columns.items()} for rows in (a, b)]
    if kinds[0] != kinds[1] or a.form != b.form or (a.seen is None) != (b.seen is None):
        raise DataError(f"{group} are kept in different ways and cannot be merged: the columns "
                        f"{_short(kinds[0])} of {a.form}, and {_short(kinds[1])} of {b.form}")
    held = set(zip(a.labels.tolist(), a.stored, strict=True))
    new = [i for i, row in enumerate(zip(b.labels.tolist(), b.stored, strict=True)) if row not in held]
    fresh = b.keep(np.array(new, dtype=np.int64))
    labels = np.concatenate([a.labels, fresh.labels])
    columns = {k: np.concatenate([v, fresh.columns[k]]) for k, v in a.columns.items()}
    return _Rows(a.stored + fresh.stored, labels, columns, _seen_by_both(group, a, b), a.form)


def _seen_by_both(group: str, a: _Rows, b: _Rows) -> NDArray[np.int64] | None:
    """Counters of samples add up, over the stream or class by class."""
    if a.seen is None or b.seen is None:
        return None
    kinds = {rows.seen_by_class for rows in (a, b)} - {None}
    if len(kinds) > 1:
        raise DataError(f"{group}/seen counts the whole stream in one pack and each class in the other: "
                        f"they cannot be merged")
    if kinds == {False}:
        return a.seen + b.seen
    classes = np.union1d(a.labels, b.labels)
    total = np.zeros(len(classes), dtype=np.int64)
    for rows, seen in ((a, a.seen), (b, b.seen)):
        total[np.isin(classes, rows.labels)] += seen
    return total


def _merged_rest(a: Pack, b: Pack, groups: Mapping[str, Group]) -> dict[str, Tensor]:
    mine, other = _rest(a), _rest(b)
    made = {name: t for name, t in {**other, **mine}.items() if _prefix(name) not in groups}
    for name in made.keys() & mine.keys() & other.keys():
        x, y = mine[name], other[name]
        if x.dtype == y.dtype and x.shape == y.shape and np.array_equal(_raw(x), _raw(y)):
            continue
        if name != SIGMA or x.shape != y.shape:
            raise DataError(f"{name} differs between the packs, and there is no rule to make one of two: "
                            f"merge packs of one run, or drop it from one of them")
        u, v = (max(len(_classes(pack)), 1) for pack in (a, b))
        mean = (u * x.double() ** 2 + v * y.double() ** 2) / (u + v)
        made[name] = mean.sqrt().to(x.dtype)
    return made


def _classes(pack: Pack) -> NDArray[np.int64]:
    names = [f"{g}/labels" for g in pack.info.groups] + ["prototypes/labels"] * ("prototypes/labels" in pack.tensors)
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(_ints(pack.tensors[name]) for name in names)]))


def _merged_prototypes(a: Pack, b: Pack, renumber: NDArray[np.int64]) -> dict[str, Tensor]:
    mine, other = ({k: t for k, t in p.tensors.items() if _prefix(k) == "prototypes"} for p in (a, b))
    if not other:
        return mine
    small = all("prototypes/steps" in p for p in (mine, other))
    if mine:
        mine, other = (_floats(p, torch.float32 if small else torch.float16) for p in (mine, other))
    new = renumber[_ints(other["prototypes/labels"])]
    if not mine:
        order = np.argsort(new)
        moved = {k: torch.from_numpy(t.numpy()[order]) for k, t in other.items()}
        return moved | {"prototypes/labels": _narrow(new[order])}
    x, y = mine["prototypes/features"], other["prototypes/features"]
    old = _ints(mine["prototypes/labels"])
    shared = np.isin(old, new)
    further = sorted(k.partition("/")[2] for k in {*mine, *other} - {"prototypes/features", "prototypes/labels"})
    if further:
        raise DataError(f"prototypes that carry {', '.join(further)} cannot be merged: only their method knows "
                        "how; learn the classes with one learner instead")
    if x.shape[1] != y.shape[1] or x.dtype != y.dtype:
        raise DataError(f"prototypes of {x.shape[1]} values ({x.dtype}) and of {y.shape[1]} ({y.dtype}) cannot be "
                        f"merged: they come of different networks or settings")
    if shared.any() and not x.is_floating_point():
        raise DataError(f"prototypes of {x.dtype} have no mean: classes that are in both packs cannot be merged")
    first, second = x.numpy().copy(), y.numpy()
    place = {label: i for i, label in enumerate(new.tolist())}
    at = np.array([place[label] for label in old[shared].tolist()], dtype=np.int64)
    weight = [_exemplars_of(pack)[:, None] for pack in (a, b)]
    u, v = weight[0][old[shared]], weight[1][_ints(other["prototypes/labels"])[at]]
    first[shared] = (u * first[shared].astype(np.float64) + v * second[at].astype(np.float64)) / (u + v)
    only = ~np.isin(new, old)
    labels = np.concatenate([old, new[only]])
    order = np.argsort(labels)
    features = torch.from_numpy(np.concatenate([first, second[only]])[order])
    made = {"prototypes/features": features, "prototypes/labels": _narrow(labels[order])}
    if small:
        made["prototypes/features"], made["prototypes/steps"] = to_int8(features)
    return made


def _floats(prototypes: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Prototypes in int8 as floats, which have means; others as they are."""
    kept = dict(prototypes)
    features, steps = kept["prototypes/features"], kept.get("prototypes/steps")
    if features.dtype == torch.int8 and steps is not None:
        del kept["prototypes/steps"]
        kept["prototypes/features"] = (features.float() * steps.float()[:, None]).to(dtype)
    return kept


def _exemplars_of(pack: Pack) -> NDArray[np.int64]:
    """Exemplars of each class, at least 1."""
    counts = np.zeros(len(pack.info.class_names), dtype=np.int64)
    for group in pack.info.groups:
        counts += np.bincount(_ints(pack.tensors[f"{group}/labels"]), minlength=len(counts))
    return counts.clip(min=1)


def prune(pack: Pack, budget: int) -> Pack:
    """The pack with as many exemplars as a file of `budget` bytes holds.

    They go one by one from whichever class has most, the last stored first, evenly from the groups of a class (a
    real one before a condensed one), and never the last of a class. Prototypes and statistics stay.
    """
    if pack.info.ledger.total <= budget:
        return pack
    parts = _parts(pack.tensors)
    groups = {name: _take(parts[name]) for name in _by_origin(pack.info)}
    home, row, classes = _order_of_keeping(list(groups.values()))
    fixed = {name: t for name, t in pack.tensors.items() if _prefix(name) not in groups}

    def cut(count: int) -> tuple[dict[str, Tensor], Info]:
        made, left = dict(fixed), {}
        for i, (name, rows) in enumerate(groups.items()):
            kept = np.sort(row[:count][home[:count] == i])
            if len(kept):
                made |= _put(name, rows.keep(kept))
                left[name] = pack.info.groups[name]
        return made, _counted(made, replace(pack.info, groups=left))

    def size(count: int) -> int:
        return cut(count)[1].ledger.total

    least = size(classes)
    if least > budget:
        told = ", ".join(f"{e.name} {e.bytes:,}" for e in cut(classes)[1].ledger.entries if not e.shared)
        raise BudgetError(f"--budget {budget:,} bytes cannot hold this pack: one exemplar for each of its {classes} "
                          f"classes needs {least:,} bytes ({told}). Give --budget {least} or more")
    low, high = classes, len(row)  # size(low) fits, size(high) does not; the size grows with the count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= budget else (low, middle)
    return _sealed(*cut(low))


def _by_origin(info: Info) -> list[str]:
    return sorted(info.groups, key=lambda name: (ORIGINS.index(info.groups[name].origin), name))


def _order_of_keeping(groups: Sequence[_Rows]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Group and row of every exemplar, the first of each class before all second ones; and the number of classes."""
    nothing = np.zeros(0, dtype=np.int64)
    label = np.concatenate([nothing, *(g.labels for g in groups)])
    home = np.concatenate([nothing, *(np.full(len(g.labels), i) for i, g in enumerate(groups))])
    row = np.concatenate([nothing, *(np.arange(len(g.labels)) for g in groups)])
    within = np.concatenate([nothing, *(_rank(g.labels, np.arange(len(g.labels))) for g in groups)])
    turn = _rank(label, np.lexsort((home, within)))
    order = np.lexsort((label, turn))
    return home[order], row[order], len(np.unique(label))


def _rank(labels: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each exemplar among those of its class, when all are taken in this order."""
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, counts = np.unique(labels, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return rank
