"""One `learn`: from files to a learner that knows their classes, in steps that a checkpoint can stand between."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocore.config import plural
from protocore.data.images import Images, listed
from protocore.data.stream import Task
from protocore.errors import DataError
from protocore.field.asking import scored
from protocore.field.choice import choose
from protocore.field.document import PRINT, WEAK, Document, Skip, now
from protocore.field.photos import decoded
from protocore.field.report import Interrupted, Report
from protocore.field.sources import Sorted
from protocore.learn.checkpoint import Checkpoint, read_checkpoint
from protocore.learn.files import learner_of
from protocore.learn.learner import Learner
from protocore.methods import method_named
from protocore.schema import Fields

PART = 1024  # pictures that a method which never trains learns at once: a checkpoint may stand behind them
_BEGIN_ANEW = "delete it to begin anew"
# One picture in so many, and at most so many a class; one at least of a class with so many.
HELD_LATER, HELD_OUT = (4, 10, 2), (8, 8, 8)


@dataclass(frozen=True)
class Learned:
    """What came of it: pictures learned of new and of known classes, what was skipped, and how much is kept."""

    new: Mapping[str, int]
    more: Mapping[str, int]
    weak: Sequence[str]  # classes with few pictures
    skipped: Sequence[Skip]
    notes: Sequence[str]
    choice: str  # why the learner is as it is, where that was decided now
    resumed: bool
    held_out: int  # pictures that calibration was fitted on
    kept: int  # bytes
    budget: int | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "skipped": [vars(skip) for skip in self.skipped]}


@dataclass
class Work:
    """What one `learn` has at hand."""

    document: Document
    learner: Learner | None  # None: it is still to be chosen
    digest: str  # of the learner's file
    checkpoint: Path
    every: float  # seconds between two checkpoints
    report: Report
    stop: Callable[[], bool] | None = None
    saved: float = field(default_factory=time.monotonic)

    def learn(self, chosen: Sorted) -> tuple[Learner, Document, Learned]:
        """The learner and its document after these pictures."""
        begun = time.monotonic()
        if not chosen.pictures:
            raise Barren(chosen.skipped)
        undecided = self.learner is None
        self.digest = _digest(self.digest, chosen)
        found = self._found()
        if found is not None:
            self.document = Document.read(Fields(found.header.extra, found.path, _BEGIN_ANEW, "extra."))
            high, wide = found.header.image_shape[1:]
        else:
            if self.learner is None:
                choice = choose(self.document.given, chosen.pictures, chosen.hashes, self.report)
                if choice.why:
                    self.report.note(choice.why)
                self.document, self.learner = replace(self.document, choice=choice.why), choice.learner()
            high, wide = self.learner.image_shape[1:]
        images, bad = decoded([picture.path for picture in chosen.pictures], chosen.hashes,
                              (3, high, wide), lambda done, of: self.report.progress("reading", done, of))
        skipped = [*chosen.skipped, *(Skip(str(chosen.pictures[row].path), why, chosen.pictures[row].label)
                                      for row, why in bad.items())]
        if len(bad) == len(chosen.pictures):
            raise Barren(skipped)
        known = list(self.document.classes)
        good = [row for row in range(len(chosen.pictures)) if row not in bad]
        names = [*known, *sorted({chosen.pictures[row].label for row in good} - set(known))]
        number = {name: label for label, name in enumerate(names)}
        data = _Data(images, np.array([number.get(picture.label, -1) for picture in chosen.pictures]), names,
                     np.array(sorted(good, key=lambda row: chosen.hashes[row])))
        learner, held = self._taught(data, found)
        document = self._calibrated(learner, data, held)
        if not learner.method.trains and len(held):  # they need not be given up: the order makes no difference
            learner.learn(data.task(held, trained=False), progress=self.report.progress)
        learner.temperature = document.calibration.temperature
        learner.optimizer = None  # the next task makes its own
        prints: dict[str, list[bytes]] = {}
        for row in good:
            prints.setdefault(chosen.pictures[row].label, []).append(bytes.fromhex(chosen.hashes[row])[:PRINT])
        document = document.learned(prints, skipped, now())
        counts = {name: len(few) for name, few in prints.items()}
        return learner, document, Learned(
            new={name: n for name, n in counts.items() if name not in known},
            more={name: n for name, n in counts.items() if name in known},
            weak=[name for name, of in document.classes.items() if of.pictures < WEAK], skipped=skipped,
            notes=chosen.notes, choice=document.choice if undecided else "", resumed=found is not None,
            held_out=len(held), kept=learner.ledger().total, budget=learner.settings.budget,
            seconds=round(time.monotonic() - begun, 1))

    # -- in parts ----------------------------------------------------------------------------------------------

    def _taught(self, data: _Data, found: Checkpoint | None) -> tuple[Learner, np.ndarray]:
        """The learner after all parts, and the rows that were held out of them."""
        learner, part, step, task = self.learner, 0, 0, None
        method = method_named(str(found.header.settings["method"])) if found else learner.method  # type: ignore
        held = _held_out(data, HELD_OUT if method.trains else HELD_LATER)
        rows = data.rows[~np.isin(data.rows, held)]
        parts = [rows] if method.trains else [rows[at : at + PART] for at in range(0, len(rows), PART)]
        if found is not None:
            stands = Fields(found.header.extra, found.path, _BEGIN_ANEW, "extra.").fields("work")
            part, step = min(stands.whole("part"), len(parts) - 1), stands.whole("step")
            task = data.task(parts[part], method.trains) if step else None
            learner = learner_of(Learner, found, task=task)
        assert learner is not None
        for part in range(part, len(parts)):  # noqa: B020
            if part:
                self._stand(learner, part, 0)

            def on_step(done: int, of: int, loss: Tensor, learner: Learner = learner, part: int = part) -> None:
                self.report.progress("learning", done, of)
                if done < of:
                    self._stand(learner, part, done)

            learner.learn(task or data.task(parts[part], method.trains), progress=self.report.progress, on_step=on_step,
                          start=step)
            task, step = None, 0
        return learner, held

    def _stand(self, learner: Learner, part: int, step: int) -> None:
        """Here the work could be gone on with: write that down from time to time, and where it is asked to stop."""
        asked = self.stop is not None and self.stop()
        if asked or time.monotonic() - self.saved > self.every:
            learner.save(self.checkpoint, {"field": self.document.to_json(),
                                           "work": {"digest": self.digest, "part": part, "step": step}})
            self.saved = time.monotonic()
        if asked:
            raise Interrupted

    def _found(self) -> Checkpoint | None:
        """The checkpoint of this very work. That of another one is of no use any more."""
        if not self.checkpoint.exists():
            return None
        try:
            found = read_checkpoint(self.checkpoint)
            work = Fields(found.header.extra, self.checkpoint, _BEGIN_ANEW, "extra.").fields("work")
            if work.text("digest") == self.digest:
                self.report.note("going on where the last `learn` of these pictures stopped")
                return found
            self.report.note("an unfinished `learn` of other pictures is dropped")
        except DataError as error:
            self.report.note(f"beginning anew, as the checkpoint is of no use: {error}")
        self.checkpoint.unlink()
        return None

    def _calibrated(self, learner: Learner, data: _Data, held: np.ndarray) -> Document:
        """With what the held-out pictures tell; of a single class there is nothing to tell."""
        seen = learner.method.seen
        if not len(held) or len(seen) < 2:
            return self.document
        scores, nearness = scored(learner, torch.from_numpy(data.images.take(held)))
        scores = scores[:, seen]
        column = {label: place for place, label in enumerate(seen)}
        labels = torch.tensor([column[label] for label in data.labels[held].tolist()])
        # Training changes all that was known; behind a frozen network only new classes do, as rivals of the others.
        earlier = 0.5 if learner.method.trains else len(self.document.classes) / len(seen)
        return replace(self.document, calibration=self.document.calibration.plus(scores, labels, nearness,
                                                                                 earlier=earlier))


@dataclass(frozen=True)
class _Data:
    images: Images
    labels: np.ndarray
    names: Sequence[str]
    rows: np.ndarray  # of pictures that could be read, by content

    def task(self, rows: np.ndarray, trained: bool) -> Task:
        """A single picture that is trained on comes twice: batch normalisation needs company. One that is only counted
        counts once."""
        alone = trained and len(rows) == 1
        return Task(self.images, self.labels, np.repeat(rows, 2) if alone else rows, class_names=self.names)


def _held_out(data: _Data, share: tuple[int, int, int]) -> np.ndarray:
    """Rows that calibration is fitted on: the first of each class."""
    one_in, most, enough = share
    held = []
    for label in np.unique(data.labels[data.rows]):
        of_class = data.rows[data.labels[data.rows] == label]
        held.append(of_class[: min(max(len(of_class) // one_in, int(len(of_class) >= enough)), most)])
    return np.concatenate(held)


def _digest(file: str, chosen: Sorted) -> str:
    """What identifies a piece of work: the learner that it begins with, the pictures and their classes."""
    pairs = sorted((digest, picture.label) for digest, picture in zip(chosen.hashes, chosen.pictures, strict=True))
    return hashlib.sha256(json.dumps([file, pairs]).encode()).hexdigest()


class Barren(DataError):
    """None of the pictures can be learned."""

    def __init__(self, skipped: Sequence[Skip]) -> None:
        super().__init__(f"none of {plural(len(skipped), 'picture')} could be used; mend or replace them:\n"
                         + listed(f"{skip.file}: {skip.why}" for skip in skipped))
        self.skipped = skipped

    def learned(self, learner: Learner) -> Learned:
        """What it comes to where some of them were learned before, so that the way out is to do nothing."""
        return Learned({}, {}, [], self.skipped, [], "", False, 0, learner.ledger().total, learner.settings.budget, 0.0)
