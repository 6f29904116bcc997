"""The exemplars of a pack taken apart, one row each, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.memory.pack.format import ints
from protocore.memory.store import smallest_dtype


@dataclass
class Rows:
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

    def keep(self, rows: NDArray[np.int64]) -> Rows:
        labels, seen = self.labels[rows], self.seen
        if seen is not None and self.seen_by_class:
            seen = seen[np.isin(np.unique(self.labels), labels)]
        return Rows([self.stored[i] for i in rows.tolist()], labels,
                    {k: v[rows] for k, v in self.columns.items()}, seen, self.form)


def take_apart(part: Mapping[str, Tensor]) -> Rows:
    columns = dict(part)
    payload, labels = columns.pop("bytes"), columns.pop("labels")
    lengths, seen = columns.pop("lengths", None), columns.pop("seen", None)
    data = payload.numpy().tobytes()
    sizes = np.full(len(labels), len(data) // len(labels)) if lengths is None else ints(lengths)
    ends = sizes.cumsum()
    stored = [data[begin:end] for begin, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)]
    return Rows(stored, ints(labels), {k: t.numpy() for k, t in columns.items()},
                None if seen is None else ints(seen), tuple(payload.shape[1:]) if lengths is None else None)


def put_together(group: str, rows: Rows) -> dict[str, Tensor]:
    flat = torch.frombuffer(bytearray(b"".join(rows.stored)), dtype=torch.uint8)
    made = {"bytes": flat if rows.form is None else flat.view(-1, *rows.form), "labels": narrow(rows.labels)}
    if rows.form is None:
        made["lengths"] = narrow(np.array([len(s) for s in rows.stored]))
    if rows.seen is not None:
        made["seen"] = torch.from_numpy(rows.seen.clip(max=2**31 - 1).astype(np.int32))
    made |= {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in rows.columns.items()}
    return {f"{group}/{key}": t for key, t in made.items()}


def rank(labels: NDArray[np.int64], order: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """The place of each exemplar among those of its class, when all are taken in this order (else as stored)."""
    order = np.arange(len(labels)) if order is None else order
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, counts = np.unique(labels, return_counts=True)
    place = np.empty(len(labels), dtype=np.int64)
    place[by_class] = np.arange(len(labels)) - np.repeat(counts.cumsum() - counts, counts)
    return place


def narrow(numbers: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(numbers).to(smallest_dtype(int(numbers.max())))
