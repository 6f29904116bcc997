"""What a budget will mean, before anything is learned: sizes by the ledger's own rules, time by measured steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from protocore.config import SIZES
from protocore.data.images import ArrayImages
from protocore.data.stream import Task
from protocore.errors import BudgetError
from protocore.field.choice import Choice, candidates
from protocore.field.photos import IN_MEMORY
from protocore.field.report import Report
from protocore.learn.device import forget_peak, peak_bytes
from protocore.learn.learner import Learner
from protocore.learn.loop import steps_for
from protocore.memory.plan import Horizon, Size

BUDGET = "64KB"  # where nobody says how much may be kept
MEASURED = 64  # pictures of noise that are learned to measure time
STEPS = 4


@dataclass(frozen=True)
class Planned:
    """So many classes of so many pictures with one network and method; bytes are those that the budget counts."""

    method: str
    backbone: str
    frozen: bool
    image_size: int
    classes: int
    pictures: int  # of each class
    budget: int | None
    kept: int  # bytes, with all classes
    exemplars: int  # in all
    exemplar_bytes: int  # of one, at most
    bytes_a_class: int
    fits: bool
    problem: str  # why it does not fit
    decoder: int  # bytes that are there once, whatever is kept
    seconds: float  # to learn all of it at once; 0 where it does not fit, as nothing was measured
    seconds_a_class: float  # to learn one more class
    peak_memory: int  # bytes of the process

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def plan(classes: int, pictures: int, given: Mapping[str, Any], report: Report | None = None) -> list[Planned]:
    """For every way that `protocore new` would try with these settings, the frozen network first."""
    given = dict(given) if given.keys() & set(SIZES) else {**given, "budget": BUDGET}
    short = candidates({**given, "steps": STEPS})
    return [_planned(choice, quick, classes, pictures, report or Report())
            for choice, quick in zip(candidates(given), short, strict=True)]


def _planned(choice: Choice, quick: Choice, classes: int, pictures: int, report: Report) -> Planned:
    """`quick` is the same with a few steps, by which time is measured."""
    learner = choice.learner()
    s, method = learner.settings, learner.method
    rows, each, kept, problem = _room(learner, classes, pictures)
    per_step, per_picture, peak = (0.0, 0.0, 0) if problem else _measured(quick.learner(), report)

    def seconds(count: int) -> float:
        return per_picture * count + (per_step * steps_for(count, s) if method.trains else 0.0)

    waiting = min(classes * pictures * math.prod(choice.shape), IN_MEMORY)
    return Planned(
        method=s.method, backbone=s.backbone, frozen=learner.front is not None,
        image_size=choice.shape[1],
        classes=classes, pictures=pictures, budget=s.budget, kept=kept, exemplars=rows, exemplar_bytes=each,
        bytes_a_class=kept // classes, fits=not problem, problem=problem, decoder=learner.tools.codec.shared_bytes,
        seconds=round(seconds(classes * pictures), 4), seconds_a_class=round(seconds(pictures), 4),
        peak_memory=peak + waiting)


def _room(learner: Learner, classes: int, pictures: int) -> tuple[int, int, int, str]:
    """Exemplars in all, bytes of one, bytes kept, and why they would not fit."""
    method, codec, allowance = learner.method, learner.tools.codec, learner.tools.allowance
    stores = method.stores()
    most = codec.exemplar_bytes or codec.largest or math.prod(learner.image_shape)
    at = Horizon(tuple(range(classes)), {store.name: Size(most, most) for store in stores}, tasks=classes,
                 images=classes * pictures, of_class=pictures)
    try:
        if stores or method.planned(at, 0):
            allowance.check([f"class {k + 1}" for k in range(classes)],
                            lambda k, rows: method.bytes_at(replace(at, classes=at.classes[:k]), rows),
                            exemplars=bool(stores))
    except BudgetError as error:
        return 0, most if stores else 0, method.bytes_at(at, classes if stores else 0), str(error)
    rows = min(allowance.total(classes, lambda n: method.bytes_at(at, n)), classes * pictures) if stores else 0
    return rows, most if stores else 0, method.bytes_at(at, rows), ""


def _measured(learner: Learner, report: Report) -> tuple[float, float, int]:
    """Seconds of a step with replay and of a picture beside the steps, and the most memory that the process held."""
    chance = np.random.default_rng(0)
    forget_peak()
    before, at_steps = 0.0, list[float]()

    def on_step(done: int, of: int, loss: Tensor) -> None:
        at_steps.append(time.perf_counter())
        report.progress("measuring", done, of)

    for number in range(2):  # the second has something to replay
        noise = chance.integers(0, 256, (MEASURED, *learner.image_shape), np.uint8)
        task = Task(ArrayImages(noise), np.arange(MEASURED) % 2, class_names=[f"{number} {k}" for k in range(2)])
        before, at_steps = time.perf_counter(), []
        learner.learn(task, on_step=on_step)
    whole = time.perf_counter() - before
    gaps: Sequence[float] = np.diff(at_steps).tolist()
    per_step = float(np.median(gaps)) if gaps else 0.0
    return per_step, max(whole - per_step * len(at_steps), 0.0) / MEASURED, peak_bytes()
