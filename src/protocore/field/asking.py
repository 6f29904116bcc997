"""What pictures show, and how often the learner is right about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocore.data.images import FileImages
from protocore.errors import DataError, UserError
from protocore.field.document import SCORE, WEAK, Calibration, Document, Skip
from protocore.field.report import Report
from protocore.field.sources import Gathered, Picture
from protocore.learn.calibration import calibration_error, threshold_for
from protocore.learn.learner import Learner
from protocore.registry import near

CHUNK = 256  # pictures that are decoded at once
SHAKY = 0.8  # a class that is right less often is called weak


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of a picture with their probabilities, or why it could not be read."""

    path: Path
    names: Sequence[str] = ()
    probabilities: Sequence[float] = ()
    unknown: bool = False  # none of the classes, by the threshold that was asked for
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


@dataclass(frozen=True)
class Of:
    """A class in a test: its pictures, how many were recognised, how many it was learned from."""

    pictures: int
    right: int
    learned: int
    weak: str = ""  # why it wants more pictures

    @property
    def accuracy(self) -> float:
        return self.right / self.pictures


@dataclass(frozen=True)
class Tested:
    """Shares are between 0 and 1."""

    pictures: int
    accuracy: float
    calibration_error: float
    classes: Mapping[str, Of]
    confused: Sequence[tuple[str, str, int]]  # true class, said class, pictures; most first
    skipped: Sequence[Skip]
    strangers: Mapping[str, int]  # pictures of classes that were never learned, which are not counted
    unknown: float | None = None  # the false-alarm rate that was asked for
    false_alarms: float | None = None  # share of known classes' pictures that were called unknown
    caught: float | None = None  # share of the strangers that were

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "classes": {name: {**vars(of), "accuracy": of.accuracy}
                                          for name, of in self.classes.items()},
                "skipped": [vars(skip) for skip in self.skipped]}


def predicted(learner: Learner, calibration: Calibration, found: Gathered, top: int, unknown: float | None,
              report: Report) -> list[Prediction]:
    """One for each file, in their order; `unknown` as in `Keeper.predict`."""
    if top < 1:
        raise UserError(f"--top {top} must be at least 1")
    least = -float("inf") if unknown is None else threshold_for(calibration.best, unknown)
    chances, evidence, bad = _asked(learner, calibration.measure, found.pictures, report)
    names = learner.class_names
    best = chances.argsort(dim=1, descending=True, stable=True)[:, :top]
    values = chances.gather(1, best)
    return [Prediction(Path(skip.file), problem=skip.why) for skip in found.skipped] + [
        Prediction(picture.path, problem=bad[row]) if row in bad else
        Prediction(picture.path, [names[k] for k in best[row].tolist()], [round(p, 6) for p in values[row].tolist()],
                   bool(evidence[row] < least)) for row, picture in enumerate(found.pictures)]


def tested(learner: Learner, document: Document, found: Gathered, unknown: float | None, report: Report) -> Tested:
    """The learner against what is said of these pictures; classes that it never learned are counted apart."""
    names = learner.class_names
    mine = [picture for picture in found.pictures if picture.label in names]
    if not mine:
        labels = sorted({picture.label for picture in found.pictures})
        meant = near(labels[0], names) if labels else None
        raise DataError(f"none of {', '.join(labels[:5]) or 'the pictures'} is a class of this learner (known: "
                        f"{', '.join(names[:10])}{', …' if len(names) > 10 else ''})"
                        f"{f'; did you mean {meant}?' if meant else ''}")
    least = None if unknown is None else threshold_for(document.calibration.best, unknown)
    others = [picture for picture in found.pictures if picture.label not in names]
    chances, evidence, bad = _asked(learner, document.calibration.measure,
                                    [*mine, *(others if least is not None else ())], report)
    skipped = [*found.skipped, *(Skip(str([*mine, *others][row].path), why) for row, why in bad.items())]
    good = [row for row in range(len(mine)) if row not in bad]
    if not good:
        raise DataError(f"{mine[0].path}: cannot be read ({bad[0]}), and neither can any of the others; replace them")
    sure, said = chances[good].max(1)
    true = torch.tensor([names.index(mine[row].label) for row in good])
    right = said == true
    strange = [row for row in range(len(mine), len(chances)) if row not in bad]
    counts: dict[str, int] = {}
    for picture in others:
        counts[picture.label] = counts.get(picture.label, 0) + 1
    return Tested(
        pictures=len(good), accuracy=float(right.double().mean()), calibration_error=calibration_error(sure, right),
        classes={names[k]: _of(names[k], true == k, right, document) for k in true.unique().tolist()},
        confused=_confused(true, said, names), skipped=skipped, strangers=counts, unknown=unknown,
        false_alarms=None if least is None else float((evidence[good] < least).double().mean()),
        caught=float((evidence[strange] < least).double().mean()) if least is not None and strange else None)


def _of(name: str, rows: Tensor, right: Tensor, document: Document) -> Of:
    pictures, hits = int(rows.sum()), int((rows & right).sum())
    learned = document.classes[name].pictures
    why = f"learned from {learned} only" if learned < WEAK else "seldom recognised" if hits / pictures < SHAKY else ""
    return Of(pictures, hits, learned, why)


def _confused(true: Tensor, said: Tensor, names: Sequence[str]) -> list[tuple[str, str, int]]:
    wrong = torch.stack([true, said], 1)[true != said]
    pairs, counts = wrong.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True).tolist()
    return [(names[int(pairs[k, 0])], names[int(pairs[k, 1])], int(counts[k])) for k in order]


def scored(learner: Learner, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scores (N, classes), and how near the pictures are to what was learned, where the method tells."""
    x = learner.ready(images)
    return learner.scores(x, ready=True), learner.method.nearness(learner.machine.images(x))


def evidence_of(measure: str, scores: Tensor, nearness: Tensor | None) -> Tensor:
    """How much says that a picture is of some class, by the measure that the held-out ones were kept in."""
    return scores.double().amax(1) if measure == SCORE or nearness is None else nearness


def _asked(learner: Learner, measure: str, pictures: Sequence[Picture], report: Report
           ) -> tuple[Tensor, Tensor, dict[int, str]]:
    """Probabilities (N, classes), what says that a picture is of some class, and which could not be read."""
    files = FileImages([picture.path for picture in pictures], learner.image_shape[1:], learner.image_shape[0],
                       upright=True)
    parts, said, bad = [torch.empty(0, len(learner.classes_))], [torch.empty(0)], dict[int, str]()
    for start in range(0, len(files), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(files)))
        images, outcomes = files.attempt(rows)
        bad |= {start + k: outcome for k, outcome in enumerate(outcomes) if isinstance(outcome, str)}
        scores, nearness = scored(learner, torch.from_numpy(images))
        parts.append(scores)
        said.append(evidence_of(measure, scores, nearness))
        report.progress("asking", int(rows[-1]) + 1, len(files))
    return (torch.cat(parts).double() / learner.temperature).softmax(1), torch.cat(said).double(), bad
