"""What is kept or held: a thing that knows its own tensors, their names in a file and how large they will be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protocore.memory.plan import Horizon, Plan

if TYPE_CHECKING:
    from protocore.memory.store import ExemplarStore


def renumbered(classes: Iterable[int], gone: int) -> list[int]:
    """Numbers of classes once that one is gone: those after it move one down."""
    return [c - (c > gone) for c in classes if c != gone]


def without_row(rows: Tensor, label: int) -> Tensor:
    """A tensor with a row for each class, without that of this one."""
    return rows[torch.arange(len(rows), device=rows.device) != label]


class Kept:
    """A part of a memory. A method registers its parts (`keep`, `hold`); saving, loading and counting follow."""

    kind: str = "statistics"  # what the ledger calls it: exemplars, prototypes, statistics, network...
    origin: str | None = None  # of exemplars: real, coded or synthetic

    def tensors(self) -> dict[str, Tensor]:
        """Everything of it, as it is written to disk; nothing while there is nothing to say."""
        raise TypeError(f"{type(self).__name__} defines no tensors")

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `tensors` gave; other names in the mapping are somebody else's."""
        raise TypeError(f"{type(self).__name__} cannot load")

    def forgets(self) -> bool:
        """Whether it says how a class is taken out of it."""
        return type(self).forget is not Kept.forget

    def forget(self, label: int) -> list[str]:
        """Give up what is of this class; the numbers of those after it move one down.

        Returns, in words, what of it stays mixed with other classes and cannot be taken apart.
        """
        raise TypeError(f"{type(self).__name__} cannot forget a class")

    def plan(self, at: Horizon, rows: int) -> Plan:
        """What `tensors` will be then, with so many exemplars."""
        return {}

    def held(self) -> dict[str, int]:
        """Bytes that it takes only while a task is learned, by a name for the ledger."""
        return {}

    def stores(self) -> list[ExemplarStore]:
        """The exemplar stores in it."""
        return []
