"""What is in a learner's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocore.field.document import WEAK, Document, Entry
from protocore.learn.front import nbytes
from protocore.learn.learner import Learner
from protocore.memory.ledger import Entry as Row
from protocore.memory.ledger import Ledger


@dataclass(frozen=True)
class Class:
    """A class of the learner: since when, and of how many pictures."""

    since: str
    pictures: int
    exemplars: int
    weak: bool


@dataclass(frozen=True)
class Shown:
    """Classes in order of arrival; bytes by the ledger, the network and what the file tells about it apart."""

    path: Path
    file_bytes: int
    method: str | None  # None: nothing was learned yet
    backbone: str | None
    image_size: int | None
    choice: str
    given: Mapping[str, Any]
    budget: int | None
    kept: int  # what the budget counts
    ledger: Sequence[Row]
    network: int  # bytes of the network
    told: int  # bytes of names, fingerprints, history and calibration
    temperature: float
    held_out: int  # pictures whose score is known, for --unknown
    classes: Mapping[str, Class]
    history: Sequence[Entry]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def shown_of(path: Path, document: Document, learner: Learner | None) -> Shown:
    """Everything that a person may want to know of the file."""
    told = len(str(document.to_json()).encode())
    of: dict[str, Any] = {"path": path, "file_bytes": path.stat().st_size, "choice": document.choice,
                          "given": dict(document.given), "told": told, "history": document.history,
                          "held_out": len(document.calibration.best)}
    if learner is None:
        return Shown(**of, method=None, backbone=None, image_size=None, budget=document.given.get("budget"),  # type: ignore
                     kept=0, ledger=(), network=0, temperature=1.0, classes={})
    ledger: Ledger = learner.ledger()
    counts = [store.counts() for store in learner.method.stores()]
    classes = {name: Class(known.since, known.pictures, sum(c.get(label, 0) for c in counts), known.pictures < WEAK)
               for label, (name, known) in enumerate(document.classes.items())}
    s = learner.settings
    network = nbytes(learner.net) + (nbytes(learner.front) if learner.front else 0)
    return Shown(**of, method=s.method, backbone=s.backbone, image_size=learner.image_shape[1], budget=s.budget,
                 kept=ledger.total, ledger=ledger.entries, network=network, temperature=learner.temperature,
                 classes=classes)
