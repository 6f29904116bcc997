"""Accuracy on the classes of every task so far: class- and task-incremental from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protocore.data.stream import Stream, TestPart
from protocore.learn.learner import Learner

CHUNK = 512  # test images that are read at once


@dataclass(frozen=True)
class Row:
    """After one task, in percent: accuracy on each task's classes, and on each class."""

    class_incremental: list[float]  # the class is sought among all classes seen
    task_incremental: list[float]  # the class is sought among those of its task
    per_class: dict[int, float]


def made_ready(learner: Learner, part: TestPart) -> torch.Tensor:
    """Test images as the predictor meets them, made in chunks."""
    return torch.cat([learner.ready(part.take(start, min(start + CHUNK, len(part.labels))))
                      for start in range(0, len(part.labels), CHUNK)])


def evaluate(learner: Learner, stream: Stream, tasks: int, kept: dict[int, torch.Tensor] | None = None) -> Row:
    """The first `tasks` tasks' test images, read in chunks. `kept` keeps those that are made ready between calls."""
    row, kept = Row([], [], {}), {} if kept is None else kept
    for index, part in enumerate(stream.tests[:tasks]):
        if learner.makes_ready and index not in kept:
            kept[index] = made_ready(learner, part)
        labels = torch.from_numpy(part.labels)
        classes = torch.tensor(part.classes)
        free, told = [], []
        for start in range(0, len(labels), CHUNK):
            stop = min(start + CHUNK, len(labels))
            images = kept[index][start:stop] if index in kept else part.take(start, stop)
            scores = learner.scores(images, ready=index in kept)
            free.append(scores.argmax(1))
            known = classes[classes < scores.shape[1]]
            told.append(known[scores[:, known].argmax(1)])
        right = torch.cat(free) == labels
        row.class_incremental.append(100 * right.double().mean().item())
        row.task_incremental.append(100 * (torch.cat(told) == labels).double().mean().item())
        for label in labels.unique().tolist():  # a class may have no test image
            row.per_class[label] = 100 * right[labels == label].double().mean().item()
    return row
