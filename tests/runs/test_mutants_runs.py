"""Small changes of the code that no other test would see."""

import json
from pathlib import Path

import pytest
from torch import Tensor

from helpers import learner
from protocore.data.stream import Stream
from protocore.learn.evaluate import Row
from protocore.learn.learner import Learner
from protocore.methods.base import Batch
from protocore.methods.er import ER
from protocore.runs import job
from protocore.runs.configure import configure
from protocore.runs.costs import Meter
from protocore.runs.job import run
from protocore.schema import Fields


def test_after_a_measurement_inside_a_window_the_network_goes_on_in_training_mode(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    loss = ER.loss

    def watched(self: ER, batch: Batch) -> Tensor:
        modes.append(self.net.training)
        return loss(self, batch)

    monkeypatch.setattr(ER, "loss", watched)
    config = configure({"method": "er", "benchmark": "digits", "online": True, "online_window": 1000, "spc": 2,
                        "images_per_class": 15, "batch": 10, "backbone": "mlp", "width": 8, "tasks": 3,
                        "augment": "none", "threads": 1})
    result = run(config, tmp_path)
    assert len(result.class_incremental.R) == 3  # two of the rows were measured inside the one window
    assert len(modes) == 9
    assert all(modes)


def test_online_what_takes_no_steps_any_more_is_measured_where_each_task_ends(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows end with the tasks here: a row that waits for the next window would be that of a learner of more."""
    measured: list[tuple[int, int]] = []
    evaluate = job.evaluate

    def watched(learner: Learner, stream: Stream, tasks: int, kept: dict[int, Tensor]) -> Row:
        measured.append((tasks, len(learner.method.seen)))
        return evaluate(learner, stream, tasks, kept)

    monkeypatch.setattr(job, "evaluate", watched)
    config = configure({"method": "fecam", "benchmark": "digits", "online": True, "online_window": 40,
                        "first_windows": 1, "images_per_class": 20, "batch": 10, "backbone": "mlp", "width": 8,
                        "tasks": 4, "augment": "none", "threads": 1})
    result = run(config, tmp_path)
    assert measured == [(1, 2), (2, 4), (3, 6), (4, 8)]
    assert [len(row) for row in result.class_incremental.R] == [1, 2, 3, 4]


def test_online_a_task_is_measured_at_the_very_step_that_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                ) -> None:
    measured: list[tuple[int, int]] = []
    evaluate = job.evaluate

    def watched(learner: Learner, stream: Stream, tasks: int, kept: dict[int, Tensor]) -> Row:
        measured.append((tasks, learner.images_learned))
        return evaluate(learner, stream, tasks, kept)

    monkeypatch.setattr(job, "evaluate", watched)
    config = configure({"method": "finetune", "benchmark": "digits", "online": True, "online_window": 1000,
                        "images_per_class": 20, "batch": 10, "backbone": "mlp", "width": 8, "tasks": 3,
                        "augment": "none", "threads": 1})
    run(config, tmp_path)
    assert measured == [(1, 40), (2, 80), (3, 120)]


@pytest.mark.parametrize("measured", [True, False])
def test_what_was_not_measured_from_the_beginning_is_not_told_however_often_a_run_goes_on(measured: bool) -> None:
    """The first checkpoint is of a version that measured nothing, those after it are of this one."""
    with Meter(learner("er")) as first:
        if not measured:
            first.take_up(None)
        state = json.loads(json.dumps(first.state()))
    for _ in range(2):
        with Meter(learner("er")) as later:
            later.take_up(Fields(state, "checkpoint", "begin anew"))
            state = json.loads(json.dumps(later.state()))
            costs = later.costs()
            assert (costs.wall_seconds is not None) is (costs.steps is not None) is measured
            assert costs.peak_memory_bytes > 0
