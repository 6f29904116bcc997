"""Points of a run: metrics.csv always, and trackers, each once also after an interruption."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from protocore.cli import main
from protocore.errors import UserError
from protocore.runs.configure import configure
from protocore.runs.job import Interrupted, run
from protocore.runs.reporters import Begun, Reporter
from protocore.runs.trackers import TRACKERS
from protocore.runs.tracking import Tracker, Tracking, tracking_by

SMALL = {"benchmark": "digits", "method": "er", "tasks": 2, "images_per_class": 12, "epochs": 6, "batch": 8,
         "replay_batch": 8, "backbone": "mlp", "width": 8, "threads": 1}  # 18 steps a task


def config(**more: Any):
    return configure(SMALL | more)


def rows(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


def interrupted(folder: Path, after: int, **more: Any) -> None:
    """Stopped after so many steps, with points behind its checkpoint as a killed process leaves them."""
    left = iter([False] * (after - 1) + [True])
    with pytest.raises(Interrupted):
        run(config(), folder, stop=lambda: next(left), **more)


def same(found: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without what depends on the clock."""
    return [row for row in found if "seconds" not in row[2] and "peak" not in row[2]]


def test_a_file_of_points_is_always_written(tmp_path: Path) -> None:
    result = run(config(), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert found[0] == ("task", "step", "metric", "value")
    loss = [(task, step) for task, step, name, _ in found if name == "train/loss"]
    assert loss == [("1", "10"), ("1", "18"), ("2", "28"), ("2", "36")]
    points = {(task, name): float(value) for task, _, name, value in found[1:]}
    assert [points["2", f"class_incremental/task_{j}"] for j in (1, 2)] == list(result.class_incremental.R[1])
    assert points["2", "final/class_incremental/A_T"] == result.class_incremental.A_T
    assert points["1", "memory/bytes_kept"] == result.bytes_after_each_task[0]
    assert points["2", "final/flops/learn"] == result.flops["learn"]


def test_a_run_that_goes_on_has_each_point_once(tmp_path: Path) -> None:
    run(config(), tmp_path / "whole")
    interrupted(tmp_path / "parts", 24)
    with (tmp_path / "parts" / "metrics.csv").open("a") as file:  # what came after the checkpoint, cut off at the end
        file.write("2,28,train/loss,7.0\n2,36,class_incremental/accuracy,1.0\n2,36,final/x,1.0\n2,3")
    run(config(), tmp_path / "parts")
    assert same(rows(tmp_path / "parts")) == same(rows(tmp_path / "whole"))


def test_a_run_anew_begins_a_new_file(tmp_path: Path) -> None:
    run(config(), tmp_path / "run")
    first = rows(tmp_path / "run")
    run(config(), tmp_path / "run", restart=True)
    assert same(rows(tmp_path / "run")) == same(first)


def test_a_loss_that_is_no_number_is_no_point(tmp_path: Path) -> None:
    tracking = Tracking()
    tracking.begin(Begun(config(), tmp_path, True, 0, 0))
    tracking.step(1, 1, float("nan"))
    tracking.close()
    assert rows(tmp_path) == [("task", "step", "metric", "value")]


def test_names_of_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown tracker 'tensorbord'; did you mean tensorboard\? \(known: "):
        tracking_by("tensorbord")
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UserError, match=rf"--track {name} needs the extra: pip install 'protocore\[{name}\]'"):
            tracking_by(["csv", name])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"'protocore\[tensorboard\]'"):
        tracking_by(("csv,tensorboard",))


def test_a_stored_run_says_that_no_tracker_was_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Silent(Tracker):
        name = "silent"

    words = ["run", "er", "digits", "--epochs", "1", "--images-per-class", "6", "--backbone", "mlp", "--width", "8",
             "--tasks", "2", "--runs", str(tmp_path), "--quiet", "--no-figures"]
    assert main(words) == 0
    TRACKERS.register("silent", Silent, replace=True)
    try:
        assert main([*words, "--track", "silent"]) == 0
    finally:
        del TRACKERS._things["silent"]
    assert "stored already, so silent was told nothing; " in (said := capsys.readouterr().err)
    assert "metrics.csv has its numbers, and --again" in said
    assert main([*words, "--track", "silent"]) == 2
    assert "unknown tracker 'silent'" in capsys.readouterr().err


class Frail(Tracker):
    """Fails from its second point on, and as it is closed."""

    name = "frail"
    points = 0

    def open(self, run: Begun, known_as: str | None) -> str:
        return "x"

    def log(self, values: Any, step: int) -> None:
        self.points += 1
        if self.points > 1:
            raise ConnectionError("the server is gone\nand more")

    def close(self, *, finished: bool) -> None:
        raise ConnectionError("still gone")


