"""What each method costs against `er`: processor time of the same two tasks, in one run.

    python benchmarks/costs.py [--methods er der ...] [--epochs 2] [--each 125]

Random colour pictures of 32 pixels, 10 classes a task, the network and batch of the preset `cpu`, 20 exemplars a class,
one thread. Learning is the training of one epoch against that of `er`; selecting is the work at a task's end
against six epochs of `er`. `er` is measured before and after all others, so that a change of the machine's speed would
show. Writes results/costs.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from protocore.data.stream import Task
from protocore.learn.learner import Learner
from protocore.methods import METHODS
from protocore.runs.configure import configure

CLASSES, SHAPE = 10, (3, 32, 32)


def task(number: int, each: int) -> Task:
    generator = torch.Generator().manual_seed(number)
    labels = torch.arange(CLASSES).repeat_interleave(each) + number * CLASSES
    images = torch.randint(0, 256, (len(labels), *SHAPE), dtype=torch.uint8, generator=generator)
    return Task.from_arrays(images, labels)


def seconds(method: str, epochs: int, each: int) -> dict[str, float]:
    flags: dict[str, Any] = {"method": method, "benchmark": "cifar100-10", "preset": "cpu", "epochs": epochs,
                             "threads": 1, "memory_format": "contiguous"}
    if METHODS[method].replays:
        flags["spc"] = 20
    learner = Learner.of(configure(flags), SHAPE)
    parts = {"learning": 0.0, "selecting": 0.0}
    for number in range(2):
        mine = task(number, each)
        end_task = learner.method.end_task

        def timed(open_task: Task, end_task: Any = end_task) -> None:
            clock = time.process_time()
            end_task(open_task)
            parts["selecting"] += time.process_time() - clock

        learner.method.end_task = timed  # type: ignore[method-assign]
        clock = time.process_time()
        learner.learn(mine)
        parts["learning"] += time.process_time() - clock
        learner.method.end_task = end_task  # type: ignore[method-assign]
    parts["learning"] -= parts["selecting"]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[m for m in METHODS if m != "joint"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--each", type=int, default=125, help="images of a class")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "costs.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds("er", 1, 20)  # the first steps of a process are slower
    first = seconds("er", arguments.epochs, arguments.each)["learning"]
    rows = {}
    for method in arguments.methods:
        parts = seconds(method, arguments.epochs, arguments.each)
        rows[method] = {"learning": round(parts["learning"] / first, 3),
                        "selecting": round(parts["selecting"] / (first / arguments.epochs * 6), 3)}
        print(method, rows[method], flush=True)
    again = seconds("er", arguments.epochs, arguments.each)["learning"]
    command = f"python benchmarks/costs.py --epochs {arguments.epochs} --each {arguments.each}"
    arguments.out.write_text(json.dumps({"command": command, "unit": "er, six epochs of a task = 1",
                                         "er_again": round(again / first, 3),
                                         "er_seconds": round(first, 1), "methods": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
