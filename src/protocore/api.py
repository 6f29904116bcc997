"""The Python side: a run in one call, or a learner and a stream for one's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocore.data.benchmarks import benchmark_named, open_stream
from protocore.data.stream import Stream, Task
from protocore.learn.learner import Learner
from protocore.runs.job import configure
from protocore.runs.job import run as run_config
from protocore.runs.results import read_result, run_folder

__all__ = ["Learner", "Task", "learner", "run", "stream"]


def run(method: str, benchmark: str, *, runs: str | Path = "runs", again: bool = False,
        **settings: Any) -> dict[str, Any]:
    """Run a method on a benchmark and return its result; a run that is stored already is only read.

    `settings` are the flags of `protocore run`, with underscores: spc=5, budget="64KB", online=True.
    """
    config = configure({"method": method, "benchmark": benchmark, **settings})
    folder = run_folder(Path(runs), config)
    if (folder / "result.json").exists() and not again:
        return read_result(folder)
    return run_config(config, folder, restart=again)


def stream(benchmark: str, **settings: Any) -> Stream:
    """A benchmark's stream of tasks."""
    return open_stream(configure({"benchmark": benchmark, **settings}).settings)


def learner(method: str, on: Stream | str | tuple[int, int, int], **settings: Any) -> Learner:
    """A fresh learner for a stream, a benchmark's name, or images of shape (channels, height, width).

    The defaults are those of the benchmark, which a stream of `protocore.stream` knows.
    """
    if isinstance(on, str):
        settings["benchmark"] = on
    elif isinstance(on, Stream) and on.benchmark is not None:
        settings.setdefault("benchmark", on.benchmark)
    config = configure({"method": method, **settings})
    if isinstance(on, str):
        on = open_stream(config.settings)
    shape = on.image_shape if isinstance(on, Stream) else on
    benchmark = benchmark_named(config.settings.benchmark) if "benchmark" in settings else None
    mean, std = (benchmark.mean[: shape[0]], benchmark.std[: shape[0]]) if benchmark else (None, None)
    return Learner(config, shape, mean=mean, std=std,
                   classes=len(on.class_names) if isinstance(on, Stream) else None)
