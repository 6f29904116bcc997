"""Named benchmarks: a data set and its split into tasks. Others add theirs with `register`, or by an entry point."""

from __future__ import annotations

import hashlib
import os
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

from protocore.config import Settings
from protocore.data import sets
from protocore.data.base import Benchmark, Pair, Source
from protocore.data.images import ChosenImages, ImageSet
from protocore.data.sets.folder import folder_benchmark
from protocore.data.stream import Stream
from protocore.errors import DataError, UserError, shown
from protocore.registry import Registry

__all__ = ["BENCHMARKS", "Benchmark", "benchmark_named", "data_root", "open_stream", "register", "source_named",
           "sources"]


def _in_package() -> Iterator[tuple[str, Benchmark]]:
    """Those that the files in sets/ name."""
    for module in pkgutil.iter_modules(sets.__path__):
        yield from import_module(f"{sets.__name__}.{module.name}").BENCHMARKS.items()


class _Table(Registry[Benchmark]):
    def register(self, name: str, thing: Benchmark, *, replace: bool = False) -> Benchmark:
        if not isinstance(thing, Benchmark):
            raise UserError(f"benchmark {shown(name)}: {shown(thing)} is no protocore.data.benchmarks.Benchmark")
        if not thing.mean or len(thing.mean) != len(thing.std) or min(thing.std) <= 0:
            raise UserError(f"benchmark {shown(name)}: mean {shown(thing.mean)} and std {shown(thing.std)} must have "
                            "one number for each channel, those of std above 0")
        if thing.classes_per_task < 1:
            raise UserError(f"benchmark {shown(name)}: classes_per_task is {thing.classes_per_task}; at least 1")
        return super().register(name, thing, replace=replace)


BENCHMARKS = _Table("benchmark", _in_package())


def register(name: str, benchmark: Benchmark, *, replace: bool = False) -> Benchmark:
    """Add a benchmark of one's own under a name that is free; `replace` takes the place of another one."""
    return BENCHMARKS.register(name, benchmark, replace=replace)


def benchmark_named(name: str, strict: bool = False) -> Benchmark:
    """A benchmark of the table, or `folder:PATH`, whose faulty pictures are an error with `strict`."""
    if name.startswith("folder:"):
        return folder_benchmark(Path(name.removeprefix("folder:")).expanduser(), strict)
    return BENCHMARKS.named(name, more="folder:PATH")


def source_named(name: str) -> Source:
    """The source of the data set of this name, or that a benchmark of this name is made of."""
    known = sources()
    if name in BENCHMARKS and (source := BENCHMARKS[name].source):
        return source
    if name not in known:
        raise DataError(f"data set {shown(name)}: nothing is known under this name; there are {', '.join(known)}")
    return known[name]


def sources() -> dict[str, Source]:
    return {benchmark.source.name: benchmark.source for benchmark in BENCHMARKS.values() if benchmark.source}


def data_root(given: str | None) -> Path:
    return Path(given or os.environ.get("PROTOCORE_DATA") or "data").expanduser()


def open_stream(settings: Settings) -> Stream:
    """The stream that these settings describe, ready to be opened task by task."""
    benchmark = benchmark_named(settings.benchmark, settings.strict)
    train, test = _read(settings, benchmark)
    if settings.validate:
        train, test = validation(train, settings.validate)
    return Stream(
        train, test, classes_per_task=settings.classes_per_task or benchmark.classes_per_task,
        order=settings.class_order, images_per_class=settings.images_per_class, blurry=settings.blurry,
        seed=settings.seed, tasks=settings.tasks, benchmark=settings.benchmark, mean=benchmark.mean,
        std=benchmark.std,
    )


def validation(train: ImageSet, percent: int) -> Pair:
    """The training images in two parts: the last of each class are measured on, and nobody sees the test images."""
    labels = train.labels
    order = np.argsort(labels, kind="stable")
    place = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])  # of an image within its class
    counts = np.bincount(labels)[labels[order]]
    held = np.zeros(len(labels), bool)
    held[order] = place >= counts - np.maximum(counts * percent // 100, 1)
    parts = []
    for name, rows in (("learned", np.flatnonzero(~held)), ("validated", np.flatnonzero(held))):
        digest = hashlib.sha256(f"{train.digest} {name} {percent}".encode()).hexdigest()
        parts.append(ImageSet(ChosenImages(train.images, rows), labels[rows], train.class_names, digest, train.notes))
    return parts[0], parts[1]


def _read(settings: Settings, benchmark: Benchmark) -> Pair:
    root, source, wish = data_root(settings.data_root), benchmark.source, settings.image_size
    if source and source.folder and not root.is_dir():
        raise DataError(
            f"{settings.benchmark}: looked for its files in {root}/, which does not exist. Say where they are with "
            f"--data-root DIR or the environment variable PROTOCORE_DATA, or download them with "
            f"`protocore data get {source.name}`"
        )
    return benchmark.read(root, wish)
