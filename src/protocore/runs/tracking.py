"""Numbers of a run as it goes on, as points: always to metrics.csv in its folder, and to trackers that were asked for.

A point is a number with a name, the task (from 1) and the training step at which it was measured. A run that goes on
after an interruption takes up the same files and tracker runs at its checkpoint, so that no point is there twice.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat, TextIO

from protocore.errors import DataError, UserError
from protocore.files import read_bytes, read_json, write_atomic, write_json
from protocore.runs.reporters import Begun, Reporter
from protocore.schema import Fields

if TYPE_CHECKING:
    from protocore.learn.evaluate import Row
    from protocore.runs.result import Result

FILE = "metrics.csv"
IDS = "trackers.json"
COLUMNS = ("task", "step", "metric", "value")
EVERY = 10  # steps between two points of the loss: reading it makes a graphics processor wait
FINAL = "final/"  # metrics of the whole run
LOSS = "train/loss"
MOST = 1 << 30  # bytes of a file of points


class Tracker:
    """Where points go. A subclass imports its library when it is made: what is missing is known before the run."""

    name = ""

    def open(self, run: Begun, known_as: str | None) -> str:
        """The run begins or goes on; `known_as` is what an earlier process of it was told here. Returns the same.

        A tracker that is new to a run that goes on (`known_as` is None) is then given the earlier points.
        """
        raise NotImplementedError

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def close(self, *, finished: bool) -> None:
        raise NotImplementedError


class Tracking(Reporter):
    """Makes points of what a run reports.

    A tracker that cannot be opened is an error. One that fails later is told nothing more, which `tell` hears in words:
    a server that is gone is no reason to lose what was learned.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), tell: Callable[[str], None] = print) -> None:
        self.trackers, self.tell = list(trackers), tell
        self.open: list[Tracker] = []
        self.lost: list[Tracker] = []
        self.file: TextIO | None = None
        self.at_task = self.at_step = 0
        self.finished = False

    def begin(self, run: Begun) -> None:
        self.at_step = run.steps
        path = run.folder / FILE
        earlier = [] if run.anew else list(_earlier(path, run))
        write_atomic(path, _lines([COLUMNS, *earlier]).encode())
        self.file = path.open("a", encoding="utf-8", newline="")
        ids = {} if run.anew else _ids(run.folder)
        for tracker in self.trackers:
            known = ids.get(tracker.name)
            try:
                ids[tracker.name] = tracker.open(run, known)
                self.open.append(tracker)
                for values, step in _by_step(earlier) if known is None else ():
                    tracker.log(values, step)
            except UserError:
                raise
            except Exception as error:  # somebody else's library, and often a server behind it
                raise UserError(f"--track {tracker.name}: it cannot be opened ({type(error).__name__}: "
                                f"{_first_line(error)}); mend that, or leave it out") from error
        if ids:
            write_json(run.folder / IDS, ids)

    def task(self, index: int, of: int, classes: int) -> None:
        self.at_task = index + 1

    def step(self, done: int, of: int, loss: SupportsFloat) -> None:
        self.at_step += 1
        if done % EVERY == 0 or done == of:
            self.log({LOSS: float(loss)}, self.at_task)

    def row(self, index: int, row: Row, kept: int) -> None:
        values: dict[str, float] = {"memory/bytes_kept": float(kept)}
        for setting in ("class_incremental", "task_incremental"):
            accuracies = getattr(row, setting)
            values[f"{setting}/accuracy"] = sum(accuracies) / len(accuracies)
            values |= {f"{setting}/task_{j + 1}": accuracy for j, accuracy in enumerate(accuracies)}
        self.log(values, index + 1)

    def end(self, result: Result) -> None:
        values: dict[str, float] = {}
        for setting, scores in (("class_incremental", result.class_incremental),
                                ("task_incremental", result.task_incremental)):
            named = {"A_T": scores.A_T, "A_L": scores.A_L, "A_mean": scores.A_mean, "forgetting": scores.forgetting,
                     "forward_transfer": scores.forward_transfer, **scores.more}
            values |= {f"{FINAL}{setting}/{name}": value for name, value in named.items() if value is not None}
        values |= {f"{FINAL}seconds/{part}": value for part, value in result.seconds.items()}
        values |= {f"{FINAL}flops/{part}": value for part, value in result.flops.items()}
        values |= {f"{FINAL}joules/{part}": value for part, value in (result.energy_joules or {}).items()}
        values[f"{FINAL}peak_memory_bytes"] = float(result.peak_memory_bytes)
        self.log(values, result.tasks)
        self.finished = True

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        while self.open:
            tracker = self.open.pop()
            self._works(tracker, lambda tracker=tracker: tracker.close(finished=self.finished))

    def log(self, values: Mapping[str, float], task: int) -> None:
        values = {name: value for name, value in values.items() if math.isfinite(value)}  # a loss may be NaN
        if self.file is not None:
            self.file.write(_lines([(task, self.at_step, name, repr(value)) for name, value in values.items()]))
            self.file.flush()
        for tracker in self.open:
            if tracker not in self.lost and not self._works(
                    tracker, lambda tracker=tracker: tracker.log(values, self.at_step)):
                self.lost.append(tracker)

    def _works(self, tracker: Tracker, do: Callable[[], None]) -> bool:
        try:
            do()
        except Exception as error:  # as above
            self.tell(f"--track {tracker.name} failed ({type(error).__name__}: {_first_line(error)}) and is told "
                      f"nothing more of this run; {FILE} has every point")
            return False
        return True


def tracking_by(names: str | Sequence[str]) -> Tracking:
    """Who is told: names, or lists of names with commas."""
    from protocore.runs.trackers import TRACKERS

    words = [names] if isinstance(names, str) else names
    found = dict.fromkeys(word.strip() for text in words for word in text.split(",") if word.strip())
    found.pop("csv", None)  # always
    return Tracking([TRACKERS.named(name)() for name in found])


def _earlier(path: Path, run: Begun) -> Iterator[tuple[str, ...]]:
    """The rows of an interrupted run that its checkpoint knows of; what came later will come again."""
    try:
        text = read_bytes(path, MOST).decode("utf-8", "replace")
    except DataError:  # none, or not for us
        return
    for row in csv.reader(io.StringIO(text)):
        if len(row) != len(COLUMNS) or not (row[0].isdecimal() and row[1].isdecimal()):
            continue  # the heading, or a line that was cut off
        task, step, name = int(row[0]), int(row[1]), row[2]
        if step <= run.steps and not name.startswith(FINAL) and (name == LOSS or task <= run.rows) and _number(row[3]):
            yield tuple(row)


def _number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _by_step(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[dict[str, float], int]]:
    """Points of the same task and step together, in the order of the file."""
    at, values = None, {}
    for task, step, name, value in rows:
        if (task, step) != at and at is not None:
            yield values, int(at[1])
            values = {}
        at = task, step
        values[name] = float(value)
    if at is not None:
        yield values, int(at[1])


def _ids(folder: Path) -> dict[str, str]:
    """What trackers call this run."""
    path = folder / IDS
    if not path.exists():
        return {}
    f = Fields(read_json(path), path, "remove it: trackers then begin a new run")
    return {name: f.text(name) for name in f.values}


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
