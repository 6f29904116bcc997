"""A whole run: a learner over a stream, evaluated after each task, checkpointed, stored in a folder."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protocore.config import Resolved, Settings, plural
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream, Task
from protocore.errors import DataError, UserError
from protocore.files import serialise, write_atomic, write_json
from protocore.learn.ahead import evaluate_ahead
from protocore.learn.checkpoint import read_checkpoint
from protocore.learn.evaluate import evaluate
from protocore.learn.learner import Learner
from protocore.learn.loop import plan_for
from protocore.learn.room import check_stream, window_size
from protocore.learn.weights import read_weights
from protocore.methods import method_named
from protocore.ranks.group import agree, alone, anyone, digest, first, leads, told, world
from protocore.runs.configure import command_of
from protocore.runs.costs import Meter
from protocore.runs.folder import RunFolder, differences
from protocore.runs.notes import notes_after, notes_before, notes_going_on
from protocore.runs.progress import Progress
from protocore.runs.reporters import Begun, Reporter, Together
from protocore.runs.result import Result, Scores, result_of
from protocore.runs.tracking import tracking_by
from protocore.schema import Fields
from protocore.version import __version__

_RESTART = "start again with --restart"


def learner_for(config: Resolved, stream: Stream) -> Learner:
    """A learner for this stream's images."""
    return Learner.of(config, stream.image_shape, mean=stream.mean, std=stream.std, classes=len(stream.class_names))


def stored(config: Resolved, folder: RunFolder) -> Result | None:
    """The result of this very run, if the folder has it: the same settings, and the same data where they are here."""
    result = folder.finished()
    agree(f"result in {folder.path}", str(result is None))
    if result is None:
        return None
    if config.settings.forward_transfer and result.tasks > 1 and not result.class_incremental.untrained:
        return None
    if others := differences(asdict(result), config):
        raise UserError(f"--out {folder.path} holds another run's result ({'; '.join(others[:3])}"
                        f"{'; …' if len(others) > 3 else ''}): give another folder, or --again to run anew there")
    try:
        digest, file = open_stream(config.settings).digest, config.settings.weights
        weights = result.weights if file is None else read_weights(Path(file).expanduser()).digest
    except DataError:  # what was measured can be shown on a machine that has not the data
        return result
    if result.weights != weights:
        raise UserError(f"{folder.path} holds the result of other weights under the name {file}: --again runs it anew "
                        "with those that are there now, --out FOLDER keeps both")
    if result.data_digest not in (None, digest):
        raise UserError(f"{folder.path} holds the result of other data under the same name "
                        f"({plural(result.classes, 'class')}, digest {str(result.data_digest)[:12]}, now "
                        f"{digest[:12]}): --again runs it anew on what is there now, --out FOLDER keeps both")
    return result


def run(config: Resolved, folder: RunFolder | Path, *, reporters: Sequence[Reporter] = (),
        checkpoint_seconds: float = 30, restart: bool = False, stop: Callable[[], bool] | None = None,
        finished: Callable[[Learner, Result], None] | None = None, track: str | Sequence[str] = (),
        keep_stored: bool = False) -> Result:
    """Learn the whole stream, or go on where the folder's checkpoint left off. Returns what is in result.json.

    `stop` is asked after every step; `finished` is called with the learner and the result before they are stored.
    `track` names trackers; a metrics.csv is written in any case. `keep_stored`: a result that another process has
    stored by the time that the folder is ours is returned as it is.
    """
    tracking = tracking_by(track)
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    s = config.settings
    check_forward_transfer(s)
    fits = method_named(s.method).fits
    for wish, name in ((s.online, "online"), (s.blurry, "blurry"), (not s.online, "offline")):
        if wish and name not in fits:
            raise UserError(f"{s.method} does not fit {name} learning; it fits {', '.join(fits)}")
    with folder.hold() if leads() else nullcontext():
        if leads():
            folder.tidy()
        if keep_stored and (there := stored(config, folder)):
            return there
        if restart and leads():
            folder.checkpoint.unlink(missing_ok=True)
        tracking.tell = Together(reporters).note
        reporter = Together([*reporters, tracking] if leads() else [])
        try:
            return _run(config, folder, reporter, checkpoint_seconds, stop, finished)
        finally:
            reporter.close()


