"""A grid before it begins: how many runs, how many of them are stored, bytes and time."""

from __future__ import annotations

import heapq
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from protocore.bench.cells.cell import Cell, folder_of, stored
from protocore.bench.cells.engine import workers_here
from protocore.bench.cells.measure import Cost
from protocore.bench.cells.slot import environment_for
from protocore.errors import DataError, UserError
from protocore.files import read_json, write_json
from protocore.runs.folder import RunFolder
from protocore.runs.result import Result
from protocore.schema import Fields

MEASURED = ".measured.json"  # in the folder of runs: what a second plan need not measure again
LIMIT = 30.0  # seconds that measuring one kind of run may take
LIMIT_OF_ALL = 180.0
UNMEASURED = "not measured"  # why the time of a run is not known where nobody asked for it
NO_TIME = "No time was left to measure it; the same command again measures more"
TOO_LONG = "Measuring it took too long"
START = 5.0  # seconds, about, until a worker has loaded the library; the cells after its first begin at once


@dataclass(frozen=True)
class Kind:
    """Cells that differ in their seed only. `cost` is of one of them; None: not known, and `why` says so."""

    name: str
    cells: int
    stored: int
    cost: Cost | None
    why: str = ""
    benchmark: str = ""


@dataclass(frozen=True)
class Plan:
    """`seconds` until all is done with so many workers; those of `unknown` cells are not in it."""

    kinds: tuple[Kind, ...]
    workers: int
    seconds: float

    @property
    def runs(self) -> int:
        return sum(kind.cells for kind in self.kinds)

    @property
    def stored(self) -> int:
        return sum(kind.stored for kind in self.kinds)

    @property
    def todo(self) -> int:
        return self.runs - self.stored

    @property
    def unknown(self) -> int:
        """Cells to run of which nobody knows how long they take."""
        return sum(kind.cells - kind.stored for kind in self.kinds if kind.cost is None)

    def guess(self, usual: Mapping[str, float]) -> float | None:
        """`seconds` with those of the unknown cells: what is `usual` on their benchmark; None where that is not known.
        """
        each = [(kind.cost.seconds if kind.cost else usual.get(kind.benchmark), kind.cells - kind.stored)
                for kind in self.kinds if kind.cells > kind.stored]
        known = [seconds for seconds, count in each if seconds is not None for _ in range(count)]
        return makespan(known, self.workers) + START if len(known) == self.todo else None

    @property
    def memory(self) -> int | None:
        """Bytes of the machine's memory while the largest of them run side by side; None: not known."""
        sizes = [kind.cost.process for kind in self.kinds for _ in range(kind.cells - kind.stored) if kind.cost]
        return sum(heapq.nlargest(self.workers, sizes)) or None

    @property
    def kept(self) -> int | None:
        """Bytes of the largest memory (exemplars and all that outlives a task) of a run to come."""
        return max((kind.cost.kept for kind in self.kinds if kind.cost and kind.cost.kept is not None), default=None)


