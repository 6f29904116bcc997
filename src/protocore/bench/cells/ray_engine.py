"""The same cells on a Ray cluster, on this machine or on many: a task each, with its own processors.

Where a worker sees the folder of runs (one machine, a shared file system), a cell runs in it, and a cell whose worker
is killed goes on elsewhere from its checkpoint. Where it does not, a cell runs in a folder of the worker's machine, and
the finished run comes home as bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protocore.bench.cells.cell import Cell
from protocore.bench.cells.engine import Outcome, Stopping, Told
from protocore.bench.cells.pool import End, died, outcome_of
from protocore.bench.cells.slot import LOG, Job, Slot
from protocore.errors import UserError
from protocore.files import hold_folder, read_bytes, write_atomic
from protocore.runs.result import RESULT

RETRIES = 5  # of a cell whose worker is killed
STARTS = 2  # of a cluster of our own: Ray gives up after half a minute, which is short where a machine is busy
GRACE = 20.0  # seconds that stopped cells have for their checkpoints
LOOK = 0.5  # seconds between two looks
MOST_FILE = 4 << 30  # bytes of a file that comes home


@dataclass(frozen=True)
class Home:
    """The driver's folder of runs and the file that marks it, where it stands, and where its data are."""

    runs: str
    mark: str
    stands: str
    data: str | None

    def seen(self) -> bool:
        """Whether this machine sees the folder."""
        return (Path(self.runs) / self.mark).exists()

    def folder_here(self) -> Path:
        """Where this machine works instead: the same for every start of a grid, so that it goes on there."""
        digits = hashlib.sha256(self.runs.encode()).hexdigest()[:12]
        return Path(os.environ.get("PROTOCORE_CACHE") or tempfile.gettempdir()) / f"protocore-runs-{digits}"

    def slot(self, threads: int) -> Slot:
        """The slot of this process, which runs one task after the other; data by the driver's path where it is here."""
        if threads not in _SLOTS:
            data = {"PROTOCORE_DATA": self.data} if self.data and Path(self.data).is_dir() else {}
            _SLOTS[threads] = Slot(threads, data, self.stands if Path(self.stands).is_dir() else None)
        return _SLOTS[threads]


_SLOTS: dict[int, Slot] = {}


class WorkerDied(Exception):
    """The process of a cell was killed on its machine; Ray begins the cell again, here or elsewhere."""


def check_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError("--engine ray needs Ray, which is not installed: python -m pip install 'protocore[ray]' (from "
                        "a checkout: -e '.[ray]'), or leave --engine out")


def run_on_ray(todo: Mapping[Path, Cell], runs: Path, workers: int, threads: int, every: float, told: Told,
               address: str | None) -> dict[Path, Outcome]:
    """What became of the cells, by their folders."""
    runs = runs.absolute()
    data = os.environ.get("PROTOCORE_DATA")
    with _cluster(address, workers, threads), _mark(runs) as mark:
        home = Home(str(runs), mark, str(Path.cwd()), str(Path(data).absolute()) if data else None)
        return _Grid(todo, home, threads, every, told).run()


