"""What many tests need: a task of made-up pictures, and a learner small enough to learn it at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from protocore.data.images import ArrayImages
from protocore.data.stream import Task
from protocore.learn.learner import Learner
from protocore.methods import METHODS
from protocore.runs.configure import configure

SHAPE = (1, 4, 4)
SMALL = {"benchmark": "digits", "backbone": "mlp", "width": 8, "augment": "none", "threads": 1, "batch": 6,
         "replay_batch": 5, "epochs": 2}


def noise(labels: Any, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """A picture of noise for each label."""
    return np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), dtype=np.uint8)


def marked(labels: Any, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Noise whose first pixel is the label, so that a picture tells its class."""
    images = noise(labels, seed, shape)
    images[:, 0, 0, 0] = labels
    return images


def task_of(labels: Any, seed: int = 0, shape: tuple[int, int, int] = SHAPE, images: np.ndarray | None = None) -> Task:
    """A task whose labels are class numbers as they stand; of noise, or of these images."""
    labels = np.asarray(labels)
    return Task(ArrayImages(noise(labels, seed, shape) if images is None else images.copy()), labels)


def learner(method: str, shape: tuple[int, int, int] = SHAPE, *, classes: int | None = None, mean: Any = None,
            std: Any = None, **flags: Any) -> Learner:
    """A small learner; one that replays keeps four exemplars a class unless told otherwise."""
    flags = SMALL | {"method": method} | flags
    if METHODS[method].replays and not flags.keys() & {"spc", "capacity", "budget"}:
        flags["spc"] = 4
    return Learner.of(configure(flags), shape, classes=classes, mean=mean, std=std)


def begin(mine: Learner, task: Task, *, keep_optimizer: bool = False) -> None:
    """Begin a task as `learn` does, and take no step."""
    mine.classes_ += range(len(mine.classes_), max(task.classes) + 1)
    mine.begin(task, keep_optimizer=keep_optimizer)
