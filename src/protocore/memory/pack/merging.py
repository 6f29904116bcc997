"""One pack of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.codecs.int8 import to_int8
from protocore.errors import DataError
from protocore.memory.ledger import Ledger
from protocore.memory.pack.checks import plain, short
from protocore.memory.pack.format import Group, Info, Pack, by_prefix, classes_of, ints, prefix_of, raw_bytes, sealed
from protocore.memory.pack.rows import Rows, narrow, put_together, take_apart

SIGMA = "statistics/sigma"


def _rest(pack: Pack) -> dict[str, Tensor]:
    """What is neither exemplar nor prototype."""
    return {name: t for name, t in pack.tensors.items()
            if prefix_of(name) not in pack.info.groups and prefix_of(name) != "prototypes"}


def merge(a: Pack, b: Pack) -> Pack:
    """One memory of two that were made with the same codec. Classes are matched by name; `a` keeps its numbers.

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
    first, second = by_prefix(a.tensors), by_prefix(b.tensors)
    for group in groups:
        mine = take_apart(first[group]) if group in a.info.groups else None
        other = _renumbered(group, take_apart(second[group]), renumber) if group in b.info.groups else None
        rows = _united(group, mine, other) if mine and other else mine or other
        assert rows is not None
        tensors |= put_together(group, rows)
    tensors |= _merged_prototypes(a, b, renumber)
    shared = {e.name: e for pack in (a, b) for e in pack.info.ledger.entries if e.shared}
    methods = dict.fromkeys([*a.info.method.split("+"), *b.info.method.split("+")])
    return sealed(tensors, Info(a.info.image_shape, tuple(names), groups, "+".join(methods),
                                 Ledger(tuple(shared.values()))))


def averaged(a: Pack, b: Pack) -> list[str]:
    """The classes with different prototypes in two packs that can be merged: `merge` takes the mean of each pair."""
    first, second = _prototypes_by_name(a), _prototypes_by_name(b)
    return [name for name, vector in first.items() if name in second and not torch.equal(vector, second[name])]


def _prototypes_by_name(pack: Pack) -> dict[str, Tensor]:
    mine = {k: t for k, t in pack.tensors.items() if prefix_of(k) == "prototypes"}
    if not mine:
        return {}
    names = [pack.info.class_names[label] for label in ints(mine["prototypes/labels"])]
    return dict(zip(names, _floats(mine, torch.float32)["prototypes/features"], strict=True))


def _check_mergeable(a: Info, b: Info) -> None:
    if a.version != b.version or a.image_shape != b.image_shape:
        raise DataError(f"packs of version {a.version} for images of {a.image_shape} and of version {b.version} for "
                        f"{b.image_shape} cannot be merged: both must be the same")
    digests = {g.digest: g.codec for info in (a, b) for g in info.groups.values()}
    if len(digests) > 1:
        told = ", ".join(f"{name} ({digest[:12]}…)" for digest, name in digests.items())
        raise DataError(f"packs of different codecs cannot be merged: met {told}")
    for info in (a, b):
        name, times = next(iter(Counter(info.class_names).most_common(1)), ("", 0))
        if times > 1:
            raise DataError(f"classes are matched by name, but a pack has the name {short(name)} {times} times: "
                            f"rename them")
    for group in a.groups.keys() & b.groups.keys():
        if a.groups[group] != b.groups[group]:
            raise DataError(f"{plain(group)} differ: {a.groups[group]} and {b.groups[group]} cannot be merged")


def _renumbered(group: str, rows: Rows, renumber: NDArray[np.int64]) -> Rows:
    wide = [name for name, values in rows.columns.items() if values.ndim > 1]
    if wide and not np.array_equal(renumber, np.arange(len(renumber))):
        raise DataError(f"{plain(f'{group}/{wide[0]}')} has several values an exemplar, which may be numbered by "
                        f"class, but the second pack's classes get new numbers: merge packs that list their classes "
                        f"alike")
    labels, seen = renumber[rows.labels], rows.seen
    if seen is not None and rows.seen_by_class:
        seen = seen[np.argsort(renumber[np.unique(rows.labels)])]
    return replace(rows, labels=labels, seen=seen)


