"""What a pack says of itself, held against its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.codecs import is_told
from protocore.errors import DataError
from protocore.memory.ledger import Entry, Ledger
from protocore.memory.pack.format import ORIGINS, VERSION, Group, Info, by_prefix, groups_in, ints

MAX_SIDE = 2**16
MAX_VALUES = 2**22  # of one picture, 1182 x 1182 in colour: a codec may take 200 bytes of memory for each of them
_COUNTS = (torch.uint8, torch.uint16, torch.int32)  # labels, lengths and counters
_HASH = re.compile(r"[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class PackError(DataError):
    """What was met is no whole pack: a file that is there, but damaged or not what it says."""


class Judge:
    """Holds what was met against what was expected, and names the file where they differ."""

    def __init__(self, source: object, way_out: str) -> None:
        self.source = source
        self.way_out = way_out

    def fail(self, expected: str, met: str) -> NoReturn:
        raise PackError(f"{self.source}: expected {expected}, met {met}; {self.way_out}")

    def need(self, holds: bool, expected: str, met: str = "", *, value: object = None) -> None:
        """`met` is told as it is; `value` is something of the file, told in short and with its odd signs escaped."""
        if not holds:
            self.fail(expected, met or short(value))


def short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}…"


def plain(text: str, most: int = 120) -> str:
    """A name of a file's as one short line: odd signs escaped, since some of them steer a terminal."""
    told = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:most])
    return told if len(text) <= most else f"{told}…"


def is_natural(value: object) -> bool:
    return type(value) is int and value >= 0


def are_naturals(value: object) -> bool:
    return isinstance(value, list) and all(map(is_natural, value))


