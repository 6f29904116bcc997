"""Every byte that outlives a task, by name; the sum is the size of the file that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from protocore.errors import BudgetError
from protocore.files import serialise

HEADER = "file header"


@dataclass(frozen=True)
class Kind:
    """What a row of the ledger is: `exemplars` (and of which origin), `prototypes`, `statistics`, `network`..."""

    kind: str = ""
    origin: str | None = None


@dataclass(frozen=True)
class Entry:
    """One row: `shared` bytes are kept once for any number of classes and are not part of the file."""

    name: str
    bytes: int
    rows: int
    shared: bool = False
    kind: str = ""  # exemplars, prototypes, statistics, parameters, header, decoder, network; "" where nobody said
    origin: str | None = None  # of exemplars: real, coded or synthetic


@dataclass(frozen=True)
class Ledger:
    """The rows, and their sum."""

    entries: tuple[Entry, ...]

    @property
    def total(self) -> int:
        """Bytes of the memory file: everything but the shared rows."""
        return sum(e.bytes for e in self.entries if not e.shared)

    @property
    def shared(self) -> int:
        return sum(e.bytes for e in self.entries if e.shared)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(e) for e in self.entries]


def ledger_of(tensors: Mapping[str, Tensor], shared: Mapping[str, int] | None = None,
              metadata: Mapping[str, str] | None = None, kinds: Mapping[str, Kind] | None = None) -> Ledger:
    """Count everything that `serialise` would write, header included, and the shared items beside it.

    `kinds` says what they are, by name.
    """
    kinds = kinds or {}

    def entry(name: str, size: int, rows: int, *, shared: bool = False) -> Entry:
        what = kinds.get(name, Kind())
        return Entry(name, size, rows, shared, what.kind, what.origin)

    entries = [entry(name, t.nbytes, len(t) if t.ndim else 1) for name, t in sorted(tensors.items())]
    header = len(serialise(tensors, metadata)) - sum(e.bytes for e in entries)
    entries.append(Entry(HEADER, header, 1, kind="header"))
    entries += [entry(name, size, 1, shared=True) for name, size in (shared or {}).items() if size]
    return Ledger(tuple(entries))


def check_budget(ledger: Ledger, budget: int | None, classes: int) -> None:
    """A memory over its budget is an error, never an overflow."""
    if budget is not None and ledger.total > budget:
        rows = ", ".join(f"{e.name} {e.bytes:,}" for e in ledger.entries if not e.shared)
        raise BudgetError(
            f"--budget {budget:,} bytes cannot hold {classes} classes: this memory needs {ledger.total:,} bytes "
            f"({rows}). Give --budget {ledger.total}, or keep less per class"
        )