def _run(config: Resolved, folder: RunFolder, reporter: Reporter, every: float, stop: Callable[[], bool] | None,
         finished: Callable[[Learner, Result], None] | None) -> Result:
    stream = first(lambda: open_stream(config.settings))
    agree("run, version or data", f"{command_of(config)} {__version__} {torch.__version__} {stream.digest}")
    reporter.data(stream.notes)
    learner = learner_for(config, stream)
    if (features := os.environ.get("PROTOCORE_FEATURES")) and world() == 1:
        learner.keep_features(Path(features))
    with Meter(learner) as meter:
        return _measured(config, _Job(learner, stream, folder, reporter, every, stop, meter), finished)


def _measured(config: Resolved, job: _Job, finished: Callable[[Learner, Result], None] | None) -> Result:
    learner, stream, folder, reporter = job.learner, job.stream, job.folder, job.reporter
    notes = notes_before(config, stream)
    for note in notes:
        reporter.note(note)
    if not folder.checkpoint.exists():  # else it is there, of the run that is gone on with
        check_stream(learner, stream)
        if leads():
            folder.write_config(config)
    job.learn()
    notes += (late := notes_after(config, stream, job.progress.class_il, job.progress.task_il))
    for note in late:
        reporter.note(note)
    result = job.result(notes)
    if leads():
        with alone():
            result = _written(job, result, finished)
    if world() == 1:
        return result
    said = told(json.dumps(result.to_json()) if leads() else None)
    return result if leads() else result_of(json.loads(said), folder.result)