def _united(group: str, a: Rows, b: Rows) -> Rows:
    kinds = [{k: (v.dtype, v.shape[1:]) for k, v in rows.columns.items()} for rows in (a, b)]
    if kinds[0] != kinds[1] or a.form != b.form or (a.seen is None) != (b.seen is None):
        raise DataError(f"{plain(group)} are kept in different ways and cannot be merged: the columns "
                        f"{short(kinds[0])} of {a.form}, and {short(kinds[1])} of {b.form}")
    held = set(zip(a.labels.tolist(), a.stored, strict=True))
    new = [i for i, row in enumerate(zip(b.labels.tolist(), b.stored, strict=True)) if row not in held]
    fresh = b.keep(np.array(new, dtype=np.int64))
    labels = np.concatenate([a.labels, fresh.labels])
    columns = {k: np.concatenate([v, fresh.columns[k]]) for k, v in a.columns.items()}
    return Rows(a.stored + fresh.stored, labels, columns, _seen_by_both(group, a, b), a.form)


def _seen_by_both(group: str, a: Rows, b: Rows) -> NDArray[np.int64] | None:
    """Counters of samples add up, over the stream or class by class."""
    if a.seen is None or b.seen is None:
        return None
    kinds = {rows.seen_by_class for rows in (a, b)} - {None}
    if len(kinds) > 1:
        raise DataError(f"{plain(group)}/seen counts the whole stream in one pack and each class in the other: "
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
    made = {name: t for name, t in {**other, **mine}.items() if prefix_of(name) not in groups}
    for name in made.keys() & mine.keys() & other.keys():
        x, y = mine[name], other[name]
        if x.dtype == y.dtype and x.shape == y.shape and np.array_equal(raw_bytes(x), raw_bytes(y)):
            continue
        if name != SIGMA or x.shape != y.shape:
            raise DataError(f"{plain(name)} differs between the packs, and there is no rule to make one of two: "
                            f"merge packs of one run, or drop it from one of them")
        u, v = (max(len(classes_of(pack)), 1) for pack in (a, b))
        mean = (u * x.double() ** 2 + v * y.double() ** 2) / (u + v)
        made[name] = mean.sqrt().to(x.dtype)
    return made


def _merged_prototypes(a: Pack, b: Pack, renumber: NDArray[np.int64]) -> dict[str, Tensor]:
    mine, other = ({k: t for k, t in p.tensors.items() if prefix_of(k) == "prototypes"} for p in (a, b))
    if not other:
        return mine
    small = all("prototypes/steps" in p for p in (mine, other))
    if mine:
        mine, other = (_floats(p, torch.float32 if small else torch.float16) for p in (mine, other))
    new = renumber[ints(other["prototypes/labels"])]
    if not mine:
        order = np.argsort(new)
        moved = {k: torch.from_numpy(t.numpy()[order]) for k, t in other.items()}
        return moved | {"prototypes/labels": narrow(new[order])}
    x, y = mine["prototypes/features"], other["prototypes/features"]
    old = ints(mine["prototypes/labels"])
    shared = np.isin(old, new)
    further = sorted(k.partition("/")[2] for k in {*mine, *other} - {"prototypes/features", "prototypes/labels"})
    if further:
        raise DataError(f"prototypes that carry {plain(', '.join(further))} cannot be merged: only their method knows "
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
    u, v = weight[0][old[shared]], weight[1][ints(other["prototypes/labels"])[at]]
    first[shared] = (u * first[shared].astype(np.float64) + v * second[at].astype(np.float64)) / (u + v)
    only = ~np.isin(new, old)
    labels = np.concatenate([old, new[only]])
    order = np.argsort(labels)
    features = torch.from_numpy(np.concatenate([first, second[only]])[order])
    made = {"prototypes/features": features, "prototypes/labels": narrow(labels[order])}
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
        counts += np.bincount(ints(pack.tensors[f"{group}/labels"]), minlength=len(counts))
    return counts.clip(min=1)