def test_a_tracker_that_fails_later_does_not_end_the_run(tmp_path: Path) -> None:
    class Hears(Reporter):
        notes: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    frail = Frail()
    TRACKERS.register("frail", lambda: frail, replace=True)
    try:
        result = run(config(), tmp_path / "run", track="frail", reporters=[Hears()])
    finally:
        del TRACKERS._things["frail"]
    assert frail.points == 2  # it is asked no more
    first, last = [note for note in Hears.notes if "frail" in note]
    assert first == ("--track frail failed (ConnectionError: the server is gone) and is told nothing more of this run; "
                     "metrics.csv has every point")
    assert "(ConnectionError: still gone)" in last
    assert ("2", "36", "final/class_incremental/A_T", repr(result.class_incremental.A_T)) in rows(tmp_path / "run")

    # Added to a run that goes on, it fails at the points from before: then nothing has been learned for nothing yet.
    (tmp_path / "run" / "trackers.json").unlink()
    tracking = Tracking([Frail()])
    with pytest.raises(UserError, match=r"--track frail: it cannot be opened .*the server is gone"):
        tracking.begin(Begun(config(), tmp_path / "run", False, 36, 2))


# -- TensorBoard -----------------------------------------------------------------------------------------------


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_has_each_point_once_also_after_an_interruption(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    whole = run(config(), tmp_path / "whole", track="tensorboard")
    interrupted(tmp_path / "parts", 24, track="tensorboard")
    run(config(), tmp_path / "parts", track="tensorboard")
    interrupted(tmp_path / "late", 24)  # a tracker that comes later gets the earlier points
    run(config(), tmp_path / "late", track=["tensorboard"])
    found = events(tmp_path / "whole")
    assert [step for step, _ in found["train/loss"]] == [10, 18, 28, 36]
    assert found["final/class_incremental/A_T"] == [(36, pytest.approx(whole.class_incremental.A_T))]
    for other in ("parts", "late"):
        there = events(tmp_path / other)
        assert there["train/loss"] == found["train/loss"]
        assert there["class_incremental/task_1"] == found["class_incremental/task_1"]
    run(config(), tmp_path / "whole", track="tensorboard", restart=True)
    assert events(tmp_path / "whole")["train/loss"] == found["train/loss"]


# -- W&B and MLflow, by what they are told ---------------------------------------------------------------------


class FakeWandb(ModuleType):
    """Keeps points by run as the server does: of a step that is past, nothing is taken."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, list[tuple[int, dict[str, float]]]] = {}
        self.ended: list[int] = []
        self.settings: dict[str, Any] = {}

    def init(self, *, project: str, id: str, resume: str, name: str, dir: str, config: dict[str, Any]) -> Any:
        assert (project, resume) == ("protocore", "allow")
        self.settings = config
        points = self.runs.setdefault(id, [])

        def log(values: dict[str, float], step: int) -> None:
            if not points or step >= points[-1][0]:
                points.append((step, values))

        return SimpleNamespace(log=log, finish=lambda exit_code: self.ended.append(exit_code))


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    interrupted(tmp_path / "run", 24, track="wandb")
    run(config(), tmp_path / "run", track="wandb")
    ((_, points),) = fake.runs.items()
    assert [step for step, values in points if "train/loss" in values] == [10, 18, 28, 36]
    assert fake.ended == [1, 0]
    assert fake.settings["method"] == "er"
    run(config(), tmp_path / "run", track="wandb", restart=True)
    assert len(fake.runs) == 2  # another run, not more of the same


def test_wandb_that_cannot_be_reached_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("wandb")

    def init(**_: Any) -> None:
        raise RuntimeError("no API key")

    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(UserError, match=r"--track wandb: .*no API key.*WANDB_MODE=offline"):
        run(config(), tmp_path / "run", track="wandb")


class FakeClient:
    """MLflow's client: it keeps every point that it is given."""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.points: dict[str, list[tuple[str, int, float]]] = {}
        self.params: dict[str, str] = {}
        self.states: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.points[name := f"{experiment} {run_name} {len(self.points)}"] = []
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def log_param(self, run: str, name: str, value: str) -> None:
        self.params[name] = value

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self.points[run].append((name, step, value))

    def get_metric_history(self, run: str, name: str) -> list[Any]:
        return [SimpleNamespace(step=step) for other, step, _ in self.points[run] if other == name]

    def update_run(self, run: str, status: str) -> None:
        self.states.append(status)

    def set_terminated(self, run: str, status: str) -> None:
        self.states.append(status)


def test_mlflow_goes_on_in_the_same_run_and_gets_each_point_once(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    client, fake = FakeClient(), ModuleType("mlflow")
    fake.MlflowClient = lambda: client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    interrupted(tmp_path / "run", 24, track="mlflow")
    ((name, points),) = client.points.items()
    points.append(("train/loss", 28, 1.0))  # of a process that was killed behind its checkpoint
    run(config(), tmp_path / "run", track="mlflow")
    assert list(client.points) == [name]
    assert [step for metric, step, _ in points if metric == "train/loss"] == [10, 18, 28, 36]
    assert len(points) == len({(metric, step) for metric, step, _ in points})
    assert client.states == ["KILLED", "RUNNING", "FINISHED"]
    assert client.params["method"] == "er"


# -- the real ones, where they are installed -------------------------------------------------------------------


def test_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(config(), tmp_path / "run", track="wandb")
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_real_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    interrupted(tmp_path / "run", 24, track="mlflow")
    run(config(), tmp_path / "run", track="mlflow")
    client = mlflow.MlflowClient()
    (there,) = client.search_runs([client.get_experiment_by_name("protocore").experiment_id])
    assert [p.step for p in client.get_metric_history(there.info.run_id, "train/loss")] == [10, 18, 28, 36]
