"""A pack that fits into fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from protocore.errors import BudgetError
from protocore.memory.pack.checks import plain
from protocore.memory.pack.format import Info, Pack, by_origin, by_prefix, counted, prefix_of, sealed
from protocore.memory.pack.rows import Rows, put_together, rank, take_apart
from protocore.memory.quota import largest


class _Order(NamedTuple):
    """Group and row of every exemplar, the first of each class before all second ones; and the number of classes."""

    home: NDArray[np.int64]
    row: NDArray[np.int64]
    classes: int


def prune(pack: Pack, budget: int) -> Pack:
    """The pack with as many exemplars as a file of `budget` bytes holds.

    They go one by one from whichever class has most, the last stored first, evenly from the groups of a class (a
    real one before a condensed one), and never the last of a class. A group also takes some hundred bytes of header:
    where more exemplars fit without the last groups (real before coded before synthetic) and every class still has
    one, these groups go as a whole. Prototypes and statistics stay.
    """
    if pack.info.ledger.total <= budget:
        return pack
    parts = by_prefix(pack.tensors)
    groups = {name: take_apart(parts[name]) for name in by_origin(pack.info)}
    fixed = {name: t for name, t in pack.tensors.items() if prefix_of(name) not in groups}

    def cut(order: _Order, count: int) -> tuple[dict[str, Tensor], Info]:
        made, left = dict(fixed), {}
        for i, (name, rows) in enumerate(groups.items()):
            kept = np.sort(order.row[:count][order.home[:count] == i])
            if len(kept):
                made |= put_together(name, rows.keep(kept))
                left[name] = pack.info.groups[name]
        return made, counted(made, replace(pack.info, groups=left))

    def fits(order: _Order, count: int) -> bool:
        return cut(order, count)[1].ledger.total <= budget

    best = _order_of_keeping(list(groups.values()))
    classes = best.classes
    if not fits(best, classes):  # and no choice of groups is smaller: the first of a class are of the first groups
        ledger = cut(best, classes)[1].ledger
        told = ", ".join(f"{plain(e.name)} {e.bytes:,}" for e in ledger.entries if not e.shared)
        raise BudgetError(f"--budget {budget:,} bytes cannot hold this pack: one exemplar for each of its {classes} "
                          f"classes needs {ledger.total:,} bytes ({told}). Give --budget {ledger.total} or more")
    kept = largest(lambda count: fits(best, count), classes, len(best.row))
    for first in range(len(groups) - 1, 0, -1):
        order = _order_of_keeping(list(groups.values())[:first])
        if order.classes < classes or len(order.row) <= kept:
            break  # still fewer groups have no more of either
        if fits(order, kept + 1):
            best, kept = order, largest(lambda count, order=order: fits(order, count), kept + 1, len(order.row))
    return sealed(*cut(best, kept))


def _order_of_keeping(groups: Sequence[Rows]) -> _Order:
    nothing = np.zeros(0, dtype=np.int64)
    label = np.concatenate([nothing, *(g.labels for g in groups)])
    home = np.concatenate([nothing, *(np.full(len(g.labels), i) for i, g in enumerate(groups))])
    row = np.concatenate([nothing, *(np.arange(len(g.labels)) for g in groups)])
    within = np.concatenate([nothing, *(rank(g.labels) for g in groups)])
    turn = rank(label, np.lexsort((home, within)))
    order = np.lexsort((label, turn))
    return _Order(home[order], row[order], len(np.unique(label)))
