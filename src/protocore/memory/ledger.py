"""Every byte that outlives a task, by name; the sum is the size of the file that holds it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from protocore.errors import BudgetError, DataError

HEADER = "file header"


@dataclass(frozen=True)
class Entry:
    """One row: `shared` bytes are kept once for any number of classes and are not part of the file."""

    name: str
    bytes: int
    rows: int
    shared: bool = False


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


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a memory file: safetensors, with a JSON header."""
    # An empty mapping is not the same as none: for a memory without tensors it makes a file that no reader takes.
    return to_safetensors({k: v.contiguous() for k, v in tensors.items()}, dict(metadata) if metadata else None)


def ledger_of(tensors: Mapping[str, Tensor], shared: Mapping[str, int] | None = None,
              metadata: Mapping[str, str] | None = None) -> Ledger:
    """Count everything that `serialise` would write, header included, and the shared items beside it."""
    entries = [Entry(name, t.nbytes, len(t) if t.ndim else 1) for name, t in sorted(tensors.items())]
    header = len(serialise(tensors, metadata)) - sum(e.bytes for e in entries)
    entries.append(Entry(HEADER, header, 1))
    entries += [Entry(name, size, 1, shared=True) for name, size in (shared or {}).items() if size]
    return Ledger(tuple(entries))


def write_atomic(path: Path, data: bytes) -> None:
    """All of the data or the old file: never a part of it, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, or an error that says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except Exception as error:  # the library raises its own classes for a header that lies
        raise DataError(f"{path}: not a readable safetensors file ({error}); it may be damaged") from None


def check_budget(ledger: Ledger, budget: int | None, classes: int) -> None:
    """A memory over its budget is an error, never an overflow."""
    if budget is not None and ledger.total > budget:
        rows = ", ".join(f"{e.name} {e.bytes:,}" for e in ledger.entries if not e.shared)
        raise BudgetError(
            f"--budget {budget:,} bytes cannot hold {classes} classes: this memory needs {ledger.total:,} bytes "
            f"({rows}). Give --budget {ledger.total}, or keep less per class"
        )
