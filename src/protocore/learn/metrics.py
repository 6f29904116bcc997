"""What a run is judged by. R[i][j] is the accuracy on task j's classes after learning task i, in percent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocore.registry import Registry

Matrix = Sequence[Sequence[float]]
Metric = Callable[[Matrix], float | None]


def final_accuracy(r: Matrix) -> float:
    """A_T: mean of the last row."""
    return sum(r[-1]) / len(r[-1])


def learning_accuracy(r: Matrix) -> float | None:
    """A_L: mean of the diagonal, each task right after it was learned."""
    if not _square(r):
        return None
    return sum(row[i] for i, row in enumerate(r)) / len(r)


def average_accuracy(r: Matrix) -> float | None:
    """Ā: mean over i of the mean of row i up to i."""
    if not _square(r):
        return None
    return sum(sum(row) / len(row) for row in r) / len(r)


def forgetting(r: Matrix) -> float | None:
    """Mean over j < T of the best earlier accuracy on task j minus the last one."""
    tasks = len(r)
    if not _square(r) or tasks < 2:
        return None
    drops = [max(r[i][j] for i in range(j, tasks - 1)) - r[-1][j] for j in range(tasks - 1)]
    return sum(drops) / len(drops)


METRICS: Registry[Metric] = Registry("metric", {
    "A_T": final_accuracy, "A_L": learning_accuracy, "A_mean": average_accuracy, "forgetting": forgetting}.items())


def register(name: str, metric: Metric, *, replace: bool = False) -> None:
    """Add a metric of one's own: every result has it from then on, in both settings (`Scores.more`)."""
    METRICS.register(name, metric, replace=replace)


def _square(r: Matrix) -> bool:
    """A lower triangle with a row a task; `joint` has its last row only."""
    return all(len(row) == i + 1 for i, row in enumerate(r))