def _written(job: _Job, result: Result, finished: Callable[[Learner, Result], None] | None) -> Result:
    learner, folder = job.learner, job.folder
    write_atomic(folder.memory, serialise(learner.memory()))
    learner.save_pack(folder.pack)
    learner.save(folder.learner)
    if records := learner.method.records():
        write_atomic(folder.records, serialise(records))
    result = replace(result, files=folder.sums())
    if finished:
        finished(learner, result)
    write_json(folder.result, result.to_json())
    folder.checkpoint.unlink(missing_ok=True)
    job.reporter.end(result)
    return result


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass
class _Job:
    learner: Learner
    stream: Stream
    folder: RunFolder
    reporter: Reporter
    every: float
    stop: Callable[[], bool] | None
    meter: Meter
    progress: Progress = field(default_factory=Progress)
    saved: float = field(default_factory=time.monotonic)
    tests: dict[int, Tensor] = field(default_factory=dict)  # test images that are made ready once, by task

    def learn(self) -> None:
        if self.learner.settings.online:
            self.online()
        elif self.learner.method.sees_everything:
            self.everything()
        else:
            self.offline()

    def save(self) -> None:
        if leads():
            with alone():
                self.learner.save(self.folder.checkpoint, {
                    "run": asdict(self.progress), "data_digest": self.stream.digest,
                    "precision": self.learner.machine.precision, "spent": self.meter.state()})
        self.saved = time.monotonic()

    def wishes(self) -> list[bool]:
        """Whether to stop, and whether a checkpoint is due: in all processes alike."""
        return anyone(self.stop is not None and self.stop(), time.monotonic() - self.saved > self.every)

    def on_step(self, done: int, of: int, loss: Tensor) -> None:
        self.progress.step = done
        self.progress.steps += 1
        self.reporter.step(done, of, loss)
        asked, due = self.wishes()
        if done < of and (asked or due):
            self.save()
        if asked and done < of:
            raise Interrupted

    def measure(self, tasks: int) -> None:
        with self.learner.tools.timed("evaluate"):
            row = evaluate(self.learner, self.stream, tasks, self.tests)
            if self.progress.untrained and tasks < len(self.stream):
                self.progress.ahead.append(self.ahead(tasks))
        if world() > 1:
            state = self.learner.memory() | self.learner.net.state_dict()
            agree(f"network or memory after task {tasks}", digest(state))
        kept = self.learner.ledger().total
        self.progress.add(row, kept)
        self.reporter.row(tasks - 1, row, kept)

    def ahead(self, index: int) -> list[float]:
        return list(evaluate_ahead(self.learner, self.stream, index, self.tests))

    def begin(self, *, anew: bool) -> None:
        """The run begins or goes on; what only an untrained network can tell is measured now."""
        progress = self.progress
        if anew and self.learner.settings.forward_transfer:
            with self.learner.tools.timed("evaluate"):
                progress.untrained = [self.ahead(index) for index in range(1, len(self.stream))]
        self.reporter.begin(Begun(self.learner.config, self.folder.path, anew, progress.steps, len(progress.class_il)))

    def offline(self) -> None:
        task = self._reopen(len(self.stream), lambda position: self.stream.open(position),
                            lambda task: plan_for(task, self.learner.settings, 0).steps)
        while self.progress.position < len(self.stream):
            index = self.progress.position
            task = task or self.stream.open(index)
            self.reporter.task(index, len(self.stream), len(task.classes))
            self.learner.learn(task, progress=self.reporter.inner, on_step=self.on_step, start=self.progress.step)
            task, self.progress.step, self.progress.position = None, 0, index + 1
            self.measure(index + 1)
            if self.progress.position < len(self.stream):
                self.save()
                if self.wishes()[0]:
                    raise Interrupted

    def online(self) -> None:
        """One pass in windows that know nothing of task borders; evaluated where a task ends."""
        s = self.learner.settings
        rows, ends = self.stream.online_rows(s.seed)
        window = window_size(s)

        def cut(start: int) -> Task:
            return self.stream.window(rows[start : start + window])

        task = self._reopen(len(rows), cut, lambda task: -(-len(task) // s.batch))
        while self.progress.position < len(rows):
            task = task or cut(self.progress.position)
            size, start = len(task), self.progress.position
            self.reporter.task(len(self.progress.class_il), len(self.stream), len(task.classes))

            def on_step(done: int, of: int, loss: Tensor, start: int = start) -> None:
                # The last row waits for the end-of-window work, as a device would that has come to rest.
                while (row := len(self.progress.class_il)) < len(ends) - 1 and start + done * s.batch >= ends[row]:
                    self.measure(row + 1)
                    self.learner.net.train()
                self.on_step(done, of, loss)

            self.learner.learn_window(task, progress=self.reporter.inner, on_step=on_step,
                                      start=self.progress.step)
            task, self.progress.step, self.progress.position = None, 0, start + size
            # A method that no longer trains takes no steps: its rows are due all the same.
            while (row := len(self.progress.class_il)) < len(ends) - 1 and self.progress.position >= ends[row]:
                self.measure(row + 1)
            asked, due = self.wishes()
            asked = asked and self.progress.position < len(rows)
            if asked or due:
                self.save()
            if asked:
                raise Interrupted
        self.measure(len(self.stream))

    def everything(self) -> None:
        task = self._reopen(0, lambda position: self.stream.everything(),
                            lambda task: plan_for(task, self.learner.settings, 0).steps)
        task = task or self.stream.everything()
        self.reporter.task(0, 1, len(task.classes))
        self.learner.learn(task, on_step=self.on_step, start=self.progress.step)
        self.measure(len(self.stream))

    def _reopen(self, last: int, open_task: Callable[[int], Task], steps: Callable[[Task], int]) -> Task | None:
        """Go on from a checkpoint, if there is one; the task is open again where it was saved inside one."""
        path, config = self.folder.checkpoint, self.learner.config
        if not path.exists():
            agree(f"checkpoint in {self.folder.path}", "none")
            self.begin(anew=True)
            return None
        try:
            header = read_checkpoint(path).header
            extra = Fields(header.extra, path, _RESTART, "extra.")
            digest, progress = extra.text("data_digest"), Progress.read(extra.fields("run"))
            if progress.position > last or (progress.step and progress.position >= max(last, 1)):
                raise DataError(f"{path}: damaged, it stands at {progress.position:,} of {last:,}")
            rows = len(progress.class_il)
            offline = not self.learner.settings.online and not self.learner.method.sees_everything
            if rows > len(self.stream) or (offline and rows != progress.position) or any(
                    len(row) != i + 1 for r in (progress.class_il, progress.task_il) for i, row in enumerate(r)):
                raise DataError(f"{path}: damaged, its measurements are not those of {progress.position:,} tasks")
            if header.classes != list(self.stream.class_names)[: len(header.classes)]:
                raise DataError(f"{path}: damaged, its classes are not those of the data")
            if progress.step and not header.has_optimizer:
                raise DataError(f"{path}: damaged, it stands inside a task and has no optimiser")
            if self.learner.settings.forward_transfer and len(progress.untrained) != len(self.stream) - 1:
                raise UserError(f"{path} was begun without --forward-transfer; go on without it")
            if progress.untrained and (len(progress.untrained) != len(self.stream) - 1
                                       or len(progress.ahead) != min(rows, len(self.stream) - 1)):
                raise DataError(f"{path}: damaged, it does not measure each task ahead once")
            task = open_task(progress.position) if progress.step else None
            if task is not None and progress.step >= steps(task):
                raise DataError(f"{path}: damaged, it stands at step {progress.step:,} of {steps(task):,}")
            if others := differences({"settings": header.settings, "options": header.options}, config):
                raise UserError(f"{path} was made with other settings ({'; '.join(others[:3])}); go on with the same")
            if digest != self.stream.digest:
                raise DataError(f"{path}: the data have changed since (digest {digest[:12]}, now "
                                f"{self.stream.digest[:12]}); bring back those that the run began with")
            self.learner.restore(path, task)
            self.meter.take_up(extra.fields("spent") if "spent" in extra.values else None)
        except UserError as error:
            raise type(error)(f"{error}, or {_RESTART}".replace(f"{_RESTART}, or {_RESTART}", _RESTART)) from None
        agree(f"checkpoint in {self.folder.path}", str(header))
        for note in notes_going_on(header, self.learner.machine.precision):
            self.reporter.note(note)
        self.progress = progress
        self.begin(anew=False)
        return task

    def result(self, notes: list[str]) -> Result:
        learner, progress, costs = self.learner, self.progress, self.meter.costs(predict=True)
        config: dict[str, Any] = learner.config.to_json()
        return Result(
            command=command_of(learner.config), **config, tasks=len(self.stream),
            classes=len(self.stream.class_names), class_names=list(self.stream.class_names),
            class_incremental=Scores.of(progress.class_il, *_transfer(progress, 0)),
            task_incremental=Scores.of(progress.task_il, *_transfer(progress, 1)),
            per_class=progress.per_class, ledger=learner.ledger(),
            seconds={k: _milli(v) for k, v in learner.seconds.items()},
            data_digest=self.stream.digest, weights=learner.weights or None,
            training_pictures=sum(map(self.stream.task_size, range(len(self.stream)))), code_version=__version__,
            machine={"python": platform.python_version(), "torch": torch.__version__,
                     "threads": torch.get_num_threads(), "processes": world(),
                     "precision": learner.machine.precision, "processor": platform.machine(),
                     "capability": torch.backends.cpu.get_cpu_capability(), "system": platform.system()},
            decoder_pays_from=_pays_from(learner), bytes_after_each_task=progress.kept,
            images_per_second=round(learner.images_learned / max(learner.seconds["learn"], 1e-9), 1),
            peak_memory_bytes=costs.peak_memory_bytes, resident_after_each_task=progress.resident, notes=notes,
            wall_seconds=None if costs.wall_seconds is None else math.ceil(costs.wall_seconds * 1000) / 1000,
            device_memory_bytes=costs.device_memory_bytes, energy_joules=costs.energy_joules, steps=costs.steps,
            flops=costs.flops)


def _milli(seconds: float) -> float:
    """Rounded down: the parts are never more than the whole."""
    return math.floor(seconds * 1000) / 1000


def _transfer(progress: Progress, setting: int) -> list[list[float]]:
    return [[pair[setting] for pair in pairs] for pairs in (progress.ahead, progress.untrained)]


def check_forward_transfer(s: Settings) -> None:
    """Whether the method says anything about classes that it has not learned."""
    method = method_named(s.method).form_for(s)
    if s.forward_transfer and (method.sees_everything or not method.by_head):
        why = "learns all tasks at once" if method.sees_everything else "predicts by what it stores of classes seen"
        raise UserError(f"--forward-transfer: {s.method} {why}, so there is nothing to measure before a task is "
                        "learned; leave it out")


def _pays_from(learner: Learner) -> int | None:
    """Classes from which the decoder's own bytes are less than what it saves, with exemplars as there are now."""
    stores, codec = learner.method.stores(), learner.tools.codec
    classes = len({c for store in stores for c in store.classes.tolist()})
    saved = sum(store.saved_bytes() for store in stores)
    return -(-codec.shared_bytes * classes // saved) if saved > 0 and codec.shared_bytes else None
