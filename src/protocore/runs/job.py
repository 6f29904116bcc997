"""A whole run: a learner over a stream, evaluated after each task, checkpointed, stored in a folder."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protocore.config import Resolved, plural
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream, Task
from protocore.errors import DataError, UserError
from protocore.files import serialise, write_atomic, write_json
from protocore.learn.checkpoint import read_checkpoint
from protocore.learn.device import peak_bytes, resident_bytes
from protocore.learn.evaluate import Row, evaluate
from protocore.learn.learner import Learner
from protocore.learn.loop import plan_for
from protocore.learn.room import check_stream, window_size
from protocore.methods import method_named
from protocore.runs.configure import command_of
from protocore.runs.folder import RunFolder, differences
from protocore.runs.notes import notes_after, notes_before
from protocore.runs.reporters import Reporter, Together
from protocore.runs.result import Result, Scores
from protocore.schema import Fields
from protocore.version import __version__

_RESTART = "start again with --restart"


@dataclass
class Progress:
    """Where a run stands: position and what has been measured. It is part of every checkpoint."""

    position: int = 0  # tasks learned, or (online) samples seen
    step: int = 0  # steps done of the task or window that is under way
    class_il: list[list[float]] = field(default_factory=list)
    task_il: list[list[float]] = field(default_factory=list)
    per_class: list[dict[str, float]] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)  # the process's memory after each task

    def add(self, row: Row, kept: int) -> None:
        self.class_il.append(row.class_incremental)
        self.task_il.append(row.task_incremental)
        self.per_class.append({str(k): v for k, v in row.per_class.items()})
        self.kept.append(kept)
        self.resident.append(resident_bytes())

    @classmethod
    def read(cls, f: Fields) -> Progress:
        """What a checkpoint says, every field of its kind and all measurements of the same tasks."""
        rows = {name: f.matrix(name) if f.get(name) else [] for name in ("class_il", "task_il")}
        per_class = [{key: row.number(key) for key in row.values} for row in f.objects("per_class")]
        progress = cls(f.whole("position"), f.whole("step"), rows["class_il"], rows["task_il"], per_class,
                       f.wholes("kept"), f.wholes("resident"))
        if len({len(v) for v in (progress.class_il, progress.task_il, per_class, progress.kept,
                                 progress.resident)}) != 1:
            f.refuse("kept", "one measurement of each kind a task", progress.kept)
        return progress


def learner_for(config: Resolved, stream: Stream) -> Learner:
    """A learner for this stream's images."""
    return Learner.of(config, stream.image_shape, mean=stream.mean, std=stream.std, classes=len(stream.class_names))


def stored(config: Resolved, folder: RunFolder) -> Result | None:
    """The result of this very run, if the folder has it: the same settings, and the same data where they are here."""
    result = folder.finished()
    if result is None:
        return None
    if others := differences(asdict(result), config):
        raise UserError(f"--out {folder.path} holds another run's result ({'; '.join(others[:3])}"
                        f"{'; …' if len(others) > 3 else ''}): give another folder, or --again to run anew there")
    try:
        digest = open_stream(config.settings).digest
    except DataError:  # what was measured can be shown on a machine that has not the data
        return result
    if result.data_digest not in (None, digest):
        raise UserError(f"{folder.path} holds the result of other data under the same name "
                        f"({plural(result.classes, 'class')}, digest {str(result.data_digest)[:12]}, now "
                        f"{digest[:12]}): --again runs it anew on what is there now, --out FOLDER keeps both")
    return result


