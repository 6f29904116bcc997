"""Trackers that people use, each behind an extra. Their libraries are imported when one is asked for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from protocore.errors import UserError
from protocore.registry import Registry
from protocore.runs.reporters import Begun
from protocore.runs.tracking import Tracker

PROJECT = "protocore"
LONGEST = 500  # characters of a setting that MLflow takes


def library(name: str, tracker: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"--track {tracker} needs the extra: pip install 'protocore[{tracker}]' ({error})") from None


def settings_of(run: Begun) -> dict[str, Any]:
    """What the run is, without paths of the machine."""
    return {**asdict(run.config.settings), **asdict(run.config.options), "data_root": None}


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the run: `tensorboard --logdir runs` shows all runs."""

    name = "tensorboard"

    def __init__(self) -> None:
        self.library = library("torch.utils.tensorboard", self.name)

    def open(self, run: Begun, known_as: str | None) -> str:
        # From `purge_step` on, points that an earlier process has written are hidden.
        purge = 0 if run.anew or known_as is None else run.steps + 1
        self.writer = self.library.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)
        return "tensorboard"

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, finished: bool) -> None:
        self.writer.close()


class WandB(Tracker):
    """Weights & Biases. WANDB_MODE=offline needs neither account nor network; `wandb sync` sends such runs later.

    Of a run that goes on, points up to the last one that it has are not taken a second time.
    """

    name = "wandb"

    def __init__(self) -> None:
        self.library = library("wandb", self.name)

    def open(self, run: Begun, known_as: str | None) -> str:
        known_as = known_as or uuid.uuid4().hex[:16]
        try:
            self.run = self.library.init(project=os.environ.get("WANDB_PROJECT", PROJECT), id=known_as, resume="allow",
                                         name=run.folder.name, dir=str(run.folder), config=settings_of(run))
        except Exception as error:  # no account, no network, whatever the library raises
            raise UserError(f"--track wandb: it cannot be opened ({error}); log in with `wandb login`, or set "
                            "WANDB_MODE=offline") from error
        return known_as

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow(Tracker):
    """MLflow, where MLFLOW_TRACKING_URI says; the experiment is MLFLOW_EXPERIMENT_NAME's, else `protocore`."""

    name = "mlflow"

    def __init__(self) -> None:
        self.library = library("mlflow", self.name)
        self.upto: dict[str, int] = {}  # the last step that a metric has there
        self.resumed = False

    def open(self, run: Begun, known_as: str | None) -> str:
        self.client = self.library.MlflowClient()
        self.upto, self.resumed = {}, known_as is not None
        if known_as is None:
            named = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            there = self.client.get_experiment_by_name(named)
            experiment = self.client.create_experiment(named) if there is None else there.experiment_id
            known_as = str(self.client.create_run(experiment, run_name=run.folder.name).info.run_id)
            for name, value in settings_of(run).items():
                self.client.log_param(known_as, name, str(value)[:LONGEST])
        else:
            self.client.update_run(known_as, status="RUNNING")
        self.run = known_as
        return known_as

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            if step > self._last(name):
                self.client.log_metric(self.run, name, value, step=step)

    def _last(self, name: str) -> int:
        """MLflow keeps every point that it is given: those that are there from before are not given again."""
        if name not in self.upto:
            there = self.client.get_metric_history(self.run, name) if self.resumed else []
            self.upto[name] = max((point.step for point in there), default=-1)
        return self.upto[name]

    def close(self, *, finished: bool) -> None:
        self.client.set_terminated(self.run, status="FINISHED" if finished else "KILLED")


TRACKERS: Registry[Callable[[], Tracker]] = Registry("tracker", {
    "tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}.items())
