"""How large a table is made: as printed, as cores finish overnight, or in a minute on embedded data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from protocore.bench.cells import Cell
from protocore.bench.reproduce.exhibits import STREAMS, Exhibit, Row
from protocore.data.benchmarks import BENCHMARKS, data_root
from protocore.errors import UserError


@dataclass(frozen=True)
class Scale:
    """`streams`: what stands for a benchmark of the paper (nothing: itself); `methods`: what one has otherwise;
    `notes`: what is said of it where it is in a table."""

    name: str
    words: str
    shared: Mapping[str, Any]
    seeds: tuple[int, ...]
    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    first_order: int | None = None  # class order of seed 0, the next one that of seed 1; None: as the benchmark has it
    quick: bool = False  # to measure what a run takes would take longer than the run

    def stream(self, benchmark: str) -> Mapping[str, Any]:
        return self.streams.get(benchmark, {"benchmark": benchmark})

    def flags(self, exhibit: Exhibit, row: Row, benchmark: str, seed: int) -> dict[str, Any]:
        """What one run of the table is configured with; what a row says wins."""
        order = {} if self.first_order is None else {"class_order": str(self.first_order + seed)}
        return {**self.shared, **order, **self.stream(benchmark), **self.methods.get(row.flags["method"], {}),
                **exhibit.shared, **exhibit.at.get(self.name, {}), **row.flags, "seed": seed}


def _digits(classes_per_task: int, tasks: int) -> dict[str, Any]:
    return {"benchmark": "digits", "classes_per_task": classes_per_task, "tasks": tasks}


SCALES = {scale.name: scale for scale in (
    Scale("paper", "the printed protocol (preset `paper`): ResNets, 50 or 100 epochs a task, for people with GPUs",
          {"preset": "paper"}, (0, 1, 2)),
    Scale("fast", "preset `fast`: all training pictures that are here (of ImageNet-1K at 64 x 64 pixels), a small "
          "network, 10 epochs a task; class orders 1993, 1994 and 1995 with seeds 0, 1 and 2", {"preset": "fast"},
          (0, 1, 2), methods={"fecam": {"tukey": 1.0}}, first_order=1993, notes={
              "fecam": "FeCAM takes features as they are (`--tukey 1`): those of the small network are below 0 too, "
                       "and have no root."}),
    Scale("smoke", "a minute on the embedded digits, which stand for every benchmark: it shows that the command works, "
          "its numbers mean nothing",
          {"images_per_class": 14, "epochs": 1, "batch": 35, "replay_batch": 16, "width": 8, "precision": "float32"},
          (0,),
          {"cifar10": _digits(2, 3), "cifar100-10": _digits(4, 2), "cifar100-50": _digits(2, 2),
           "tinyimagenet-20": _digits(3, 2), "imagenet1k-100": _digits(5, 2)},
          {"protocore": {"blend": 2, "condense_steps": 2}, "pbcs": {"outer_steps": 2, "inner_steps": 2, "draws": 1},
           "csrel": {"ref_epochs": 1, "proxy_steps": 1, "selection_steps": 2}, "bcsr": {"outer": 1, "noise": 2},
           "adc": {"attack_images": 5, "attack_steps": 1}, "onpro": {"variants": 1}}, quick=True),
)}


@dataclass(frozen=True)
class Need:
    """A run that a table needs, and where in it."""

    row: Row
    benchmark: str
    seed: int
    cell: Cell


def here(scale: Scale, benchmark: str, root: str | None) -> bool:
    """Whether there are data of what stands for this benchmark; that they are whole is not said."""
    source = BENCHMARKS[scale.stream(benchmark)["benchmark"]].source
    if source is None or source.folder is None:
        return True
    return any((data_root(root) / folder).is_dir() for folder in (source.folder, source.other) if folder)


def needs(exhibit: Exhibit, scale: Scale, seeds: Sequence[int], root: str | None = None) -> list[Need]:
    """Every run of the table; two rows that are one and the same run both name it."""
    more = {} if root is None else {"data_root": root}
    return [Need(row, benchmark, seed,
                 Cell(scale.flags(exhibit, row, benchmark, seed) | more, f"{row.key}-{benchmark}"))
            for seed in seeds for row in exhibit.rows for benchmark in exhibit.benchmarks]


def chosen(wanted: Iterable[Need], exhibit: Exhibit, only: str | None, benchmarks: str | None) -> list[Need]:
    """Those of the rows and benchmarks that the user names; a word that names none is an error."""
    found = list(wanted)
    for words, flag, name_of, known in (
            (only, "--only", lambda need: need.row.key, [row.key for row in exhibit.rows]),
            (benchmarks, "--benchmarks", lambda need: need.benchmark, exhibit.benchmarks)):
        if words is None:
            continue
        patterns = [word.strip() for word in words.split(",") if word.strip()]
        odd = next((p for p in patterns or [words] if not any(fnmatch(name, p) for name in known)), None)
        if odd is not None:
            raise UserError(f"{flag} {odd!r}: {exhibit.name} has no such {'row' if flag == '--only' else 'benchmark'}; "
                            f"there are {', '.join(known)}")
        found = [need for need in found if any(fnmatch(name_of(need), p) for p in patterns)]
    return found


def title_of(scale: Scale, benchmark: str) -> str:
    """`S-CIFAR-100, T = 10`, and what stands for it where that is something else."""
    stream = STREAMS[benchmark]
    name, other = f"{stream.title}, T = {stream.tasks}", scale.streams.get(benchmark)
    if other is None:
        return name
    return f"{name} (here {other['benchmark']}, {other['tasks']} tasks of {other['classes_per_task']})"
