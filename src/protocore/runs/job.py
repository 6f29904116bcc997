"""A whole run: a learner over a stream, evaluated after each task, checkpointed, stored in a folder."""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protocore.config import Resolved, Settings, convert, flag, read_config_file, resolve
from protocore.data.benchmarks import benchmark_named, open_stream
from protocore.data.stream import Stream
from protocore.errors import DataError, UserError
from protocore.files import read_tensors, serialise, write_atomic, write_json
from protocore.memory.pack import write_pack
from protocore.methods import method_named
from protocore.learn.device import peak_bytes, resident_bytes
from protocore.learn.evaluate import Row, evaluate
from protocore.learn.learner import Learner
from protocore.learn.metrics import summary
from protocore.runs.notes import notes_after, notes_before
from protocore.runs.recipes import recipe_for
from protocore.learn.room import check_stream, window_size
from protocore.runs.reporters import Quiet, Reporter
from protocore.version import __version__


def configure(flags: dict[str, Any], *, config_file: Path | None = None,
              like: dict[str, Any] | None = None) -> Resolved:
    """Settings from all sources, the later ones winning: method, benchmark, preset, file or earlier run, flags.

    --online lies over the benchmark's preset and under the method's, whose batch sizes are published ones; its single
    pass lies over the method's epochs, unless the method says how many an online run takes.
    """
    given: dict[str, Any] = {}
    middle: list[tuple[str, dict[str, Any]]] = []
    if like is not None:
        middle.append(("--like", {**like["settings"], **like["options"]}))
    if config_file is not None:
        middle.append((f"--config {config_file.name}", read_config_file(config_file)))
    for _, layer in [*middle, ("flag", flags)]:
        given |= {k.replace("-", "_"): v for k, v in layer.items() if v is not None}
    method = method_named(str(given.get("method", "protocore")))
    name = str(given.get("benchmark", "digits"))
    benchmark, recipe, preset = benchmark_named(name), recipe_for(name), str(given.get("preset", "default"))
    wishes = {wish for wish in ("online", "cflat")
              if convert(Settings, wish, given.get(wish, method.defaults.get(wish, False)))}
    published = [(f"preset {key} of {method.name}", "online" in key.split(), layer)
                 for key, layer in method.presets.items() if _holds(key, preset, {*wishes, benchmark.source})]
    online = "online" in wishes
    layers = [
        (f"method {method.name}", method.defaults),
        (f"benchmark {name}", {k: v for k, v in recipe.defaults.items()
                               if k != "least_steps" or not {"epochs", "steps"} & given.keys()}),
        (f"benchmark {name} with --budget", recipe.with_budget if given.get("budget") and method.replays else {}),
        (f"preset {preset}", recipe.presets.get(preset, {})),
        ("--online", {"batch": 10, "replay_batch": 10} if online else {}),
        *((source, layer) for source, of_online, layer in published if not of_online),
        ("--online", {"epochs": 1, "least_steps": 0} if online else {}),
        *((source, layer) for source, of_online, layer in published if of_online),
        *middle,
        ("flag", {k: v for k, v in flags.items() if v is not None}),
    ]
    return resolve(layers, method.Options)


def _holds(key: str, preset: str, facts: set[str | None]) -> bool:
    """Whether a method's preset is meant: its name, then words for what else must be so (see `Method.presets`)."""
    name, *conditions = key.split()
    return name == preset and facts.issuperset(conditions)


def command_of(config: Resolved) -> str:
    """The command that gives this configuration: what did not come from defaults, benchmark or preset."""
    values = {**asdict(config.settings), **asdict(config.options)}
    words = ["protocore", "run", config.settings.method, config.settings.benchmark]
    for name, source in config.sources.items():
        chosen = source.startswith(("flag", "--")) and source != "--online"
        if chosen and name not in ("method", "benchmark", "data_root"):
            value = values[name]
            if isinstance(value, bool):
                words.append(flag(name) if value else flag(f"no_{name}"))
            elif value is not None:
                words += [flag(name), str(value)]
    return shlex.join(words)


@dataclass
class Run:
    """Where a run stands: position and what has been measured. Its dict is part of every checkpoint."""

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


def learner_for(config: Resolved, stream: Stream) -> Learner:
    """A learner for this benchmark's images."""
    benchmark, channels = benchmark_named(config.settings.benchmark), stream.image_shape[0]
    return Learner(config, stream.image_shape, mean=benchmark.mean[:channels], std=benchmark.std[:channels],
                   classes=len(stream.class_names))


