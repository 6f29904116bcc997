"""What a data set says of itself: where its files come from, how they are read, what a stream of it looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocore.data.images import ImageSet

Pair = tuple[ImageSet, ImageSet]  # training and test
Reader = Callable[[Path, int | None], Pair]  # from the data root and --image-size


@dataclass(frozen=True)
class Download:
    """A file as published. `checksum` is "md5:..." or "sha256:..."; None: only the size is known."""

    name: str
    size: int
    checksum: str | None


@dataclass(frozen=True)
class Content:
    """A file as it must lie in the data set's folder, unpacked; it may lie there gzipped under NAME.gz."""

    name: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Source:
    """Where a data set is published and what it must be once it is here."""

    name: str  # as `protocore data get` takes it
    read: Callable[[Path], Pair]  # from the data root
    counts: tuple[int, int]  # training and test images
    folder: str | None  # below the data root; None: its files are part of an installed package
    url: str | None = None  # None: nobody may download it; `by_hand` says how it is had then
    by_hand: str = ""
    files: tuple[Download, ...] = ()
    contents: tuple[Content, ...] = ()
    unpacked: int = 0  # bytes the archive may grow to; 0: the files are used as they are
    other: str | None = None  # a second folder the reader takes
    decoded: bool = True  # whether a check decodes every picture


@dataclass(frozen=True)
class Benchmark:
    """A data set, its split into tasks, and the mean and deviation of its channels (pixels within [0, 1])."""

    summary: str
    read: Reader
    classes_per_task: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scaled: bool = False  # whether `read` scales pictures to --image-size; else they keep the size they have
    source: Source | None = None  # None: it needs no files below the data root
    recipe: Mapping[str, Any] | None = field(default=None)  # of one from outside: defaults, presets, with_budget

    @property
    def data_set(self) -> str | None:
        """The name of the data set that it is made of, which several benchmarks may share."""
        return self.source.name if self.source else None
