"""Where a run stands, as its checkpoints have it."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocore.learn.device import resident_bytes
from protocore.learn.evaluate import Row
from protocore.schema import Fields


@dataclass
class Progress:
    """Where a run stands: position and what has been measured. It is part of every checkpoint."""

    position: int = 0  # tasks learned, or (online) samples seen
    step: int = 0  # steps done of the task or window that is under way
    class_il: list[list[float]] = field(default_factory=list)
    task_il: list[list[float]] = field(default_factory=list)
    per_class: list[dict[str, float]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)  # the process's memory after each task
    steps: int = 0  # training steps in all
    # Forward transfer: [class-, task-incremental] accuracy on tasks 2, 3... right before each, and of a new network.
    ahead: list[list[float]] = field(default_factory=list)
    untrained: list[list[float]] = field(default_factory=list)

    def add(self, row: Row, kept: int) -> None:
        self.class_il.append(row.class_incremental)
        self.task_il.append(row.task_incremental)
        self.per_class.append({str(k): v for k, v in row.per_class.items()})
        self.kept.append(kept)
        self.resident.append(resident_bytes())

    @classmethod
    def read(cls, f: Fields) -> Progress:
        """What a checkpoint says, every field of its kind and all measurements of the same tasks."""
        rows = {name: f.matrix(name) if f.get(name) else [] for name in ("class_il", "task_il")}
        ahead, untrained = (f.matrix(name) if f.values.get(name) else [] for name in ("ahead", "untrained"))
        if any(len(pair) != 2 for pair in (*ahead, *untrained)):
            f.refuse("ahead", "two accuracies a task", ahead)
        per_class = [{key: row.number(key) for key in row.values} for row in f.objects("per_class")]
        progress = cls(f.whole("position"), f.whole("step"), rows["class_il"], rows["task_il"], per_class,
                       f.wholes("kept"), f.wholes("resident"), f.maybe(f.whole, "steps", 0), ahead, untrained)
        if len({len(v) for v in (progress.class_il, progress.task_il, per_class, progress.kept,
                                 progress.resident)}) != 1:
            f.refuse("kept", "one measurement of each kind a task", progress.kept)
        return progress
