"""What is shown while a run is under way, and how it is asked to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protocore.config import format_bytes

if TYPE_CHECKING:
    from protocore.config import Resolved
    from protocore.learn.evaluate import Row


class Stop:
    """Ctrl-C asks the run to write its checkpoint and stop; a second one stops at once."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        return self._asked

    def _handle(self, number: int, frame: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> Stop:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


class RunProgress:
    """A bar with the current loss and the time left, and a line for every task that is learned."""

    def __init__(self, config: Resolved) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                            TextColumn("{task.fields[note]}"), console=self.console, transient=True)
        self.name = f"{config.settings.method} on {config.settings.benchmark}"
        self.item: Any = None
        self.first = self.begun = 0.0
        self.index = self.of = self.done_before = 0

    def __enter__(self) -> RunProgress:
        self.bar.start()
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def data(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.console.print(note, markup=False, highlight=False, soft_wrap=True)

    def task(self, index: int, of: int, classes: int) -> None:
        if self.item is not None:
            self.bar.remove_task(self.item)
        else:
            self.done_before = index
        self.index, self.of = index, of
        self.item = self.bar.add_task(f"{self.name}: task {index + 1} of {of}", total=None, note="")

    def step(self, done: int, of: int, loss: float) -> None:
        share = self.index - self.done_before + done / of
        left = (time.monotonic() - self.begun) / max(share, 1e-9) * (self.of - self.done_before - share)
        self.bar.update(self.item, completed=done, total=of, note=f"loss {loss:.3f}, {_clock(left)} left")

    def inner(self, what: str, done: int, of: int) -> None:
        self.bar.update(self.item, completed=done, total=of, note=what)

    def row(self, index: int, row: Row, kept: int) -> None:
        mean = sum(row.class_incremental) / len(row.class_incremental)
        told = sum(row.task_incremental) / len(row.task_incremental)
        self.console.print(f"{self.name}, after task {index + 1} of {self.of}: {mean:.1f} % of all seen classes, "
                           f"{told:.1f} % knowing the task; {format_bytes(kept)} kept", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self.console.print(f"Note: {text}", highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
