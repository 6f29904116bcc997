"""Two learners' files become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocore.errors import UserError
from protocore.field.document import now
from protocore.field.keeper import Keeper
from protocore.learn.merging import merge as merge_learners


@dataclass(frozen=True)
class Merged:
    """What is in the new file: pictures of each class, those that both files had learned, and bytes kept.

    `cut`: how many numbers of a feature vector are kept, and how many the better of the two files had, if that is more.
    """

    path: Path
    classes: Mapping[str, int]
    twice: Mapping[str, int]  # by class; these pictures count double
    kept: int
    budget: int | None
    cut: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def merge(first: str | Path, second: str | Path, out: str | Path) -> Merged:
    """A new file with the classes of two learners of the same frozen network; these stay as they are."""
    mine, other, made = Keeper(first), Keeper(second), Keeper(out)
    document, theirs = mine.document, other.document
    learner = mine.learner
    had = [getattr(one.method, "numbers", 0) for one in (learner, other.learner)]
    merge_learners(learner, other.learner)
    left = getattr(learner.method, "numbers", 0)
    twice = {name: len(known.has() & theirs.classes[name].has()) for name, known in document.classes.items()
             if name in theirs.classes}
    document = document.merged(theirs, now())
    learner.temperature = document.calibration.temperature
    with made.changing():
        if made.path.exists():
            raise UserError(f"--out {made.path}: is there already; give another name, or delete it first")
        made.write(learner, document)
    return Merged(made.path, {name: known.pictures for name, known in document.classes.items()},
                  {name: count for name, count in twice.items() if count}, learner.ledger().total,
                  learner.settings.budget, (left, max(had)) if left < max(had) else None)