def run(config: Resolved, folder: Path, *, reporter: Reporter | None = None, checkpoint_seconds: float = 30,
        restart: bool = False, stop: Callable[[], bool] | None = None,
        finished: Callable[[Learner, dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """Learn the whole stream, or go on where the folder's checkpoint left off. Returns what is in result.json.

    `stop` is asked after every step; `finished` is called with the learner and the result before they are stored.
    """
    reporter = reporter or Quiet()
    s = config.settings
    fits = method_named(s.method).fits
    for wish, name in ((s.online, "online"), (s.blurry, "blurry"), (not s.online, "offline")):
        if wish and name not in fits:
            raise UserError(f"{s.method} does not fit {name} learning; it fits {', '.join(fits)}")
    stream = open_stream(s)
    reporter.data(stream.notes)
    learner = learner_for(config, stream)
    job = _Job(learner, stream, Run(), folder, reporter, checkpoint_seconds, stop)
    notes = notes_before(config, stream)
    for note in notes:
        reporter.note(note)
    checkpoint = folder / "checkpoint.safetensors"
    if restart:
        checkpoint.unlink(missing_ok=True)
    for part in folder.glob(f".{checkpoint.name}.*"):  # half written when a run was killed
        part.unlink()
    if not checkpoint.exists():  # else it is there, of the run that is gone on with
        check_stream(learner, stream)
        write_json(folder / "config.json", config.to_json())
    if s.online:
        job.online(checkpoint)
    elif learner.method.sees_everything:
        job.everything(checkpoint)
    else:
        job.offline(checkpoint)
    notes += (late := notes_after(config, stream, job.run.class_il, job.run.task_il))
    for note in late:
        reporter.note(note)
    result = job.result(config) | {"notes": notes}
    learner.save_memory(folder / "memory.safetensors")
    write_pack(folder / "memory.pack", learner.memory(), class_names=learner.classes_, codec=learner.tools.codec,
               method=s.method)
    learner.save(folder / "learner.safetensors")
    if records := learner.method.records():
        write_atomic(folder / "records.safetensors", serialise(records))
    if finished:
        finished(learner, result)
    write_json(folder / "result.json", result)
    checkpoint.unlink(missing_ok=True)
    return result


def _pays_from(learner: Learner) -> int | None:
    """Classes from which the decoder's own bytes are less than what it saves, with exemplars as there are now."""
    stores, codec = learner.method.stores(), learner.tools.codec
    classes = len({c for store in stores for c in store.classes.tolist()})
    saved = sum(store.saved_bytes() for store in stores)
    return -(-codec.shared_bytes * classes // saved) if saved > 0 and codec.shared_bytes else None


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of the settings and options in which two configurations differ, those of the machine aside."""
    aside = {f.name for f in fields(Settings) if f.metadata["group"] == "machine"} | {"data_root", "strict"}
    a, b = ({**config["settings"], **config["options"]} for config in (one, other))
    return [name for name in {**a, **b} if name not in aside and a.get(name) != b.get(name)]


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass
class _Job:
    learner: Learner
    stream: Stream
    run: Run
    folder: Path
    reporter: Reporter
    every: float
    stop: Callable[[], bool] | None
    saved: float = field(default_factory=time.monotonic)
    coded: dict[int, Tensor] = field(default_factory=dict)  # test images in codec space, made once

    def save(self) -> None:
        self.learner.save(self.folder / "checkpoint.safetensors", {"run": asdict(self.run)})
        self.saved = time.monotonic()

    def on_step(self, done: int, of: int, loss: Tensor) -> None:
        self.run.step = done
        self.reporter.step(done, of, loss)
        asked = self.stop is not None and self.stop()
        if done < of and (asked or time.monotonic() - self.saved > self.every):
            self.save()
        if asked and done < of:
            raise Interrupted

    def measure(self, tasks: int) -> None:
        row = evaluate(self.learner, self.stream, tasks, self.coded)
        kept = self.learner.ledger().total
        self.run.add(row, kept)
        self.reporter.row(tasks - 1, row, kept)

    def offline(self, checkpoint: Path) -> None:
        task = None
        if checkpoint.exists():
            task = self._reopen(checkpoint, lambda run: self.stream.open(run.position))
        while self.run.position < len(self.stream):
            index = self.run.position
            task = task or self.stream.open(index)
            self.reporter.task(index, len(self.stream), len(task.classes))
            self.learner.learn(task, class_names=self.stream.class_names, progress=self.reporter.inner,
                               on_step=self.on_step, start=self.run.step)
            task, self.run.step, self.run.position = None, 0, index + 1
            self.measure(index + 1)
            if self.run.position < len(self.stream):
                self.save()
                if self.stop is not None and self.stop():
                    raise Interrupted

    def online(self, checkpoint: Path) -> None:
        """One pass in windows that know nothing of task borders; evaluated where a task ends."""
        s = self.learner.settings
        rows, ends = self.stream.online_rows(s.seed)
        window = window_size(s)

        def cut(start: int) -> Any:
            return self.stream.window(rows[start : start + window])

        task = self._reopen(checkpoint, lambda run: cut(run.position)) if checkpoint.exists() else None
        while self.run.position < len(rows):
            task = task or cut(self.run.position)
            size, start = len(task), self.run.position
            self.reporter.task(len(self.run.class_il), len(self.stream), len(task.classes))

            def on_step(done: int, of: int, loss: Tensor, start: int = start) -> None:
                # The last row waits for the end-of-window work, as a device would that has come to rest.
                while (row := len(self.run.class_il)) < len(ends) - 1 and start + done * s.batch >= ends[row]:
                    self.measure(row + 1)
                    self.learner.net.train()
                self.on_step(done, of, loss)

            self.learner.learn_window(task, class_names=self.stream.class_names, progress=self.reporter.inner,
                                      on_step=on_step, start=self.run.step)
            task, self.run.step, self.run.position = None, 0, start + size
            # A method that no longer trains takes no steps: its rows are due all the same.
            while (row := len(self.run.class_il)) < len(ends) - 1 and self.run.position >= ends[row]:
                self.measure(row + 1)
            asked = self.run.position < len(rows) and self.stop is not None and self.stop()
            if asked or time.monotonic() - self.saved > self.every:
                self.save()
            if asked:
                raise Interrupted
        self.measure(len(self.stream))

    def everything(self, checkpoint: Path) -> None:
        task = self._reopen(checkpoint, lambda run: self.stream.everything()) if checkpoint.exists() else None
        task = task or self.stream.everything()
        self.reporter.task(0, 1, len(task.classes))
        self.learner.learn(task, class_names=self.stream.class_names, on_step=self.on_step, start=self.run.step)
        self.measure(len(self.stream))

    def _reopen(self, checkpoint: Path, open_task: Callable[[Run], Any]) -> Any:
        """Go on from a checkpoint; the task is open again where it was saved inside one."""
        _, metadata = read_tensors(checkpoint)
        try:
            header = json.loads(metadata["protocore"])
            self.run = Run(**header["extra"]["run"])
            others = _differences(header["config"], self.learner.config.to_json())
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{checkpoint}: not a checkpoint of a run ({error}); start again with --restart") from None
        if others:
            raise UserError(f"{checkpoint} was made with another {', '.join(map(flag, others))}; go on with the same "
                            "settings, or start again with --restart")
        task = open_task(self.run) if self.run.step else None
        self.learner.restore(checkpoint, task)
        return task

    def result(self, config: Resolved) -> dict[str, Any]:
        learner, seconds = self.learner, {**self.learner.seconds, **self.learner.tools.seconds}
        return {
            "format": 1,
            "command": command_of(config),
            **config.to_json(),
            "data_digest": self.stream.digest,
            "code_version": __version__,
            "machine": {"python": platform.python_version(), "torch": torch.__version__,
                        "threads": torch.get_num_threads(), "processor": platform.machine(),
                        "system": platform.system()},
            "tasks": len(self.stream),
            "class_names": list(self.stream.class_names),
            "class_incremental": {"R": self.run.class_il, **summary(self.run.class_il)},
            "task_incremental": {"R": self.run.task_il, **summary(self.run.task_il)},
            "per_class": self.run.per_class,
            "ledger": learner.ledger().to_json(),
            "bytes_kept": learner.ledger().total,
            "decoder_pays_from": _pays_from(learner),
            "bytes_after_each_task": self.run.kept,
            "seconds": {k: round(v, 3) for k, v in seconds.items()},
            "images_per_second": round(learner.images_learned / max(learner.seconds["learn"], 1e-9), 1),
            "peak_memory_bytes": peak_bytes(),
            "resident_after_each_task": self.run.resident,
        }
