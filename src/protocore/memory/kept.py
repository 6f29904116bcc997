"""What is kept or held: a thing that knows its own tensors, their names in a file and how large they will be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from protocore.memory.plan import Horizon, Plan

if TYPE_CHECKING:
    from protocore.memory.store import ExemplarStore


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

    def plan(self, at: Horizon, rows: int) -> Plan:
        """What `tensors` will be then, with so many exemplars."""
        return {}

    def held(self) -> dict[str, int]:
        """Bytes that it takes only while a task is learned, by a name for the ledger."""
        return {}

    def stores(self) -> list[ExemplarStore]:
        """The exemplar stores in it."""
        return []
