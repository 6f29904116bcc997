"""A pack that fits into fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protocore.errors import BudgetError
from protocore.memory.pack.format import Info, Pack, by_origin, by_prefix, counted, prefix_of, sealed
from protocore.memory.pack.rows import Rows, put_together, take_apart


def prune(pack: Pack, budget: int) -> Pack:
    """The pack with as many exemplars as a file of `budget` bytes holds.

    They go one by one from whichever class has most, the last stored first, evenly from the groups of a class (a
    real one before a condensed one), and never the last of a class. Prototypes and statistics stay.
    """
    if pack.info.ledger.total <= budget:
        return pack
    parts = by_prefix(pack.tensors)
    groups = {name: take_apart(parts[name]) for name in by_origin(pack.info)}
    home, row, classes = _order_of_keeping(list(groups.values()))
    fixed = {name: t for name, t in pack.tensors.items() if prefix_of(name) not in groups}

    def cut(count: int) -> tuple[dict[str, Tensor], Info]:
        made, left = dict(fixed), {}
        for i, (name, rows) in enumerate(groups.items()):
            kept = np.sort(row[:count][home[:count] == i])
            if len(kept):
                made |= put_together(name, rows.keep(kept))
                left[name] = pack.info.groups[name]
        return made, counted(made, replace(pack.info, groups=left))

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
    return sealed(*cut(low))


def _order_of_keeping(groups: Sequence[Rows]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
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
