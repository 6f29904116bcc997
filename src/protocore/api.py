"""The Python side: a run in one call, or a stream of a benchmark and a learner for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream, Task
from protocore.field.keeper import Keeper
from protocore.learn.learner import Learner
from protocore.learn.settings import check_image_size
from protocore.learn.words import python_words
from protocore.methods import Method, register
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder
from protocore.runs.job import learner_for, stored
from protocore.runs.job import run as run_config
from protocore.runs.reporters import RunProgress
from protocore.runs.result import Result

__all__ = ["Keeper", "Learner", "Method", "Result", "Stream", "Task", "learner", "register", "run", "stream"]


def run(method: str, benchmark: str, *, runs: str | Path = "runs", again: bool = False, quiet: bool = False,
        track: str | Sequence[str] = (), **settings: Any) -> Result:
    """Run a method on a benchmark and return its result; a run that is stored already is only read.

    `settings` are the flags of `protocore run`, with underscores: spc=5, budget="64KB", online=True. What is done is
    shown as it goes on, unless `quiet`. `track` names trackers that are told too: "tensorboard", "wandb", "mlflow".

    >>> result = run("finetune", "digits", epochs=1, tasks=2, images_per_class=10, quiet=True)
    >>> result.tasks, result.classes
    (2, 4)
    """
    with python_words(True):
        config = configure({"method": method, "benchmark": benchmark, **settings})
        folder = RunFolder.of(Path(runs), config)
        if not again and (result := stored(config, folder)):
            return result
        if quiet:
            return run_config(config, folder, restart=again, track=track)
        with RunProgress(f"{method} on {benchmark}") as reporter:
            return run_config(config, folder, reporters=[reporter], restart=again, track=track)


def stream(benchmark: str, **settings: Any) -> Stream:
    """A benchmark's stream of tasks, which knows its name and its statistics.

    >>> digits = stream("digits", tasks=2)
    >>> len(digits), digits.class_names, digits.mean
    (2, ('0', '1', '2', '3'), (0.3,))
    """
    with python_words(True):
        settled = configure({"benchmark": benchmark, **settings}).settings
        opened = open_stream(settled)
        check_image_size(settled, opened.image_shape)
        return opened


def learner(method: str, on: Stream | str, **settings: Any) -> Learner:
    """A fresh learner with the recipe of a benchmark: its stream, or its name. `Learner` makes one without a recipe.

    >>> learner("er", stream("digits"), spc=5).settings.augment
    'crop1'
    """
    with python_words(True):
        named = on if isinstance(on, str) else on.benchmark
        config = configure({"method": method, **({"benchmark": named} if named else {}), **settings})
        made = learner_for(config, open_stream(config.settings) if isinstance(on, str) else on)
    made.speaks_python = True
    return made