def estimate(cells: Sequence[Cell], runs: Path, workers: int = 0, *, threads: int = 1, measure: bool = True,
             limit: float = LIMIT, limit_of_all: float = LIMIT_OF_ALL,
             like: Mapping[Cell, Result] | None = None) -> Plan:
    """Plan a grid; nothing of it is run. A run takes what one of another seed or class order took that is stored, of
    this grid or in `like`; each other kind is measured once on a machine, within `limit` seconds.
    """
    by_folder = {folder_of(cell, runs): cell for cell in cells}
    kinds: dict[str, list[tuple[Cell, bool]]] = {}
    work = {folder: _work(cell, runs) for folder, cell in by_folder.items()}
    costs: dict[str, Cost | str] = {}
    todo: dict[str, Cell] = {}
    for folder, cell in by_folder.items():
        result = stored(cell, runs)
        kinds.setdefault(_kind(folder), []).append((cell, result is not None))
        if result is None:
            todo.setdefault(work[folder], cell)
        else:
            costs |= _took(work[folder], result)
    for cell, result in (like or {}).items():
        if (name := _work(cell, runs)) in todo and name not in costs:
            costs |= _took(name, result)
    unknown = {name: cell for name, cell in todo.items() if name not in costs}
    costs |= _costs(unknown, runs, threads, measure, limit, limit_of_all) if unknown else {}
    of_kind = {_kind(folder): costs.get(name, UNMEASURED) for folder, name in work.items()}
    rows = []
    for key, members in kinds.items():
        cost, why = (known, "") if isinstance(known := of_kind[key], Cost) else (None, known)
        rows.append(Kind(members[0][0].name.rpartition("-s")[0], len(members), sum(done for _, done in members), cost,
                         "" if all(done for _, done in members) else why, members[0][0].config().settings.benchmark))
    left = sum(row.cells - row.stored for row in rows)
    at_once = min(workers or workers_here(threads), max(left, 1))
    each = [row.cost.seconds for row in rows if row.cost for _ in range(row.cells - row.stored)]
    return Plan(tuple(rows), at_once, makespan(each, at_once) + START if each else 0.0)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of these is done, each begun in order by the worker that is free first."""
    free = [0.0] * max(workers, 1)
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def _work(cell: Cell, runs: Path) -> str:
    """The same for all runs that differ in their seed and class order only: they have the same to do."""
    config = cell.config()
    settings = replace(config.settings, class_order="natural")
    return _kind(RunFolder.of(runs, replace(config, settings=settings)).path)


def _took(name: str, result: Result) -> dict[str, Cost]:
    """What a stored run took, where it says so."""
    return {name: Cost(result.wall_seconds, result.peak_memory_bytes, result.bytes_kept)} if result.wall_seconds else {}


def _kind(folder: Path) -> str:
    return folder.name.rpartition("-s")[0]


def _costs(todo: Mapping[str, Cell], runs: Path, threads: int, measure: bool, limit: float,
           limit_of_all: float) -> dict[str, Cost | str]:
    """The cost of a run of each kind, or why it is not known."""
    machine = f"{os.uname().nodename}, {threads} threads"
    known = _read(runs / MEASURED, machine)
    found = {key: known[key] for key in todo if key in known}
    missing = [key for key in todo if not isinstance(found.get(key), Cost)]
    if missing and measure:
        missing.sort(key=lambda key: key in known)  # what took too long before is tried again, after all others
        new = dict(zip(missing, _measure([todo[key] for key in missing], threads, limit, limit_of_all), strict=False))
        found = new | {key: known[key] for key in found if new.get(key, NO_TIME) == NO_TIME}
        fresh = {key: cost for key, cost in new.items() if isinstance(cost, Cost) or cost.startswith(TOO_LONG)}
        if fresh:
            _write(runs / MEASURED, machine, known | fresh)
    return found


def _measure(cells: Sequence[Cell], threads: int, limit: float, limit_of_all: float) -> Iterator[Cost | str]:
    """One process measures one after the other; what takes too long is stopped, and the next begins anew."""
    deadline = time.monotonic() + limit_of_all
    rest = list(cells)
    while rest:
        if time.monotonic() >= deadline:
            yield from [NO_TIME] * len(rest)
            return
        before = len(rest)
        for answer in _session(rest, threads, limit, deadline):
            yield answer
            rest = rest[1:]
        if len(rest) == before:
            yield "It could not be measured"
            rest = rest[1:]


def _session(cells: Sequence[Cell], threads: int, limit: float, deadline: float) -> Iterator[Cost | str]:
    """Answers of one measuring process, until it is through, has ended, or has taken too long for one cell."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    process = subprocess.Popen([sys.executable, "-m", "protocore.bench.cells.measure"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment_for(threads),
                               start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    least: float | None = None  # what the steps of the present cell take
    with process:
        try:
            job = {"flags": [dict(cell.flags) for cell in cells], "threads": threads}
            process.stdin.write((json.dumps(job, default=str) + "\n").encode())
            process.stdin.flush()
            threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
            until = deadline  # it loads the library first
            while True:
                answer = json.loads(lines.get(timeout=max(until - time.monotonic(), 0.01)) or b"null")
                if answer is None:
                    return
                if "least" in answer:
                    least = float(answer["least"])
                    continue
                if "error" in answer:
                    yield str(answer["error"])
                elif "ready" not in answer:
                    yield Cost(float(answer["seconds"]), int(answer["process"]), answer["kept"])
                until, least = min(time.monotonic() + limit, deadline), None
        except queue.Empty:
            yield TOO_LONG + ("" if least is None else f"; its steps alone take about {least / 3600:,.1f} hours")
        except OSError:
            return
        finally:
            process.kill()


def _read_lines(file: Any, lines: queue.SimpleQueue[bytes]) -> None:
    for line in file:
        lines.put(line)
    lines.put(b"")


def _read(path: Path, machine: str) -> dict[str, Cost | str]:
    """What was measured on this machine, or took too long; a file that is not there or damaged is as good as empty."""
    try:
        table = Fields(read_json(path), path, "remove it").fields(machine)
        return {key: row.text("why") if "why" in row.values else
                Cost(row.number("seconds"), row.whole("process"), row.maybe(row.whole, "kept", None))
                for key in table.values for row in [table.fields(key)]}
    except DataError:
        return {}


def _write(path: Path, machine: str, costs: Mapping[str, Cost | str]) -> None:
    try:
        there = read_json(path)
    except DataError:
        there = {}
    try:
        mine = {machine: {key: asdict(cost) if isinstance(cost, Cost) else {"why": cost}
                          for key, cost in costs.items()}}
        write_json(path, (there if isinstance(there, dict) else {}) | mine)
    except UserError:  # a folder that cannot be written: the plan is made all the same
        return


