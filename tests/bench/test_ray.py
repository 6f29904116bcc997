"""Grids on a real Ray cluster of this machine, with two workers."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from protocore.bench.cells import Cell, Listener, Outcome, cells_of, folder_of, run_cells, stored
from protocore.bench.cells.ray_engine import _cluster
from protocore.bench.cells.slot import LOG
from protocore.errors import UserError

pytest.importorskip("ray")
CELLS = cells_of(["er"], ["digits"], seeds=[0, 1, 2], sizes=[{"spc": 2}],
                 fixed={"epochs": 60, "images_per_class": 20, "tasks": 2, "backbone": "mlp", "width": 16})


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_a_ray_worker(runs: Path, killed: list[str], over: threading.Event) -> None:
    """As soon as a cell has a checkpoint, the Ray worker above its process dies."""
    while not over.wait(0.02):
        for checkpoint in runs.glob("*/checkpoint.safetensors"):
            try:
                holder = re.search(r"process (\d+)", (checkpoint.parent / ".lock").read_text())
                pid = int(holder[1]) if holder else 0
                while pid > 1 and b"ray::" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    pid = parent_of(pid)
            except OSError:
                continue
            if pid > 1:
                os.kill(pid, signal.SIGKILL)
                killed.append(checkpoint.parent.name)
                return


def test_a_cluster_that_does_not_start_is_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    said: list[str] = []

    def init(**_: object) -> None:
        said.append("init")
        if said.count("init") <= failures:
            raise RuntimeError("timed out")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: said.append("shutdown"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    failures = 1
    with _cluster(None, 2, 1):
        assert said == ["init", "shutdown", "init"]
    for address, starts, way in ((None, 2, "leave --engine out"), ("auto", 1, "leave --address out")):
        said.clear()
        failures = 9
        with pytest.raises(UserError, match=way), _cluster(address, 2, 1):
            pass
        assert said == ["init", "shutdown"] * starts


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> object:
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_the_cell_of_a_killed_worker_goes_on_elsewhere_and_runs_come_home(cluster: object, tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    runs, killed, over, ends = tmp_path / "runs", [], threading.Event(), []

    class Listening(Listener):
        def ends(self, outcome: Outcome) -> None:
            ends.append(outcome.cell.name)

    killer = threading.Thread(target=kill_a_ray_worker, args=(runs, killed, over))
    killer.start()
    outcomes = run_cells(CELLS, runs, engine="ray", listener=Listening(), every=0)
    over.set()
    killer.join()
    assert [o.state for o in outcomes] == ["done"] * 3, [o.error for o in outcomes]
    assert len(killed) == 1
    logs = {cell.name: (folder_of(cell, runs) / LOG).read_text() for cell in CELLS}
    assert sum(text.count(" begins: ") for text in logs.values()) == 3  # none from nothing a second time
    (again,) = [name for name, text in logs.items() if " goes on: " in text]
    assert killed[0].endswith(again.rpartition("-")[2])
    assert sorted(ends) == sorted(cell.name for cell in CELLS)
    assert not list(runs.glob(".home-*"))

    # A worker that does not see the folder of runs sends the finished run home.
    from protocore.bench.cells.engine import Told
    from protocore.bench.cells.ray_engine import Home, _Grid

    far = tmp_path / "far"
    cell = Cell({**CELLS[0].flags, "epochs": 1})
    home = Home(str(far), "no such mark", str(tmp_path), None)
    began = time.monotonic()
    made = _Grid({folder_of(cell, far): cell}, home, 1, 30.0, Told(None)).run()
    (outcome,) = made.values()
    assert outcome.state == "done", outcome.error
    assert stored(cell, far) is not None
    assert 0 < outcome.seconds <= time.monotonic() - began
    elsewhere = folder_of(cell, home.folder_here())
    assert (folder_of(cell, far) / "learner.safetensors").read_bytes() == \
        (elsewhere / "learner.safetensors").read_bytes()
    for path in elsewhere.iterdir():
        path.unlink()
    elsewhere.rmdir()
    elsewhere.parent.rmdir()
