"""A pool of processes on this machine: a thread for each slot, which takes the next cell when it is free."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from protocore.bench.cells.cell import Cell, stored
from protocore.bench.cells.engine import Outcome, Stopping, Told, gpus_here
from protocore.bench.cells.slot import LOG, Job, Slot

TICK = 0.2  # seconds


def run_in_pool(todo: Mapping[Path, Cell], runs: Path, workers: int, threads: int, every: float,
                told: Told) -> dict[Path, Outcome]:
    """What became of the cells, by their folders."""
    return _Pool(todo, runs, threads, every, told).run(min(workers, len(todo)))


class _Pool:
    def __init__(self, todo: Mapping[Path, Cell], runs: Path, threads: int, every: float, told: Told) -> None:
        self.todo, self.runs, self.threads, self.every, self.told = todo, runs, threads, every, told
        self.stopping = Stopping()
        self.waiting: SimpleQueue[Path] = SimpleQueue()
        for folder in todo:
            self.waiting.put(folder)
        self.outcomes = {folder: Outcome(cell, "stopped") for folder, cell in todo.items()}

    def run(self, workers: int) -> dict[Path, Outcome]:
        gpus = gpus_here()
        slots = [Slot(self.threads, environment_of(i, gpus)) for i in range(workers)]

        def each(do: Callable[[Slot], None]) -> None:
            for slot in slots:
                do(slot)

        with self.stopping.listening(), ThreadPoolExecutor(workers) as pool:
            working = {pool.submit(self._work, slot) for slot in slots}
            left, said, killed = set(working), False, False
            try:
                while left:
                    left = wait(left, TICK).not_done
                    self.told.tick()
                    if self.stopping.asked.is_set():
                        if not said:
                            self.told.stopping()
                        said = True
                        each(Slot.ask)  # again and again: a cell may have begun between two looks
                    if self.stopping.at_once.is_set() and not killed:
                        killed = True
                        each(Slot.kill)
                for one in working:
                    one.result()
            except BaseException:  # of a listener, say: no worker may be left behind
                self.stopping.asked.set()
                each(Slot.kill)
                raise
        return self.outcomes

    def _work(self, slot: Slot) -> None:
        """Cells one after the other, until there are no more or nobody wants them."""
        try:
            while not self.stopping.asked.is_set():
                try:
                    folder = self.waiting.get_nowait()
                except Empty:
                    return
                outcome = self.outcomes[folder] = self._one(slot, self.todo[folder], folder)
                self.told.ends(outcome)
        finally:
            slot.close()

    def _one(self, slot: Slot, cell: Cell, folder: Path) -> Outcome:
        began, log, ended = time.monotonic(), folder / LOG, End()

        def hear(event: dict[str, Any]) -> None:
            ended.hear(event)
            self.told.event(cell, event)

        code = slot.run(Job(cell.flags, str(self.runs), str(log), self.threads, self.every), hear)
        if code < 0 and self.stopping.at_once.is_set():
            ended.state = "stopped"
        return outcome_of(cell, self.runs, ended.state, ended.text or died(code), log, time.monotonic() - began)


class End:
    """How a worker said that it ended."""

    def __init__(self) -> None:
        self.state = self.text = ""

    def hear(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "end":
            self.state = event["state"]
        elif event.get("event") == "failed":
            self.state, self.text = "failed", event["text"]


def outcome_of(cell: Cell, runs: Path, state: str, error: str, log: Path, seconds: float) -> Outcome:
    """What a worker said against what lies in the folder."""
    if state == "stopped":
        return Outcome(cell, state, log=log, seconds=seconds)
    result = stored(cell, runs) if state in ("done", "stored") else None
    if result is None:
        return Outcome(cell, "failed", None, log, seconds, error or "it ended without a whole result")
    return Outcome(cell, state, result, log, seconds)


def died(code: int) -> str:
    if code >= 0:
        return ""
    memory = "; perhaps the machine ran out of memory: fewer --workers need less" if code == -9 else ""
    return f"its process was killed by signal {-code}{memory}"


def environment_of(slot: int, gpus: int) -> dict[str, str]:
    """With several GPUs each slot has its own."""
    return {"CUDA_VISIBLE_DEVICES": str(slot % gpus)} if gpus > 1 else {}
