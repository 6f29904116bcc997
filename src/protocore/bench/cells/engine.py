"""Cells are run: which are stored, which engine runs the others, and what became of each."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocore.bench.cells.cell import Cell, folder_of, stored
from protocore.bench.cells.slot import LOG
from protocore.errors import UserError, shown
from protocore.runs.result import Result

ENGINES = ("pool", "ray")


@dataclass
class Outcome:
    """What became of a cell: done now, stored before, failed (`error` says why, `log` more), or stopped."""

    cell: Cell
    state: str
    result: Result | None = None
    log: Path | None = None
    seconds: float = 0.0
    error: str = ""


class Listener:
    """Who is told how a grid goes on; what a subclass leaves out is not said. Calls come one at a time."""

    def begins(self, cell: Cell) -> None: ...
    def goes_on(self, cell: Cell) -> None:
        """It begins where another process left it."""
        self.begins(cell)

    def share(self, cell: Cell, share: float) -> None: ...
    def waits(self, cell: Cell) -> None: ...
    def ends(self, outcome: Outcome) -> None: ...
    def stopping(self) -> None: ...
    def tick(self) -> None: ...


class Told(Listener):
    """Passes on what several threads say, one call at a time."""

    def __init__(self, listener: Listener | None) -> None:
        self.listener, self.lock = listener or Listener(), threading.RLock()

    def begins(self, cell: Cell) -> None:
        with self.lock:
            self.listener.begins(cell)

    def goes_on(self, cell: Cell) -> None:
        with self.lock:
            self.listener.goes_on(cell)

    def share(self, cell: Cell, share: float) -> None:
        with self.lock:
            self.listener.share(cell, share)

    def waits(self, cell: Cell) -> None:
        with self.lock:
            self.listener.waits(cell)

    def ends(self, outcome: Outcome) -> None:
        with self.lock:
            self.listener.ends(outcome)

    def stopping(self) -> None:
        with self.lock:
            self.listener.stopping()

    def tick(self) -> None:
        with self.lock:
            self.listener.tick()

    def event(self, cell: Cell, event: dict[str, Any]) -> None:
        """What a worker says."""
        kind = event.get("event")
        if kind == "begins":
            (self.goes_on if event.get("goes_on") else self.begins)(cell)
        elif kind == "waits":
            self.waits(cell)
        elif kind == "share":
            self.share(cell, float(event["share"]))


def run_cells(cells: Sequence[Cell], runs: Path, *, workers: int = 0, engine: str = "pool", threads: int = 1,
              listener: Listener | None = None, every: float = 30.0, address: str | None = None) -> list[Outcome]:
    """Run what is not stored; an outcome for every cell, in their order.

    A failed cell does not stop the others. Ctrl-C lets the running ones write their checkpoints and ends; called again,
    finished cells are not run again and begun ones go on. `workers` 0: as many as the machine has room for.
    """
    check_engine(engine, address)
    told = Told(listener)
    # All are configured before the first is run: a mistake should not wait for its turn.
    folders = {cell: folder_of(cell, runs) for cell in cells}
    outcomes: dict[Path, Outcome] = {}
    for cell, folder in folders.items():
        if folder not in outcomes and (result := stored(cell, runs)):
            log = folder / LOG
            outcomes[folder] = Outcome(cell, "stored", result, log if log.exists() else None)
            told.ends(outcomes[folder])
    todo: dict[Path, Cell] = {}
    for cell, folder in folders.items():
        if folder not in outcomes:
            todo.setdefault(folder, cell)
    if todo:
        if engine == "ray":
            from protocore.bench.cells.ray_engine import run_on_ray

            made = run_on_ray(todo, runs, workers, threads, every, told, address)
        else:
            from protocore.bench.cells.pool import run_in_pool

            made = run_in_pool(todo, runs, workers or workers_here(threads), threads, every, told)
        outcomes |= made
    return [_as(outcomes[folders[cell]], cell) for cell in cells]


def check_engine(engine: str, address: str | None = None) -> None:
    """What is wrong with these words, before anything is planned or measured."""
    if engine not in ENGINES:
        raise UserError(f"--engine {shown(engine)}: choose one of {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise UserError("--address is the address of a Ray cluster: add --engine ray, or leave it out")
    if engine == "ray":
        from protocore.bench.cells.ray_engine import check_ray

        check_ray()


def _as(outcome: Outcome, cell: Cell) -> Outcome:
    """The outcome of a cell that may be another's twin: two cells of one configuration are one run."""
    if outcome.cell is cell:
        return outcome
    return Outcome(cell, outcome.state, outcome.result, outcome.log, outcome.seconds, outcome.error)


def workers_here(threads: int = 1) -> int:
    """Processes at a time on this machine: one a GPU where there are any, else one for each so many cores."""
    return gpus_here() or max(cores_here() // max(threads, 1), 1)


def cores_here() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


class Stopping:
    """Asked to stop by Ctrl-C or SIGTERM: `gently` is called at the first, `at_once` at the second."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.at_once = threading.Event()

    def _handle(self, number: int, frame: Any) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals are taken while the block lasts; in a thread that is not the main one nobody can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