@contextlib.contextmanager
def _cluster(address: str | None, workers: int, threads: int) -> Iterator[None]:
    """Connected, to the cluster at this address or to one of our own; one that is connected already is taken."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing goes to any network
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own: dict[str, Any] = {} if address else {"include_dashboard": False}
    if workers and not address:
        own["num_cpus"] = workers * threads
    for left in reversed(range(1 if address else STARTS)):
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
            break
        except Exception as error:  # Ray has many classes for it
            ray.shutdown()  # of what has begun
            if left:
                continue
            why = f"there is no Ray cluster at {address} ({error}); start one with `ray start --head`, or leave " \
                "--address out" if address else f"Ray did not start on this machine ({error}), which may be too busy " \
                "for it; leave --engine out, and the grid goes without Ray"
            raise UserError(f"--engine ray: {why}") from None
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _mark(runs: Path) -> Iterator[str]:
    """A file by which a worker knows that the folder of runs which it sees is ours."""
    path = runs / f".home-{uuid.uuid4().hex}"
    write_atomic(path, b"")
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


class _Grid:
    def __init__(self, todo: Mapping[Path, Cell], home: Home, threads: int, every: float, told: Told) -> None:
        self.todo, self.home, self.threads, self.every, self.told = todo, home, threads, every, told
        self.runs = Path(home.runs)
        self.stopping = Stopping()
        self.outcomes = {folder: Outcome(cell, "stopped") for folder, cell in todo.items()}

    def run(self) -> dict[Path, Outcome]:
        import ray

        remote: Any = ray.remote  # its stubs know only some of its words
        board = remote(num_cpus=0, max_restarts=-1)(Board).remote()
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = remote(num_cpus=self.threads, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=[WorkerDied])(run_one)
        refs: dict[Any, Path] = {}
        for folder, cell in self.todo.items():
            job = Job(cell.flags, str(self.runs), str(self.runs / folder.name / LOG), self.threads, self.every)
            refs[task.remote(job, self.home, folder.name, board)] = folder
        waiting, began = dict(refs), time.monotonic()
        deadline: float | None = None
        with self.stopping.listening():
            try:
                while waiting and (deadline is None or time.monotonic() < deadline):
                    done, _ = ray.wait(list(waiting), timeout=LOOK)
                    self._hear(board)
                    self.told.tick()
                    for ref in done:
                        self._ends(waiting.pop(ref), ref, began)
                    if self.stopping.asked.is_set() and deadline is None:
                        deadline = time.monotonic() + GRACE
                        self.told.stopping()
                        board.stop.remote()
                    if self.stopping.at_once.is_set():
                        break
            finally:
                for ref in waiting:
                    ray.cancel(ref, force=True)
        return self.outcomes

    def _hear(self, board: Any) -> None:
        """What the workers say: a courtesy, without which the grid goes on."""
        import ray
        from ray.exceptions import RayError

        try:
            events = ray.get(board.take.remote(), timeout=5)
        except RayError:
            return
        by_name = {folder.name: cell for folder, cell in self.todo.items()}
        for name, event in events:
            self.told.event(by_name[name], event)

    def _ends(self, folder: Path, ref: Any, began: float) -> None:
        import ray
        from ray.exceptions import RayError

        cell, log = self.todo[folder], folder / LOG
        seconds = time.monotonic() - began
        try:
            told: dict[str, Any] = ray.get(ref)
            bring_home(self.runs / folder.name, told["files"])
            seconds = told["seconds"]
            outcome = outcome_of(cell, self.runs, told["state"], told["text"], log, seconds)
        except RayError as error:
            outcome = Outcome(cell, "failed", None, log, seconds, f"its worker was lost, {RETRIES} times and more "
                              f"({str(error).splitlines()[0]})")
        self.outcomes[folder] = outcome
        self.told.ends(outcome)


class Board:
    """An actor between workers and driver: events one way, the wish to stop the other."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stopped = False

    def tell(self, name: str, event: dict[str, Any]) -> bool:
        """Whether the worker should stop."""
        self.events.append((name, event))
        return self.stopped

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        events, self.events = self.events, []
        return events

    def stop(self) -> None:
        self.stopped = True


def run_one(job: Job, home: Home, name: str, board: Any) -> dict[str, Any]:
    """A Ray task: one cell, in the folder of runs where this machine sees it, else in one of its own."""
    import ray
    from ray.exceptions import RayError

    runs = Path(job.runs) if home.seen() else home.folder_here()
    job = replace(job, runs=str(runs), log=str(runs / name / LOG))
    slot, ended, began = home.slot(job.threads), End(), time.monotonic()

    def asked_to_stop(event: dict[str, Any]) -> bool:
        with contextlib.suppress(RayError):  # a board that is lost, or slow, is not this cell's affair
            return ray.get(board.tell.remote(name, event), timeout=10)
        return False

    def hear(event: dict[str, Any]) -> None:
        ended.hear(event)
        if asked_to_stop(event):
            slot.ask()

    if asked_to_stop({"event": "here"}):
        return {"state": "stopped", "text": "", "seconds": 0.0, "files": {}}
    code = slot.run(job, hear)
    if code < 0:
        raise WorkerDied(died(code))
    files: dict[str, bytes] = {}
    if not home.seen():
        files = {path.name: read_bytes(path, MOST_FILE) for path in sorted((runs / name).iterdir())
                 if path.is_file() and not path.name.startswith(".")}
    return {"state": ended.state, "text": ended.text, "seconds": time.monotonic() - began, "files": files}


def bring_home(folder: Path, files: Mapping[str, bytes]) -> None:
    """A run that was made on another machine, written here; its result last, as a run of this machine would."""
    if not files:
        return
    with hold_folder(folder):
        for name in sorted(files, key=lambda name: name == RESULT):
            if Path(name).name == name:
                write_atomic(folder / name, files[name])