def run(config: Resolved, folder: RunFolder | Path, *, reporters: Sequence[Reporter] = (),
        checkpoint_seconds: float = 30, restart: bool = False, stop: Callable[[], bool] | None = None,
        finished: Callable[[Learner, Result], None] | None = None) -> Result:
    """Learn the whole stream, or go on where the folder's checkpoint left off. Returns what is in result.json.

    `stop` is asked after every step; `finished` is called with the learner and the result before they are stored.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    s = config.settings
    fits = method_named(s.method).fits
    for wish, name in ((s.online, "online"), (s.blurry, "blurry"), (not s.online, "offline")):
        if wish and name not in fits:
            raise UserError(f"{s.method} does not fit {name} learning; it fits {', '.join(fits)}")
    with folder.hold():
        folder.tidy()
        if restart:
            folder.checkpoint.unlink(missing_ok=True)
        return _run(config, folder, Together(reporters), checkpoint_seconds, stop, finished)


def _run(config: Resolved, folder: RunFolder, reporter: Reporter, every: float, stop: Callable[[], bool] | None,
         finished: Callable[[Learner, Result], None] | None) -> Result:
    stream = open_stream(config.settings)
    reporter.data(stream.notes)
    learner = learner_for(config, stream)
    job = _Job(learner, stream, folder, reporter, every, stop)
    notes = notes_before(config, stream)
    for note in notes:
        reporter.note(note)
    if not folder.checkpoint.exists():  # else it is there, of the run that is gone on with
        check_stream(learner, stream)
        folder.write_config(config)
    job.learn()
    notes += (late := notes_after(config, stream, job.progress.class_il, job.progress.task_il))
    for note in late:
        reporter.note(note)
    result = job.result(notes)
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
    progress: Progress = field(default_factory=Progress)
    saved: float = field(default_factory=time.monotonic)
    coded: dict[int, Tensor] = field(default_factory=dict)  # test images in codec space, made once

    def learn(self) -> None:
        if self.learner.settings.online:
            self.online()
        elif self.learner.method.sees_everything:
            self.everything()
        else:
            self.offline()

    def save(self) -> None:
        self.learner.save(self.folder.checkpoint, {"run": asdict(self.progress), "data_digest": self.stream.digest})
        self.saved = time.monotonic()

    def asked(self) -> bool:
        return self.stop is not None and self.stop()

    def on_step(self, done: int, of: int, loss: Tensor) -> None:
        self.progress.step = done
        self.reporter.step(done, of, loss)
        asked = self.asked()
        if done < of and (asked or time.monotonic() - self.saved > self.every):
            self.save()
        if asked and done < of:
            raise Interrupted

    def measure(self, tasks: int) -> None:
        row = evaluate(self.learner, self.stream, tasks, self.coded)
        kept = self.learner.ledger().total
        self.progress.add(row, kept)
        self.reporter.row(tasks - 1, row, kept)

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
                if self.asked():
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
            asked = self.progress.position < len(rows) and self.asked()
            if asked or time.monotonic() - self.saved > self.every:
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
            task = open_task(progress.position) if progress.step else None
            if task is not None and progress.step >= steps(task):
                raise DataError(f"{path}: damaged, it stands at step {progress.step:,} of {steps(task):,}")
            if others := differences({"settings": header.settings, "options": header.options}, config):
                raise UserError(f"{path} was made with other settings ({'; '.join(others[:3])}); go on with the same")
            if digest != self.stream.digest:
                raise DataError(f"{path}: the data have changed since (digest {digest[:12]}, now "
                                f"{self.stream.digest[:12]}); bring back those that the run began with")
            self.learner.restore(path, task)
        except UserError as error:
            raise type(error)(f"{error}, or {_RESTART}".replace(f"{_RESTART}, or {_RESTART}", _RESTART)) from None
        if header.threads != torch.get_num_threads():
            self.reporter.note(f"This run began with {plural(header.threads, 'thread')} and goes on with "
                               f"{torch.get_num_threads()}: the last bits of its numbers may be others than those of a "
                               f"run in one go; --threads {header.threads} keeps them")
        self.progress = progress
        return task

    def result(self, notes: list[str]) -> Result:
        learner, progress = self.learner, self.progress
        seconds = {**learner.seconds, **learner.tools.seconds}
        config: dict[str, Any] = learner.config.to_json()
        return Result(
            command=command_of(learner.config), **config, tasks=len(self.stream),
            classes=len(self.stream.class_names), class_names=list(self.stream.class_names),
            class_incremental=Scores.of(progress.class_il), task_incremental=Scores.of(progress.task_il),
            per_class=progress.per_class, ledger=learner.ledger(),
            seconds={k: round(v, 3) for k, v in seconds.items()},
            data_digest=self.stream.digest, code_version=__version__,
            machine={"python": platform.python_version(), "torch": torch.__version__,
                     "threads": torch.get_num_threads(), "processor": platform.machine(),
                     "capability": torch.backends.cpu.get_cpu_capability(), "system": platform.system()},
            decoder_pays_from=_pays_from(learner), bytes_after_each_task=progress.kept,
            images_per_second=round(learner.images_learned / max(learner.seconds["learn"], 1e-9), 1),
            peak_memory_bytes=peak_bytes(), resident_after_each_task=progress.resident, notes=notes)


def _pays_from(learner: Learner) -> int | None:
    """Classes from which the decoder's own bytes are less than what it saves, with exemplars as there are now."""
    stores, codec = learner.method.stores(), learner.tools.codec
    classes = len({c for store in stores for c in store.classes.tolist()})
    saved = sum(store.saved_bytes() for store in stores)
    return -(-codec.shared_bytes * classes // saved) if saved > 0 and codec.shared_bytes else None
