"""Named benchmarks: a data set, a split into tasks, and the settings that go with it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocore.config import Settings
from protocore.data import folders, formats
from protocore.data.cache import Kept, cached
from protocore.data.images import FileImages, ImageSet, refuse_pictures
from protocore.data.stream import Stream
from protocore.errors import DataError, UserError

Reader = Callable[[Path, int | None], tuple[ImageSet, ImageSet]]


@dataclass(frozen=True)
class Benchmark:
    """`recipe`: for one from outside the package, what a run on it takes (`defaults`, `presets`, `with_budget`)."""

    summary: str
    read: Reader
    classes_per_task: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: Mapping[str, Any] | None = None
    source: str | None = None  # what `protocore data get` calls its files; None where it needs none


_CIFAR100: dict[str, Any] = {"source": "cifar100", "mean": (0.507, 0.487, 0.441), "std": (0.267, 0.256, 0.276)}
_IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


BENCHMARKS: dict[str, Benchmark] = {
    "digits": Benchmark(
        "scikit-learn's 8x8 digits, embedded: 5 tasks of 2 classes", lambda root, size: formats.read_digits(), 2,
        mean=(0.3,), std=(0.37,)),
    "mnist": Benchmark(
        "28x28 handwritten digits (IDX files): 5 tasks of 2", lambda root, size: formats.read_idx(root / "mnist"), 2,
        mean=(0.0,), std=(1.0,), source="mnist"),
    "fashion-mnist": Benchmark(
        "28x28 clothes (IDX files): 5 tasks of 2", lambda root, size: formats.read_idx(root / "fashion-mnist"), 2,
        mean=(0.286,), std=(0.353,), source="fashion-mnist"),
    "cifar10": Benchmark(
        "32x32 colour pictures: 5 tasks of 2", lambda root, size: formats.read_cifar10(root), 2,
        mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262), source="cifar10"),
    "cifar100-10": Benchmark(
        "32x32 colour pictures: 10 tasks of 10", lambda root, size: formats.read_cifar100(root), 10, **_CIFAR100),
    "cifar100-50": Benchmark(
        "32x32 colour pictures: 50 tasks of 2", lambda root, size: formats.read_cifar100(root), 2, **_CIFAR100),
    "tinyimagenet-20": Benchmark(
        "64x64 colour pictures: 20 tasks of 10",
        lambda root, size: _kept(folders.read_tiny_imagenet(root)), 10, **_IMAGENET, source="tinyimagenet"),
    "imagenet1k-100": Benchmark(
        "ImageNet-1K: 100 tasks of 10", lambda root, size: folders.read_imagenet(root, size or 224), 10, **_IMAGENET,
        source="imagenet"),
}


def cache_folder() -> Path:
    return Path(os.environ.get("PROTOCORE_CACHE") or Path.home() / ".cache" / "protocore")


def _kept(sets: tuple[ImageSet, ImageSet]) -> tuple[ImageSet, ImageSet]:
    """Picture files decoded once, kept as uint8 on disk and memory-mapped; those that cannot be read are an error."""
    kept = [_keep(part) for part in sets]
    refuse_pictures([(part.images.paths[row], reason) for part, found in zip(sets, kept, strict=True)
                     if isinstance(part.images, FileImages) for row, reason in found.bad.items()])
    train, test = (ImageSet(found.images, part.labels, part.class_names, part.digest, part.notes)
                   for part, found in zip(sets, kept, strict=True))
    return train, test


def _keep(part: ImageSet) -> Kept:
    return cached(part.images, part.digest, cache_folder())


def benchmark_named(name: str, strict: bool = False) -> Benchmark:
    """A benchmark of the table, or `folder:PATH`; `strict` as `folders.read_folder` takes it."""
    if name.startswith("folder:"):
        path = Path(name.removeprefix("folder:")).expanduser()
        return Benchmark(
            f"pictures in {path}, one folder a class",
            lambda root, size: folders.read_folder(path, size or 32, strict=strict, keep=_keep), 2,
            mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown benchmark {name!r}{hint} (known: {', '.join(BENCHMARKS)}, folder:PATH)")
    return BENCHMARKS[name]


def data_root(given: str | None) -> Path:
    return Path(given or os.environ.get("PROTOCORE_DATA") or "data").expanduser()


def open_stream(settings: Settings) -> Stream:
    """The stream that these settings describe, ready to be opened task by task."""
    benchmark = benchmark_named(settings.benchmark, settings.strict)
    root = data_root(settings.data_root)
    if benchmark.source and not root.is_dir():
        raise DataError(
            f"{settings.benchmark}: looked for its files in {root}/, which does not exist. Say where they are with "
            f"--data-root DIR or the environment variable PROTOCORE_DATA, or download them with "
            f"`protocore data get {benchmark.source}`"
        )
    train, test = benchmark.read(root, settings.image_size)
    stream = Stream(
        train, test, classes_per_task=settings.classes_per_task or benchmark.classes_per_task,
        order=settings.class_order, images_per_class=settings.images_per_class, blurry=settings.blurry,
        seed=settings.seed, tasks=settings.tasks,
    )
    stream.benchmark = settings.benchmark
    return stream
