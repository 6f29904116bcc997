"""What a learner's file says beside the learner: names and numbers of pictures, history, calibration, the choice."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from protocore.errors import DataError
from protocore.learn.calibration import TEMPERATURES, curve, doubt, less_clear, temperature_of
from protocore.schema import Fields, Scalar
from protocore.version import __version__

PRINT = 6  # bytes of a picture's fingerprint: enough that among a million pictures hardly two have the same
MOST_BEST = 200
SCORE, NEARNESS = "score", "nearness"  # what says that a picture is of some class: its best score, `Method.nearness`
MOST_NAMED = 20  # skipped files that a line of the history names
WEAK = 5  # pictures; a class with fewer is called weak


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Skip:
    """A file that was not learned, and why; `label` is the class that it was given for."""

    file: str
    why: str
    label: str = ""


@dataclass(frozen=True)
class Entry:
    """What was done to the file, by which version: pictures learned of each class, and how many files were skipped."""

    when: str
    what: str  # new, learn, forget, merge
    version: str = __version__
    pictures: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    named: Sequence[Skip] = ()  # the first of the skipped

    @classmethod
    def read(cls, f: Fields) -> Entry:
        return cls(f.text("when"), f.text("what"), f.text("version"),
                   {k: int(v) for k, v in f.number_table("pictures").items()}, f.whole("skipped"),
                   [Skip(s.text("file"), s.text("why"), s.text("label")) for s in f.objects("named")])


@dataclass(frozen=True)
class Known:
    """A class: when it came, pictures learned of it, and their fingerprints, so that none is learned twice."""

    since: str
    pictures: int = 0
    prints: bytes = b""

    @classmethod
    def read(cls, f: Fields) -> Known:
        try:
            prints = base64.b64decode(f.text("prints"), validate=True)
        except binascii.Error:
            prints = b"?"
        if len(prints) % PRINT:
            f.refuse(f"{f.where}prints", "the fingerprints of pictures", f.values["prints"])
        return cls(f.text("since"), f.whole("pictures"), prints)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "prints": base64.b64encode(self.prints).decode()}

    def has(self) -> set[bytes]:
        return {self.prints[at : at + PRINT] for at in range(0, len(self.prints), PRINT)}

    def plus(self, prints: Collection[bytes]) -> Known:
        return replace(self, pictures=self.pictures + len(prints), prints=b"".join(sorted({*self.has(), *prints})))


@dataclass(frozen=True)
class Calibration:
    """What held-out pictures told: a curve over temperatures, that of the one doubt beside them, and how familiar each
    of them looked, by `measure`.

    Those of earlier classes count less each time, as the learner has changed since.
    """

    pictures: float = 0.0
    losses: Sequence[float] = (0.0,) * len(TEMPERATURES)
    best: Sequence[float] = ()
    doubt: Sequence[float] = (0.0,) * len(TEMPERATURES)
    measure: str = SCORE

    @classmethod
    def read(cls, f: Fields) -> Calibration:
        best, near = f.numbers("best"), f.maybe(f.numbers, "near", [])
        if best and near:
            f.refuse(f"{f.where}near", "nothing beside scores", near)
        made = cls(f.number("pictures"), f.numbers("losses"), near or best, f.numbers("doubt"),
                   NEARNESS if near else SCORE)
        for name in ("losses", "doubt"):
            if len(getattr(made, name)) != len(TEMPERATURES):
                f.refuse(f"{f.where}{name}", f"a curve of {len(TEMPERATURES)} numbers", f.values[name])
        return made

    def to_json(self) -> dict[str, Any]:
        """Nearness has a name of its own, so that a version that knows scores only does not take it for them."""
        said = {"best": [], "near": []} | {"near" if self.measure == NEARNESS else "best": list(self.best)}
        return {"pictures": self.pictures, "losses": list(self.losses), "doubt": list(self.doubt), **said}

    @property
    def temperature(self) -> float:
        if not self.pictures:
            return 1.0
        return temperature_of(torch.tensor(self.losses).double() + torch.tensor(self.doubt).double())

    def plus(self, scores: Tensor, labels: Tensor, nearness: Tensor | None = None, *, earlier: float = 0.5
             ) -> Calibration:
        """With the scores of further held-out pictures, (N, classes seen), the columns of their classes, and how near
        they are to what was learned, where the method tells. A file that has scores goes on with scores. `earlier` is
        what those of before count."""
        measure = self.measure if self.best or nearness is None else NEARNESS
        losses = _short([earlier * a + b for a, b in zip(self.losses, curve(scores, labels).tolist(), strict=True)])
        best = (scores.double().amax(1) if measure == SCORE or nearness is None else nearness).tolist()
        before = self.best[: max(MOST_BEST - len(best), len(self.best) // 2)]
        return Calibration(earlier * self.pictures + len(labels), losses, _few([*best, *before]),
                           self._least(_short(doubt(scores, labels).tolist())), measure)

    def joined(self, other: Calibration) -> Calibration:
        """What both have seen; neither is older than the other. Of two measures the one with more pictures stays."""
        measure = max(self, other, key=lambda one: len(one.best)).measure
        best = [value for one in (self, other) if one.measure == measure for value in one.best]
        return Calibration(self.pictures + other.pictures,
                           [a + b for a, b in zip(self.losses, other.losses, strict=True)], _few(best),
                           self._least(other.doubt) if other.pictures else self.doubt, measure)

    def _least(self, other: Sequence[float]) -> Sequence[float]:
        return less_clear(self.doubt, other) if self.pictures else other


def _short(values: list[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _few(values: list[float]) -> list[float]:
    """At most so many, evenly over the list."""
    count = min(len(values), MOST_BEST)
    return _short([values[k * len(values) // count] for k in range(count)])


@dataclass(frozen=True)
class Document:
    """All of it. `given` are the settings that the user chose, `choice` says why the rest is as it is."""

    given: Mapping[str, Scalar] = field(default_factory=dict)
    choice: str = ""
    classes: Mapping[str, Known] = field(default_factory=dict)
    history: Sequence[Entry] = ()
    calibration: Calibration = field(default_factory=Calibration)

    @classmethod
    def read(cls, extra: Fields) -> Document:
        if "field" not in extra.values:
            raise DataError(f"{extra.name}: a learner, but none that `protocore new` made; use it in Python with "
                            "protocore.Learner.load")
        f = extra.fields("field")
        known = f.fields("classes")
        return cls(f.scalars("given"), f.text("choice"),
                   {name: Known.read(known.fields(name)) for name in known.values},
                   [Entry.read(entry) for entry in f.objects("history")], Calibration.read(f.fields("calibration")))

    def to_json(self) -> dict[str, Any]:
        return {"given": dict(self.given), "choice": self.choice,
                "classes": {name: known.to_json() for name, known in self.classes.items()},
                "history": [asdict(entry) for entry in self.history], "calibration": self.calibration.to_json()}

    def in_order(self, names: Sequence[str]) -> Document:
        """With its classes in this order, which is that of the learner's numbers; they must be the same ones."""
        return replace(self, classes={name: self.classes[name] for name in names})

    def learned(self, prints: Mapping[str, Collection[bytes]], skipped: Sequence[Skip], when: str) -> Document:
        """After pictures with these fingerprints were learned, by class."""
        classes = {**self.classes}
        for name, few in prints.items():
            classes[name] = classes.get(name, Known(when)).plus(few)
        entry = Entry(when, "learn", pictures={name: len(few) for name, few in prints.items()}, skipped=len(skipped),
                      named=skipped[:MOST_NAMED])
        return replace(self, classes=classes, history=[*self.history, entry])

    def merged(self, other: Document, when: str) -> Document:
        """Of two learners; the history is that of both, in time."""
        classes = dict(self.classes)
        for name, theirs in other.classes.items():
            mine = classes.get(name, theirs)
            classes[name] = theirs if name not in classes else Known(
                min(mine.since, theirs.since), mine.pictures + theirs.pictures,
                b"".join(sorted(mine.has() | theirs.has())))
        history = sorted([*self.history, *other.history], key=lambda entry: entry.when)
        return replace(self, classes=classes, history=[*history, Entry(when, "merge")],
                       calibration=self.calibration.joined(other.calibration))

    def forgotten(self, name: str, when: str) -> Document:
        """Without a class, and without a word of it in the history."""
        history = [replace(entry, pictures={k: v for k, v in entry.pictures.items() if k != name},
                           named=[skip for skip in entry.named if name not in (skip.label, *skip.file.split("/"))
                                  and name not in skip.why]) for entry in self.history]
        return replace(self, classes={k: v for k, v in self.classes.items() if k != name},
                       history=[*history, Entry(when, "forget")])
