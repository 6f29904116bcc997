"""A stream of sealed tasks: a task is opened, learned, closed; after that every read of it raises."""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from protocore.config import plural
from protocore.data.images import ArrayImages, Images, ImageSet
from protocore.data.orders import class_order
from protocore.errors import DataError, SealError, UserError, shown
from protocore.pictures import ImageShape

_IN_MEMORY = 1 << 30  # bytes: a task up to this size is read once and kept as uint8 while it is open


class Task:
    """The training data of one task. `take` gives copies only; after `close` it raises `SealError`."""

    def __init__(self, images: Images, labels: np.ndarray, rows: np.ndarray | None = None,
                 index: int | None = None, class_names: Sequence[Hashable] | None = None) -> None:
        self.index = index  # None where the method must not know which task this is
        self.class_names = None if class_names is None else tuple(class_names)  # of label 0, 1, ...
        self.image_shape = images.shape
        self._images: Images | None = images
        self._rows = np.arange(len(labels)) if rows is None else rows
        self._labels: Tensor | None = torch.from_numpy(np.asarray(labels, dtype=np.int64)[self._rows])
        self._pixels: Tensor | None = None
        self._coded: Tensor | None = None
        # Storages, not tensors: a view, an array or a detached tensor keeps a batch's data alive as well.
        self._lent: list[StorageWeakRef] = []
        self._sweep_at = 64
        self.classes: tuple[int, ...] = tuple(self._labels.unique().tolist())
        self._length = len(self._rows)

    @classmethod
    def from_arrays(cls, images: np.ndarray | Tensor, labels: Sequence[Hashable] | np.ndarray | Tensor,
                    class_names: Sequence[Hashable] | None = None) -> Task:
        """A task from uint8 images (N, C, H, W) and a label each: anything hashable, which is the class's name.

        With `class_names` labels are whole numbers, the positions of their names.
        """
        array = np.asarray(images)
        if array.ndim != 4 or array.dtype != np.uint8:
            raise UserError(f"images must be uint8 of shape (N, C, H, W); met {array.dtype} {array.shape}")
        if class_names is None:
            values = labels.tolist() if isinstance(labels, np.ndarray | Tensor) else list(labels)
            class_names = _names(values)
            at = {name: position for position, name in enumerate(class_names)}
            labels = [at[value] for value in values]
        y = np.asarray(labels) if len(labels) else np.empty(0, np.int64)
        if y.shape != (len(array),) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(f"there must be {len(array)} labels, whole numbers where class_names are given; met "
                            f"{y.dtype} {y.shape}")
        if len(y) and y.min() < 0:
            raise UserError(f"labels must be whole numbers from 0; met {y.min()}")
        if class_names is not None and len(y) and y.max() >= len(class_names):
            raise UserError(f"label {y.max()} has no name: class_names holds {plural(len(class_names), 'name')}, for "
                            f"labels from 0 to {len(class_names) - 1}")
        return cls(ArrayImages(array), y, class_names=class_names)

    def renumber(self, numbers: Mapping[int, int], class_names: Sequence[Hashable]) -> None:
        """Give the classes other numbers: those of a learner that knew classes before."""
        if self._labels is None:
            raise SealError(f"{self._name()} is closed: its labels are gone")
        table = torch.full((max(numbers) + 1,), -1)
        for old, new in numbers.items():
            table[old] = new
        self._labels = table[self._labels]
        self.classes = tuple(self._labels.unique().tolist())
        self.class_names = tuple(class_names)

    def __len__(self) -> int:
        return self._length

    @property
    def closed(self) -> bool:
        return self._labels is None

    @property
    def labels(self) -> Tensor:
        """A copy of the labels, int64."""
        if self._labels is None:
            raise SealError(f"{self._name()} is closed: its labels are gone")
        return self._labels.clone()

    def take(self, rows: Tensor) -> Tensor:
        """Copies of the images of these rows, uint8 (n, C, H, W)."""
        if self._images is None:
            raise SealError(f"{self._name()} is closed: its images are gone; keep what is needed in the memory")
        if self._pixels is None and self._length * math.prod(self.image_shape) <= _IN_MEMORY:
            self._pixels = torch.from_numpy(self._images.take(self._rows))
        if self._pixels is not None:
            return self._lend(self._pixels.index_select(0, _numbers(rows)))  # a copy, whatever `rows` looks like
        return self._lend(torch.from_numpy(self._images.take(self._rows[_numbers(rows).numpy()])))

    def code(self, through: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Keep a second copy of the images as a codec shows them: `through` images and their rows, made once."""
        self._coded = torch.cat([through(self.take(rows), rows) for rows in torch.arange(len(self)).split(256)])

    def take_coded(self, rows: Tensor) -> Tensor:
        """Copies of the coded images of these rows; the images themselves where there is no codec."""
        if self._coded is None:
            return self.take(rows)
        return self._lend(self._coded.index_select(0, _numbers(rows)))

    def _lend(self, images: Tensor) -> Tensor:
        if len(self._lent) >= self._sweep_at:
            self._lent = [reference for reference in self._lent if not reference.expired()]
            self._sweep_at = 2 * len(self._lent) + 64
        self._lent.append(StorageWeakRef(images.untyped_storage()))
        return images

    def batches(self, size: int, order: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(rows, images, labels) in the given order, or from first to last; for passes without training."""
        order = torch.arange(len(self)) if order is None else order
        for rows in order.split(size):
            yield rows, self.take(rows), self.labels_of(rows)

    def labels_of(self, rows: Tensor) -> Tensor:
        if self._labels is None:
            raise SealError(f"{self._name()} is closed: its labels are gone")
        return self._labels.index_select(0, _numbers(rows))

    def close(self) -> None:
        """Give the data up. A batch that somebody still holds is wiped, and the leak is an error."""
        self._images = self._pixels = self._coded = self._labels = None
        lent, self._lent = self._lent, []
        if not all(reference.expired() for reference in lent):
            gc.collect()  # what only a cycle of dead objects holds is not held
        held = [data for reference in lent if (data := _alive(reference)) is not None]
        for data in held:
            data.zero_()
        if count := sum(len(data) for data in held) // math.prod(self.image_shape):
            raise SealError(
                f"{self._name()} was closed while {count} of its images were still held outside the memory; "
                "they have been wiped. A method may keep images only in an ExemplarStore, which counts them"
            )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise SealError(f"{self._name()} cannot be copied or pickled: the copy would outlive the seal")

    def name_of(self, label: int) -> str:
        """What the class is called, as errors say it."""
        return f"class {label}" if self.class_names is None else f"class {self.class_names[label]!r}"

    def _name(self) -> str:
        return "this task" if self.index is None else f"task {self.index + 1}"


def _names(labels: list[Any]) -> list[Hashable]:
    """Each label once: sorted where they can be, else as they come."""
    for label in labels:
        if not isinstance(label, Hashable):
            raise UserError(f"a label must be hashable: a name, a number; met {shown(label)}")
    names = list(dict.fromkeys(labels))
    return sorted(names) if {type(name) for name in names} in ({str}, {int}) else names


def _numbers(rows: Tensor) -> Tensor:
    return rows.nonzero().flatten() if rows.dtype == torch.bool else rows.to(torch.int64).flatten()


def _alive(reference: StorageWeakRef) -> Tensor | None:
    """All the bytes of a batch that is still held, whatever it is held by."""
    storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return None if storage is None else torch.empty(0, dtype=torch.uint8).set_(storage)


def _of_channels(what: str, values: Sequence[float] | None, shape: ImageShape) -> tuple[float, ...] | None:
    if values is not None and len(values) != shape[0]:
        raise UserError(f"{what} {shown(values)}: give one number for each of the {plural(shape[0], 'channel')}")
    return None if values is None else tuple(float(value) for value in values)


@dataclass(frozen=True)
class TestPart:
    """Test images of the classes that one task introduced."""

    __test__ = False  # not a pytest class

    images: Images
    rows: np.ndarray
    labels: np.ndarray
    classes: tuple[int, ...]

    def take(self, start: int, stop: int) -> Tensor:
        return torch.from_numpy(self.images.take(self.rows[start:stop]))


class Stream:
    """Tasks in order. Labels are positions in the class order, so the k-th class to come has label k.

    `benchmark` is the name it has, if any; `mean` and `std` are those of its channels, for pixels within [0, 1].
    """

    def __init__(self, train: ImageSet, test: ImageSet, *, classes_per_task: int, order: str = "natural",
                 images_per_class: int | None = None, blurry: int = 0, seed: int = 0,
                 tasks: int | None = None, benchmark: str | None = None, mean: Sequence[float] | None = None,
                 std: Sequence[float] | None = None) -> None:
        count = len(train.class_names)
        if classes_per_task > count:
            raise UserError(f"--classes-per-task {classes_per_task}: the data has only {plural(count, 'class')}")
        positions = np.empty(count, dtype=np.int64)
        positions[class_order(order, count)] = np.arange(count)
        self.image_shape = train.images.shape
        self.digest = hashlib.sha256(f"{train.digest} {test.digest}".encode()).hexdigest()
        self.notes = train.notes  # what a user should know of the data
        self.benchmark = benchmark
        self.mean, self.std = _of_channels("mean", mean, self.image_shape), _of_channels("std", std, self.image_shape)
        self.task_classes = [tuple(range(i, min(i + classes_per_task, count)))
                             for i in range(0, count, classes_per_task)][:tasks]
        coming = self.task_classes[-1][-1] + 1
        self.class_names = tuple(train.class_names[c] for c in np.argsort(positions)[:coming])
        self._train, self._labels = train, positions[train.labels]
        rows = self._first_of_each(self._labels, images_per_class)
        rows = rows[self._labels[rows] < coming]
        self._task_rows = self._split(rows, blurry, np.random.default_rng([seed, 1]))
        test_labels = positions[test.labels]
        self.tests = []
        for classes in self.task_classes:
            test_rows = np.flatnonzero(np.isin(test_labels, classes))
            if not len(test_rows):
                names = ", ".join(self.class_names[c] for c in classes)
                raise DataError(f"there are no test images for the task of {names}: its accuracy cannot be measured")
            self.tests.append(TestPart(test.images, test_rows, test_labels[test_rows], classes))
        self._opened: list[Task] = []

    @staticmethod
    def _first_of_each(labels: np.ndarray, limit: int | None) -> np.ndarray:
        if limit is None:
            return np.arange(len(labels))
        order = np.argsort(labels, kind="stable")
        first = np.searchsorted(labels[order], labels[order])
        return np.sort(order[np.arange(len(labels)) - first < limit])

    def _split(self, rows: np.ndarray, blurry: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Rows of each task. Blurry: that percentage of every class is spread over the other tasks."""
        tasks = len(self.task_classes)
        size = len(self.task_classes[0])
        home = self._labels[rows] // size
        if blurry and tasks > 1:
            for label in np.unique(self._labels[rows]):
                of_class = np.flatnonzero(self._labels[rows] == label)
                leaving = rng.permutation(of_class)[: round(len(of_class) * blurry / 100)]
                others = np.delete(np.arange(tasks), label // size)
                turns = rng.permutation(len(leaving)) + rng.integers(len(others))
                home[leaving] = others[turns % len(others)]
        return [rows[home == t] for t in range(tasks)]

    def __len__(self) -> int:
        return len(self.task_classes)

    def task_size(self, index: int) -> int:
        return len(self._task_rows[index])

    def open(self, index: int) -> Task:
        """The data of one task; whatever was opened before must be closed by then."""
        still_open = [task for task in self._opened if not task.closed]
        if still_open:
            raise SealError("open one task at a time: close the one before first")
        task = Task(self._train.images, self._labels, self._task_rows[index], index, self.class_names)
        self._opened = [task]
        return task

    def __iter__(self) -> Iterator[Task]:
        for index in range(len(self)):
            task = self.open(index)
            yield task
            if not task.closed:
                task.close()

    def online_rows(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """All rows in the order of an online pass, and the number of samples up to each task's end."""
        rng = np.random.default_rng([seed, 2])
        parts = [rng.permutation(rows) for rows in self._task_rows]
        return np.concatenate(parts), np.cumsum([len(p) for p in parts])

    def window(self, rows: np.ndarray) -> Task:
        """Some rows of the stream as a task without identity (online learning)."""
        return Task(self._train.images, self._labels, rows, class_names=self.class_names)

    def everything(self) -> Task:
        """All tasks as one: only the upper bound `joint` may ask for it."""
        return Task(self._train.images, self._labels, np.concatenate(self._task_rows), class_names=self.class_names)
