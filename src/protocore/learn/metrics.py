"""What a run is judged by. R[i][j] is the accuracy on task j's classes after learning task i, in percent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def backward_transfer(r: Matrix) -> float | None:
    """Mean over j < T of the last accuracy on task j minus the one right after it was learned."""
    tasks = len(r)
    if not _square(r) or tasks < 2:
        return None
    return sum(r[-1][j] - r[j][j] for j in range(tasks - 1)) / (tasks - 1)


def forward_transfer(ahead: Sequence[float], untrained: Sequence[float]) -> float | None:
    """Mean over tasks j > 1 of the accuracy on task j right before it is learned minus that of an untrained network.

    `ahead` and `untrained` have a number for each task from the second on; without them nothing is known.
    """
    if not ahead or len(ahead) != len(untrained):
        return None
    return sum(a - u for a, u in zip(ahead, untrained, strict=True)) / len(ahead)


def never_negative_forgetting(r: Matrix) -> float | None:
    """Mean over j < T of the best accuracy on task j, the last one among them, minus the last one."""
    tasks = len(r)
    if not _square(r) or tasks < 2:
        return None
    return sum(max(r[i][j] for i in range(j, tasks)) - r[-1][j] for j in range(tasks - 1)) / (tasks - 1)


def libcontinual_forgetting(r: Matrix) -> float | None:
    """Sum over j < T-1 of the accuracy on task j right after it minus the last one, divided by T-1.

    So the drop of task T-1 is left out, and counted as a task all the same; 0 for fewer than three tasks.
    """
    tasks = len(r)
    if not _square(r):
        return None
    return sum(r[j][j] - r[-1][j] for j in range(tasks - 2)) / (tasks - 1) if tasks > 2 else 0.0


def libcontinual_backward_transfer(r: Matrix) -> float | None:
    """Sum over i and j < i-1 of the accuracy on task j after task i minus that right after it, divided by T(T-1)/2.

    The drop that the next task brings (j = i-1) is left out; 0 for fewer than three tasks.
    """
    tasks = len(r)
    if not _square(r):
        return None
    gains = [r[i][j] - r[j][j] for i in range(2, tasks) for j in range(i - 1)]
    return sum(gains) / (tasks * (tasks - 1) / 2) if tasks > 2 else 0.0


@dataclass(frozen=True)
class Definitions:
    """How somebody counts what changes on tasks that are not the present one; None: they do not report it."""

    forgetting: Metric
    backward_transfer: Metric | None = None
    forward_transfer: Callable[[Sequence[float], Sequence[float]], float | None] | None = None


OURS = Definitions(forgetting, backward_transfer, forward_transfer)
PEERS: Mapping[str, Definitions] = {
    "mammoth": Definitions(never_negative_forgetting, backward_transfer, forward_transfer),
    "pycil": Definitions(never_negative_forgetting),
    "libcontinual": Definitions(libcontinual_forgetting, libcontinual_backward_transfer),
}

METRICS: Registry[Metric] = Registry("metric", {
    "A_T": final_accuracy, "A_L": learning_accuracy, "A_mean": average_accuracy, "forgetting": forgetting}.items())


def register(name: str, metric: Metric, *, replace: bool = False) -> None:
    """Add a metric of one's own: every result has it from then on, in both settings (`Scores.more`)."""
    METRICS.register(name, metric, replace=replace)


def _square(r: Matrix) -> bool:
    """A lower triangle with a row a task; `joint` has its last row only."""
    return all(len(row) == i + 1 for i, row in enumerate(r))
