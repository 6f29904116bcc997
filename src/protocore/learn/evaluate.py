"""Accuracy on the classes of every task so far: class- and task-incremental from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protocore.data.stream import Stream
from protocore.learn.learner import Learner


@dataclass(frozen=True)
class Row:
    """After one task, in percent: accuracy on each task's classes, and on each class."""

    class_incremental: list[float]  # the class is sought among all classes seen
    task_incremental: list[float]  # the class is sought among those of its task
    per_class: dict[int, float]


def evaluate(learner: Learner, stream: Stream, tasks: int, coded: dict[int, torch.Tensor] | None = None) -> Row:
    """The first `tasks` tasks' test images, read in chunks. `coded` keeps those of codec space between calls."""
    row, coded = Row([], [], {}), {} if coded is None else coded
    for index, part in enumerate(stream.tests[:tasks]):
        if learner.tools.space == "codec" and index not in coded:
            coded[index] = learner.through_codec(part.take(0, len(part.labels)))
        labels = torch.from_numpy(part.labels)
        classes = torch.tensor(part.classes)
        free, told = [], []
        for start in range(0, len(labels), 512):
            stop = min(start + 512, len(labels))
            images = coded[index][start:stop] if index in coded else part.take(start, stop)
            scores = learner.scores(images, coded=index in coded)
            free.append(scores.argmax(1))
            known = classes[classes < scores.shape[1]]
            told.append(known[scores[:, known].argmax(1)])
        right = torch.cat(free) == labels
        row.class_incremental.append(100 * right.double().mean().item())
        row.task_incremental.append(100 * (torch.cat(told) == labels).double().mean().item())
        for label in labels.unique().tolist():  # a class may have no test image
            row.per_class[label] = 100 * right[labels == label].double().mean().item()
    return row