def is_text(value: object) -> bool:
    """Text that can be written again: half of a surrogate pair cannot."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "created": (is_text, "a text"),
    "method": (is_text, "a text"),
    "image shape": (lambda v: are_naturals(v) and len(v) == 3 and all(0 < n <= MAX_SIDE for n in v)
                    and math.prod(v) <= MAX_VALUES, f"channels, height and width of up to {MAX_VALUES:,} values"),
    "class names": (lambda v: isinstance(v, list) and all(map(is_text, v)), "a list of texts"),
    "groups": (lambda v: isinstance(v, dict), "an object"),
    "ledger": (lambda v: isinstance(v, list) and all(
        isinstance(r, list) and len(r) == 3 and is_text(r[0]) and are_naturals(r[1:]) for r in v), "rows of three"),
    "shared": (lambda v: isinstance(v, dict) and all(map(is_text, v)) and are_naturals(list(v.values())),
               "bytes by name"),
    "sha256": (_is_hash, "64 hexadecimal digits"),
}


def read_info(said: dict[str, Any], judge: Judge) -> Info:
    version = said.pop("version", None)
    if type(version) is not int or version != VERSION:
        judge.fail(f"a pack of version {VERSION}, the one that this program reads", f"version {short(version)}")
    judge.need(said.keys() == _FIELDS.keys(), f"the fields {', '.join(_FIELDS)}", value=list(said))
    for field, (holds, kind) in _FIELDS.items():
        judge.need(holds(said[field]), f"{kind} as {field!r}", value=said[field])
    groups = {name: _read_group(name, entry, judge) for name, entry in said["groups"].items()}
    rows = [Entry(name, size, count) for name, size, count in said["ledger"]]
    shared = [Entry(name, size, 1, shared=True) for name, size in said["shared"].items()]
    channels, height, width = said["image shape"]
    return Info((channels, height, width), tuple(said["class names"]), groups, said["method"],
                Ledger((*rows, *shared)), said["created"], said["sha256"])


def _read_group(name: str, entry: object, judge: Judge) -> Group:
    what = f"the exemplar group {short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"decoder", "digest", "origin", "bytes"}:
        judge.fail(f"{what} with decoder, digest, origin and bytes", short(entry))
    judge.need(isinstance(entry["decoder"], str) and is_told(entry["decoder"]),
               f"{what} with a codec's name, at most a number and ',entropy' behind it", value=entry["decoder"])
    judge.need(_is_hash(entry["digest"]), f"{what} with a codec's digest of 64 hexadecimal digits",
               value=entry["digest"])
    judge.need(entry["origin"] in ORIGINS, f"{what} of an origin among {', '.join(ORIGINS)}",
               value=entry["origin"])
    judge.need(entry["bytes"] is None or (is_natural(entry["bytes"]) and entry["bytes"] > 0),
               f"{what} with bytes an exemplar or null", value=entry["bytes"])
    return Group(entry["decoder"], entry["digest"], entry["origin"], entry["bytes"])


def check_tensors(tensors: Mapping[str, Tensor], info: Info, judge: Judge) -> None:
    judge.need(all(map(is_text, tensors)), "tensor names of Unicode text", value=list(tensors))
    found = groups_in(tensors)
    judge.need(found == sorted(info.groups), f"the exemplar groups {short(found)} described",
               value=list(info.groups))
    judge.need("prototypes" not in found and "" not in found, "exemplar groups with a name of their own", value=found)
    parts = by_prefix(tensors)
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
        judge.need(t.ndim > 0 and len(t) == len(labels), f"{len(labels)} rows of {short(f'prototypes/{key}')}",
                   value=tuple(t.shape))


def _check_labels(group: str, mine: Mapping[str, Tensor], info: Info, judge: Judge) -> NDArray[np.int64]:
    name = short(f"{group}/labels")
    t, classes = mine.get("labels"), len(info.class_names)
    if t is None or t.ndim != 1 or not len(t) or t.dtype not in _COUNTS:
        judge.fail(f"{name}, a row of class numbers", "none" if t is None else f"{t.dtype} of shape {tuple(t.shape)}")
    labels = ints(t)
    judge.need(labels.min() >= 0 and labels.max() < classes, f"{name} within the {classes} class names",
               f"labels from {labels.min()} to {labels.max()}")
    return labels


def _check_group(group: str, said: Group, mine: Mapping[str, Tensor], info: Info, judge: Judge) -> None:
    labels = _check_labels(group, mine, info, judge)
    payload, lengths, seen = mine["bytes"], mine.get("lengths"), mine.get("seen")
    what = short(f"{group}/bytes")
    met = f"{payload.dtype} of shape {tuple(payload.shape)}"
    if said.bytes is None:
        if lengths is None:
            judge.fail(f"{short(f'{group}/lengths')}, as exemplars differ in size", "none")
        judge.need(lengths.dtype in _COUNTS and lengths.shape == (len(labels),),
                   f"{len(labels)} lengths of {short(group)}", f"{lengths.dtype} of shape {tuple(lengths.shape)}")
        sizes = ints(lengths)
        judge.need(bool((sizes > 0).all()), f"lengths of {short(group)} above 0", value=int(sizes.min()))
        judge.need(payload.dtype == torch.uint8 and payload.shape == (int(sizes.sum()),),
                   f"{int(sizes.sum()):,} bytes of {what}, as the lengths add up", met)
    else:
        forms = [list(info.image_shape)] if said.origin == "real" else [list(info.image_shape), [said.bytes]]
        judge.need(lengths is None, f"no lengths, as all of {short(group)} have {said.bytes} bytes", "lengths")
        judge.need(payload.dtype == torch.uint8 and list(payload.shape[1:]) in forms
                   and len(payload) == len(labels) and math.prod(payload.shape[1:]) == said.bytes,
                   f"{len(labels)} rows of {said.bytes} bytes in {what}", met)
    judge.need(said.origin != "real" or said.bytes == math.prod(info.image_shape),
               f"{short(group)} with the pixels of real samples", f"{said.bytes} bytes an exemplar")
    if seen is not None:
        classes = len(np.unique(labels))
        judge.need(seen.dtype in _COUNTS and seen.ndim == 1 and len(seen) in (1, classes) and ints(seen).min() >= 0,
                   f"1 or {classes} counters in {short(f'{group}/seen')}", f"{seen.dtype} of {tuple(seen.shape)}")
    for key in mine.keys() - {"bytes", "labels", "lengths", "seen"}:
        judge.need(mine[key].ndim > 0 and len(mine[key]) == len(labels),
                   f"{len(labels)} rows of {short(f'{group}/{key}')}", value=tuple(mine[key].shape))
