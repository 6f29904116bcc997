"""What a run will cost here: a few steps of the real learner on random pictures, scaled to the whole stream.

As `python -m protocore.bench.cells.measure` it reads a line of JSON with the flags of several runs, and writes a line
for each. A process of its own: what takes too long can be stopped, and its peak memory is that of a run.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from protocore.config import Resolved
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream, Task
from protocore.errors import UserError
from protocore.learn.device import peak_bytes
from protocore.learn.learner import Learner
from protocore.learn.loop import steps_for
from protocore.learn.room import end_of
from protocore.runs.configure import configure

STEPS = 4  # that are taken; the first of them warms up
OF_A_CLASS = 6  # pictures: some methods want a few
CONDENSING = "condense"  # its seconds depend on the exemplars, all others on the pictures of a task


@dataclass(frozen=True)
class Step:
    """Measured in seconds: a step of a task, and its other work, by task and by picture."""

    step: float
    task: float
    picture: float


@dataclass(frozen=True)
class Cost:
    """Of one run: its seconds, the bytes of its process at most, and the bytes of its memory at the end, if known."""

    seconds: float
    process: int
    kept: int | None = None


def cost_of(config: Resolved, tell: Callable[[float], None] = lambda least: None) -> Cost:
    """Measured now. The data must be here: how many pictures a task has is read from them.

    As soon as a step was taken, `tell` hears the seconds of all steps of the run if each took as long, for those who
    have no time for the rest of it.
    """
    stream = open_stream(config.settings)
    kept = kept_bytes(config, stream)
    learner, nothing = _learner(config, stream), Step(0.0, 0.0, 0.0)
    first = _measured(learner, stream, 0, lambda step: tell(
        scaled(config, stream, replace(nothing, step=step), replace(nothing, step=step), 0.0)))
    later = _measured(learner, stream, 1) if len(stream) > 1 and not learner.method.sees_everything else first
    pictures = _noise(min(256, sum(len(t.labels) for t in stream.tests)), stream)
    clock = time.perf_counter()
    learner.scores(pictures)
    scoring = (time.perf_counter() - clock) / len(pictures)
    return Cost(scaled(config, stream, first, later, scoring), peak_bytes(), kept)


def scaled(config: Resolved, stream: Stream, first: Step, later: Step, scoring: float) -> float:
    """Seconds of the whole run: `scoring` is that of one test picture, all seen ones are looked at after every task."""
    from protocore.methods import method_named

    sizes = [stream.task_size(i) for i in range(len(stream))]
    tests = [len(part.labels) for part in stream.tests]
    seen = [sum(tests[: i + 1]) for i in range(len(tests))]
    if method_named(config.settings.method).sees_everything:
        sizes, seen = [sum(sizes)], seen[-1:]
    s, total = config.settings, scoring * sum(seen)
    for i, size in enumerate(sizes):
        cost = first if i == 0 else later
        steps = math.ceil(size / s.batch) if s.online else steps_for(size, s)
        total += steps * cost.step + cost.task + size * cost.picture
    return total


def kept_bytes(config: Resolved, stream: Stream) -> int | None:
    """Bytes of the memory at the end of the stream, at most; None where nobody can say before."""
    s = config.settings
    if s.budget is not None:
        return s.budget
    learner = Learner.of(config, stream.image_shape, classes=len(stream.class_names))
    codec, stores = learner.tools.codec, learner.method.stores()
    if stores and codec.largest is None:
        return None
    classes = len(stream.class_names)
    rows = 0 if not stores else s.capacity or (s.spc or 0) * classes
    return learner.method.bytes_at(end_of(learner, stream, codec.largest or 0), rows)


def _learner(config: Resolved, stream: Stream) -> Learner:
    s = config.settings
    few = s if s.online else replace(s, steps=STEPS, least_steps=0)
    return Learner.of(replace(config, settings=few), stream.image_shape, mean=stream.mean, std=stream.std,
                      classes=len(stream.class_names))


def _measured(learner: Learner, stream: Stream, index: int, tell: Callable[[float], None] | None = None) -> Step:
    """Learn a task of random pictures, with the classes and the picture shape of the real one."""
    classes, s = stream.task_classes[index], learner.settings
    count = min(max(STEPS * s.batch, OF_A_CLASS * len(classes)), max(stream.task_size(index), len(classes)))
    labels = [stream.class_names[classes[i % len(classes)]] for i in range(count)]
    task = Task.from_arrays(_noise(count, stream), labels)
    times: list[float] = []
    condensed = learner.tools.seconds.get(CONDENSING, 0.0)
    clock = time.perf_counter()
    learn = learner.learn_window if s.online else learner.learn

    def on_step(done: int, of: int, loss: object) -> None:
        times.append(time.perf_counter())
        if tell and len(times) > 1:
            tell(times[-1] - times[-2])

    learn(task, on_step=on_step)
    all_of_it = time.perf_counter() - clock
    fixed = learner.tools.seconds.get(CONDENSING, 0.0) - condensed
    between = [b - a for a, b in itertools.pairwise(times)] or ([all_of_it] if times else [])
    step = statistics.median(between) if between else 0.0
    warming = times[0] - clock if times else 0.0  # the beginning of the task and its first, slow step
    rest = max(all_of_it - fixed - sum(between) - warming, 0.0) if times else max(all_of_it - fixed, 0.0)
    return Step(step, fixed, rest / count)


def _noise(count: int, stream: Stream) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *stream.image_shape), dtype=np.uint8)


def main() -> int:
    """For a parent that may go away: then its input ends, and so does this process."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return 3
        data += part
    threading.Thread(target=_cord, daemon=True).start()
    job: dict[str, Any] = json.loads(data)
    print(json.dumps({"ready": True}), file=out)  # only now does the time of the first run begin
    for flags in job["flags"]:
        try:
            found: dict[str, Any] = asdict(cost_of(
                configure({"threads": job["threads"], **flags}), lambda least: print(json.dumps({"least": least}),
                                                                                    file=out)))
        except (UserError, RuntimeError, ValueError) as error:  # random pictures may be too odd for a method
            found = {"error": str(error)}
        print(json.dumps(found), file=out)
    return 0


def _cord() -> None:
    while os.read(0, 1 << 10):
        continue
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
