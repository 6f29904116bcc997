"""Who is told how a run goes on: nobody, or a person at a terminal, in a notebook or behind a file of lines."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from protocore.config import Resolved, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from protocore.learn.evaluate import Row
    from protocore.runs.result import Result

REDRAW = 0.25  # seconds between two looks at the loss: reading it makes a graphics processor wait


@dataclass(frozen=True)
class Begun:
    """A run that begins (`anew`) or goes on: what it is, where it is, and how far it is."""

    config: Resolved
    folder: Path
    anew: bool
    steps: int  # of training, so far
    rows: int  # evaluations, so far


class Reporter:
    """Who is told how a run goes on; what a subclass leaves out is not said.

    `loss` is a tensor that may be on its way still: `float` it only to show it. `end` comes once the result is stored,
    `close` always, also after an error.
    """

    def begin(self, run: Begun) -> None: ...
    def end(self, result: Result) -> None: ...
    def close(self) -> None: ...
    def data(self, notes: Sequence[str]) -> None: ...
    def task(self, index: int, of: int, classes: int) -> None: ...
    def step(self, done: int, of: int, loss: SupportsFloat) -> None: ...
    def inner(self, what: str, done: int, of: int) -> None: ...
    def row(self, index: int, row: Row, kept: int) -> None: ...
    def note(self, text: str) -> None: ...


class Quiet(Reporter):
    """Tells nobody."""


class Together(Reporter):
    """Tells each of several, in order: a console, a file of lines, a tracker."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = list(reporters)

    def begin(self, run: Begun) -> None:
        for one in self.reporters:
            one.begin(run)

    def end(self, result: Result) -> None:
        for one in self.reporters:
            one.end(result)

    def close(self) -> None:
        for one in self.reporters:
            one.close()

    def data(self, notes: Sequence[str]) -> None:
        for one in self.reporters:
            one.data(notes)

    def task(self, index: int, of: int, classes: int) -> None:
        for one in self.reporters:
            one.task(index, of, classes)

    def step(self, done: int, of: int, loss: SupportsFloat) -> None:
        for one in self.reporters:
            one.step(done, of, loss)

    def inner(self, what: str, done: int, of: int) -> None:
        for one in self.reporters:
            one.inner(what, done, of)

    def row(self, index: int, row: Row, kept: int) -> None:
        for one in self.reporters:
            one.row(index, row, kept)

    def note(self, text: str) -> None:
        for one in self.reporters:
            one.note(text)


class RunProgress(Reporter):
    """A bar with the current loss and the time left, and a line for every task that is learned.

    The bar is drawn where it can move (a terminal, a notebook with ipywidgets); elsewhere there are only the lines.
    It starts with the first task, and stops at the end of a `with` block or by `stop`.
    """

    def __init__(self, name: str = "", console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console = console or Console(stderr=True)
        moves = importlib.util.find_spec("ipywidgets") is not None if self.console.is_jupyter \
            else self.console.is_terminal
        self.bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                            TextColumn("{task.fields[note]}", markup=False), console=self.console, transient=True,
                            disable=not moves)
        self.name = name
        self.item: Any = None
        self.begun = self.drawn = 0.0
        self.index = self.of = self.done_before = 0

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self.bar.disable:  # rich would print an empty line
            self.bar.stop()

    def data(self, notes: Sequence[str]) -> None:
        for note in notes:
            self._say(note)

    def task(self, index: int, of: int, classes: int) -> None:
        if self.item is not None:
            self.bar.remove_task(self.item)
        else:
            self.bar.start()
            self.begun, self.done_before = time.monotonic(), index
        self.index, self.of = index, of
        self.item = self.bar.add_task(self._named(f"task {index + 1} of {of}"), total=None, note="")

    def step(self, done: int, of: int, loss: SupportsFloat) -> None:
        now = time.monotonic()
        if self.bar.disable or (now - self.drawn < REDRAW and done < of):
            return
        self.drawn = now
        share = self.index - self.done_before + done / of
        left = (now - self.begun) / max(share, 1e-9) * (self.of - self.done_before - share)
        self.bar.update(self.item, completed=done, total=of, note=f"loss {float(loss):.3f}, {_clock(left)} left")

    def inner(self, what: str, done: int, of: int) -> None:
        if self.item is not None:
            self.bar.update(self.item, completed=done, total=of, note=what)

    def row(self, index: int, row: Row, kept: int) -> None:
        mean = sum(row.class_incremental) / len(row.class_incremental)
        told = sum(row.task_incremental) / len(row.task_incremental)
        self._say(f"{self._named(f'after task {index + 1} of {self.of}', ', ')}: {mean:.1f} % of all seen classes, "
                  f"{told:.1f} % knowing the task; {format_bytes(kept)} kept")

    def note(self, text: str) -> None:
        self._say(f"Note: {text}")

    def _named(self, text: str, between: str = ": ") -> str:
        return f"{self.name}{between}{text}" if self.name else text

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
