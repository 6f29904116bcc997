"""Cells of a grid: their names and folders, the engine that runs them, and what a plan says before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocore.bench.cells import Cell, Listener, Outcome, cells_of, estimate, folder_of, run_cells, stored, unique
from protocore.bench.cells.measure import STEPS, Cost, Step, cost_of, kept_bytes, scaled
from protocore.bench.cells.plan import MEASURED, NO_TIME, TOO_LONG, Plan, _measure, makespan
from protocore.bench.cells.pool import died, environment_of
from protocore.bench.cells.show import reasons
from protocore.bench.cells.slot import LOG, Job
from protocore.config import format_bytes
from protocore.data.benchmarks import open_stream
from protocore.errors import UserError
from protocore.files import hold_folder
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder
from protocore.runs.job import run
from protocore.runs.reporters import Reporter

TINY = {"epochs": 1, "images_per_class": 20, "tasks": 2}


def tiny(methods: list[str], seeds: list[int], **more: Any) -> list[Cell]:
    return cells_of(methods, ["digits"], seeds=seeds, sizes=[{"spc": 2}], fixed=TINY | more)


def starts(folder: Path) -> int:
    """How often the run of a folder was begun from nothing, by its log."""
    return (folder / LOG).read_text().count(" begins: ")


class Events(Listener):
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.waiting = threading.Event()

    def begins(self, cell: Cell) -> None:
        self.said.append(("begins", cell.name))

    def waits(self, cell: Cell) -> None:
        self.said.append(("waits", cell.name))
        self.waiting.set()

    def ends(self, outcome: Outcome) -> None:
        self.said.append((outcome.state, outcome.cell.name))


# -- names and folders -----------------------------------------------------------------------------------------


def test_a_grid_is_the_product_and_methods_without_exemplars_have_one_cell() -> None:
    cells = cells_of(["finetune", "er"], ["digits", "mnist"], seeds=[0, 1], sizes=[{"spc": 1}, {"spc": 5}])
    assert len(cells) == 2 * 2 * (1 + 2)
    assert [c.name for c in cells[:6]] == ["finetune-digits-s0", "finetune-mnist-s0", "er-digits-spc-1-s0",
                                           "er-digits-spc-5-s0", "er-mnist-spc-1-s0", "er-mnist-spc-5-s0"]
    assert len({c.name for c in cells}) == len(cells)
    assert [c.seed for c in cells] == [0] * 6 + [1] * 6  # a whole table of one seed comes first


def test_an_option_goes_to_the_methods_that_have_it() -> None:
    cells = cells_of(["er", "protocore"], ["digits"], fixed={"condense-steps": 3, "codec": "vqgan:4"})
    assert [c.flags.get("condense_steps") for c in cells] == [None, 3]
    assert "codec" not in cells_of(["finetune"], ["digits"], fixed={"codec": "vqgan:4"})[0].flags
    with pytest.raises(UserError, match="--condense-steps is not an option of er, finetune; it is one of protocore"):
        cells_of(["er", "finetune"], ["digits"], fixed={"condense_steps": 3})
    with pytest.raises(UserError, match=r"--epoch is not an option of er; did you mean --epochs\?"):
        cells_of(["er"], ["digits"], fixed={"epoch": 3})
    with pytest.raises(UserError, match="more than 10,000 cells"):
        cells_of(["er"] * 101, ["digits"], seeds=range(100))


def test_names_stay_apart_and_fit_into_a_file_name() -> None:
    a, b = Cell({"method": "er", "spc": 1, "seed": 3}, "same"), Cell({"method": "er", "spc": 2, "seed": 3}, "same")
    assert [c.name for c in unique([a, b, a])] == ["er-spc-1-s3", "er-spc-2-s3"]
    long = [Cell({"method": "er", "codec": f"{'x' * 200}{i}"}).name for i in range(2)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 130
    odd = cells_of(["er"], ["folder:../my pictures/äö", "digits"])[0].name
    assert odd == "er-folder_.._my_pictures_-s0"
    assert "/" not in odd


def test_a_folder_is_named_by_what_matters_so_that_grids_share_it(tmp_path: Path) -> None:
    cell = Cell({"method": "er", "benchmark": "digits", "spc": 2, "seed": 4})
    config = configure({"method": "er", "benchmark": "digits", "spc": 2, "seed": 4})
    assert folder_of(cell, tmp_path) == RunFolder.of(tmp_path, config).path
    assert folder_of(Cell({**cell.flags, "threads": 7}), tmp_path) == folder_of(cell, tmp_path)
    assert folder_of(Cell({**cell.flags, "spc": 3}), tmp_path) != folder_of(cell, tmp_path)
    with pytest.raises(UserError, match=r"^er-digits-spc-0-s0: --spc 0"):
        folder_of(Cell({"method": "er", "benchmark": "digits", "spc": 0}), tmp_path)


# -- running -----------------------------------------------------------------------------------------------------


def test_a_failed_cell_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    runs, events = tmp_path / "runs", Events()
    good = tiny(["finetune", "er"], [0])
    bad = Cell({"method": "er", "benchmark": "cifar10", "spc": 1, "data_root": str(tmp_path / "none")})
    outcomes = run_cells([bad, *good, good[1]], runs, workers=1, listener=events)
    assert [o.state for o in outcomes] == ["failed", "done", "done", "done"]  # the last two are one run
    assert "cifar10: looked for its files in" in outcomes[0].error
    assert outcomes[0].log is not None
    assert "failed: cifar10: looked for its files in" in outcomes[0].log.read_text()
    assert [event for event in events.said if event[0] != "failed"] == [
        (word, cell.name) for cell in good for word in ("begins", "done")]
    again = run_cells(good, runs, workers=1, listener=events)
    assert [o.state for o in again] == ["stored", "stored"]
    assert all(starts(folder_of(cell, runs)) == 1 for cell in good)

    # A cell is what `protocore run` makes of the same flags, bit for bit.
    config = configure({**good[1].flags, "threads": 1})
    mine = run(config, tmp_path / "mine")
    assert again[1].result is not None
    assert again[1].result.class_incremental == mine.class_incremental
    there = folder_of(good[1], runs)
    assert (there / "memory.safetensors").read_bytes() == (tmp_path / "mine" / "memory.safetensors").read_bytes()

    # One that is no longer whole is run again.
    (there / "memory.safetensors").write_bytes(b"")
    assert stored(good[1], runs) is None
    assert stored(good[0], runs) is not None


def test_a_finished_cell_is_known_again_where_a_part_of_the_training_images_is_measured_on(tmp_path: Path) -> None:
    (cell,) = tiny(["finetune"], [0], validate=25)
    run(cell.config(), folder_of(cell, tmp_path))
    assert stored(cell, tmp_path) is not None
    assert stored(Cell({**cell.flags, "validate": 0}), tmp_path) is None


def test_ctrl_c_writes_checkpoints_and_a_second_start_waits_its_turn_and_goes_on(tmp_path: Path) -> None:
    cells = tiny(["finetune"], [0, 1], epochs=400, backbone="mlp", width=16)
    before = signal.getsignal(signal.SIGINT)

    class Impatient(Events):
        def share(self, cell: Cell, share: float) -> None:
            if share > 0:
                os.kill(os.getpid(), signal.SIGINT)

    outcomes = run_cells(cells, tmp_path, workers=1, listener=Impatient())
    assert [o.state for o in outcomes] == ["stopped", "stopped"]
    folder = folder_of(cells[0], tmp_path)
    assert (folder / "checkpoint.safetensors").exists()
    assert not folder_of(cells[1], tmp_path).exists()
    assert signal.getsignal(signal.SIGINT) is before

    # Meanwhile another process works there: it is waited for.
    events, found = Events(), []
    grid = threading.Thread(target=lambda: found.extend(run_cells(cells[:1], tmp_path, listener=events)))
    with hold_folder(folder):
        grid.start()
        assert events.waiting.wait(300)
    grid.join(300)
    assert [o.state for o in found] == ["done"]
    assert events.said == [(word, cells[0].name) for word in ("waits", "begins", "done")]
    log = (folder / LOG).read_text()
    assert log.count(" begins: ") == log.count(" goes on: ") == 1


def test_what_another_process_has_finished_meanwhile_is_kept(tmp_path: Path) -> None:
    (cell,) = tiny(["finetune"], [0])
    first = run(cell.config(), folder_of(cell, tmp_path))

    class Nobody(Reporter):
        def data(self, notes: Any) -> None:
            raise AssertionError("it is run again")

    assert run(cell.config(), folder_of(cell, tmp_path), reporters=[Nobody()], keep_stored=True) == first


def test_what_engines_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--engine 'slurm': choose one of pool, ray"):
        run_cells([], tmp_path, engine="slurm")
    with pytest.raises(UserError, match="--address is the address of a Ray cluster"):
        run_cells([], tmp_path, address="auto")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs Ray, which is not installed: .*'protocore\[ray\]'"):
        run_cells([], tmp_path, engine="ray")


def test_slots_share_the_gpus_and_a_killed_worker_says_by_what() -> None:
    assert [environment_of(slot, 2).get("CUDA_VISIBLE_DEVICES") for slot in range(3)] == ["0", "1", "0"]
    assert environment_of(0, 1) == environment_of(3, 0) == {}
    assert "fewer --workers" in died(-9)
    assert died(-15) == "its process was killed by signal 15"
    assert died(2) == ""


def test_a_server_whose_parent_was_killed_ends_without_a_word(tmp_path: Path) -> None:
    (cell,) = tiny(["finetune"], [0])
    job = Job(cell.flags, str(tmp_path), str(tmp_path / "log"))
    server = subprocess.Popen([sys.executable, "-m", "protocore.bench.cells.server"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(job.line())
    server.stdin.close()
    server.stdout.close()
    assert server.stderr is not None
    assert server.stderr.read() == b""
    assert server.wait() == 0


def test_a_finished_cell_counts_where_its_data_are_the_same_or_not_here(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = tiny(["finetune"], [0])
    run(cell.config(), folder_of(cell, tmp_path))
    for digest, there in ((None, True), ("0" * 64, False)):
        monkeypatch.setattr("protocore.bench.cells.cell.data_of", lambda config, digest=digest: digest)
        assert (stored(cell, tmp_path) is not None) is there


# -- the plan ----------------------------------------------------------------------------------------------------


def test_a_plan_says_what_is_to_do_and_measures_each_kind_once(tmp_path: Path) -> None:
    cells = tiny(["finetune", "er"], [0, 1])
    missing = cells_of(["er"], ["cifar10"], fixed={"data_root": str(tmp_path / "none")})
    made = run(cells[3].config(), folder_of(cells[3], tmp_path))
    plan = estimate([*cells, *missing], tmp_path, workers=2)
    assert (plan.runs, plan.stored, plan.todo, plan.unknown, plan.workers) == (5, 1, 4, 1, 2)
    finetune, er, cifar = plan.kinds
    assert (finetune.cells, finetune.stored, er.cells, er.stored) == (2, 0, 2, 1)
    assert cifar.cost is None
    assert "looked for its files" in cifar.why
    assert finetune.cost is not None
    assert er.cost is not None
    assert 0 < er.cost.seconds < 60
    assert (er.cost.seconds, er.cost.process) == (made.wall_seconds, made.peak_memory_bytes)
    kept = kept_bytes(cells[1].config(), open_stream(cells[1].config().settings))
    assert kept == er.cost.kept == made.bytes_kept  # to the byte: pixels have one size
    assert plan.memory is not None
    assert 2 * 10**8 < plan.memory < 4 * 10**9, format_bytes(plan.memory)
    assert plan.seconds > max(finetune.cost.seconds, er.cost.seconds)
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path != folder_of(cells[3], tmp_path)]

    # What is measured is known to the next plan; a damaged note of it is as good as none.
    assert estimate(cells, tmp_path, 1, measure=False).kinds[0].cost == finetune.cost
    (tmp_path / MEASURED).write_text('{"x": [')
    assert estimate(cells, tmp_path, 1, measure=False).kinds[0].why == "not measured"


def test_a_stored_run_says_what_the_others_take(tmp_path: Path) -> None:
    """Of any seed and class order, where the plan has it or is told of it; others are measured, once for all orders."""
    orders = [cell for order in ("natural", "1993", "1994") for cell in tiny(["er"], [0], class_order=order)]
    made = run(orders[1].config(), folder_of(orders[1], tmp_path))
    cost = Cost(made.wall_seconds or 0.0, made.peak_memory_bytes, made.bytes_kept)
    plan = estimate(orders, tmp_path, 1, measure=False)
    assert (plan.runs, plan.stored, plan.unknown) == (3, 1, 0)
    assert [kind.cost for kind in plan.kinds] == [cost] * 3
    assert estimate([orders[0]], tmp_path, 1, measure=False).kinds[0].cost is None
    # In a folder of small results, say, with no run folder any more.
    assert estimate([orders[0]], tmp_path / "none", 1, measure=False, like={orders[1]: made}).kinds[0].cost == cost
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protocore.bench.cells.plan._measure", lambda cells, *limits: asked.extend(cells) or [cost])
        estimate(orders, tmp_path / "none", 1)
    assert asked == orders[:1]


def test_what_takes_too_long_says_what_its_steps_take_and_is_tried_last(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nprintf '{\"ready\": true}\\n{\"least\": 9000}\\n'\nexec sleep 600\n")
    slow.chmod(0o755)
    cells = tiny(["finetune", "er"], [0])
    with monkeypatch.context() as patch:
        patch.setattr("protocore.bench.cells.plan.sys.executable", str(slow))
        assert list(_measure(cells[:1], 1, 2.0, 600.0)) == [f"{TOO_LONG}; its steps alone take about 2.5 hours"]
    assert list(_measure(cells, 1, 2.0, 0.0)) == [NO_TIME, NO_TIME]

    # A later plan knows why, and begins with the others.
    answers: list[list[Cost | str]] = [[f"{TOO_LONG}; x", NO_TIME], [Cost(8.0, 1), NO_TIME], [Cost(9.0, 1)]]
    asked = []
    monkeypatch.setattr("protocore.bench.cells.plan._measure",
                        lambda cells, *limits: asked.append(cells) or answers.pop(0))
    told = [estimate(cells, tmp_path, 1).kinds for _ in range(3)]
    assert [[kind.cost.seconds if kind.cost else kind.why for kind in kinds] for kinds in told] == [
        [f"{TOO_LONG}; x", NO_TIME], [f"{TOO_LONG}; x", 8.0], [9.0, 8.0]]
    assert asked == [cells, cells[::-1], cells[:1]]
    assert reasons(Plan(told[0], 1, 0.0))[1] == f"Not known: er. {NO_TIME}"


def test_measuring_tells_early_what_all_steps_take() -> None:
    (cell,) = tiny(["er"], [0])
    told: list[float] = []
    cost_of(cell.config(), told.append)
    assert len(told) == STEPS - 1
    assert min(told) > 0


def test_seconds_grow_with_steps_tasks_and_pictures() -> None:
    def stream(tasks: int, size: int, tests: int) -> Any:
        class Fake:
            def __init__(self) -> None:
                self.tests = [SimpleNamespace(labels=range(tests))] * tasks

            def __len__(self) -> int:
                return tasks

            def task_size(self, index: int) -> int:
                return size

        return Fake()

    first, later = Step(1.0, 5.0, 0.1), Step(2.0, 7.0, 0.0)
    er = configure({"method": "er", "benchmark": "digits", "epochs": 3, "batch": 10})
    # 6 steps of 1 s, 5 s and 20 pictures; 6 steps of 2 s and 7 s; 4 + 8 test pictures of 0.01 s
    assert scaled(er, stream(2, 20, 4), first, later, 0.01) == pytest.approx(6 + 5 + 2 + 12 + 7 + 0.12)
    joint = configure({"method": "joint", "benchmark": "digits", "epochs": 3, "batch": 10})
    assert scaled(joint, stream(2, 20, 4), first, later, 0.01) == pytest.approx(12 + 5 + 4 + 0.08)
    online = configure({"method": "er", "benchmark": "digits", "online": True, "batch": 10})
    assert scaled(online, stream(1, 25, 4), first, later, 0.0) == pytest.approx(3 + 5 + 2.5)


def test_workers_share_the_time() -> None:
    assert makespan([3, 3, 3, 3], 2) == 6
    assert makespan([1, 1, 4], 2) == 5
    assert makespan([], 2) == 0
