"""Streams: which sample comes when, under which label; and the seal that nothing of a closed task outlives."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from protocore.config import Settings
from protocore.data import stream as stream_module
from protocore.data.benchmarks import BENCHMARKS, benchmark_named, open_stream, validation
from protocore.data.images import ArrayImages, Images, ImageSet
from protocore.data.orders import class_order
from protocore.data.stream import Stream, Task
from protocore.errors import DataError, SealError, UserError

PYCIL_1993 = [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


def image_set(labels: np.ndarray, classes: int) -> ImageSet:
    """Images (1, 2, 2) that say which class they are of and which row they are: class, row // 256, row % 256."""
    rows = np.arange(len(labels))
    planes = np.stack([labels, rows // 256, rows % 256, np.full(len(labels), 7)], 1).astype(np.uint8)
    names = tuple(f"class {c}" for c in range(classes))
    return ImageSet(ArrayImages(planes.reshape(-1, 1, 2, 2)), labels.astype(np.int64), names, "digest")


def shuffled_labels(counts: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def make_stream(counts: list[int], **options: Any) -> Stream:
    labels = shuffled_labels(counts)
    return Stream(image_set(labels, len(counts)), image_set(labels[::2], len(counts)), **options)


def classes_and_rows(images: Tensor) -> tuple[list[int], list[int]]:
    flat = images.flatten(1).long()
    return flat[:, 0].tolist(), (256 * flat[:, 1] + flat[:, 2]).tolist()


def read_all(task: Task) -> tuple[list[int], list[int], list[int]]:
    """Original classes, original rows and labels of a task."""
    classes, rows = classes_and_rows(task.take(torch.arange(len(task))))
    return classes, rows, task.labels.tolist()


# -- class orders ------------------------------------------------------------------------------------------


def test_class_order_1993_is_that_of_pycil() -> None:
    assert class_order("1993", 100)[:10] == PYCIL_1993
    assert sorted(class_order("1993", 100)) == list(range(100))


def test_other_orders_are_natural_or_seeded() -> None:
    assert class_order("natural", 7) == list(range(7))
    assert class_order("5", 50) == class_order("5", 50) != class_order("6", 50)
    state = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    class_order("1993", 10)
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]


@pytest.mark.parametrize("name", ["", "alphabetical", "-1", "1.5", "1e3", "²", "4294967296", "9" * 5000])
def test_a_class_order_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="--class-order"):
        class_order(name, 10)


# -- splitting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["natural", "1993"])
def test_label_k_is_the_kth_class_of_the_order(order: str) -> None:
    stream = make_stream([3] * 100, classes_per_task=10, order=order)
    expected = PYCIL_1993 if order == "1993" else list(range(10))
    assert stream.class_names[:10] == tuple(f"class {c}" for c in expected)
    everything = []
    for index, task in enumerate(stream):
        assert task.index == index
        assert task.classes == stream.task_classes[index] == tuple(range(10 * index, 10 * index + 10))
        assert len(task) == stream.task_size(index) == 30
        classes, rows, labels = read_all(task)
        everything += rows
        assert [stream.class_names[k] for k in labels] == [f"class {c}" for c in classes]
        assert rows == sorted(rows)
        test = stream.tests[index]
        assert test.classes == task.classes
        seen, _ = classes_and_rows(test.take(0, len(test.labels)))
        assert [stream.class_names[k] for k in test.labels] == [f"class {c}" for c in seen]
    assert sorted(everything) == list(range(300))  # every sample once
    assert sum(len(part.labels) for part in stream.tests) == 150


def test_the_last_task_takes_the_classes_that_are_left() -> None:
    stream = make_stream([4] * 7, classes_per_task=3)
    assert len(stream) == 3
    assert stream.task_classes == [(0, 1, 2), (3, 4, 5), (6,)]
    assert [stream.task_size(i) for i in range(3)] == [12, 12, 4]
    assert make_stream([4] * 7, classes_per_task=7).task_classes == [tuple(range(7))]
    with pytest.raises(UserError, match=r"--classes-per-task 8.*7"):
        make_stream([4] * 7, classes_per_task=8)


def test_the_first_images_of_each_class_are_used() -> None:
    counts = [9, 2, 5, 7]
    labels = shuffled_labels(counts)
    stream = make_stream(counts, classes_per_task=2, images_per_class=4)
    rows = [read_all(task)[1] for task in stream]
    expected = [[row for c in classes for row in np.flatnonzero(labels == c)[:4]] for classes in ((0, 1), (2, 3))]
    assert rows == [sorted(part) for part in expected]  # in the order of the file
    assert len(stream.tests[0].labels) == sum(labels[::2] < 2)  # the test set stays whole


def test_validation_images_are_the_last_of_each_class_and_no_test_image() -> None:
    whole, part = open_stream(Settings()), open_stream(Settings(validate=20))
    assert part.digest not in (whole.digest, open_stream(Settings(validate=10)).digest)
    for index, held in enumerate(part.tests):
        task = whole.open(index)
        images, labels = task.take(torch.arange(len(task))).clone(), task.labels
        task.close()
        rest = part.open(index)
        kept = rest.take(torch.arange(len(rest))).clone()
        for label in held.classes:
            mine, count = images[labels == label], int((labels == label).sum())
            shown = held.take(0, len(held.labels))[torch.from_numpy(held.labels) == label]
            assert len(shown) == count * 20 // 100
            assert torch.equal(shown, mine[count - len(shown):])
            assert torch.equal(kept[rest.labels == label], mine[: count - len(shown)])
        rest.close()


def test_of_a_class_with_few_images_one_is_held_for_validation_all_the_same() -> None:
    labels = shuffled_labels([40, 3, 2])
    learned, held = validation(image_set(labels, 3), 10)
    assert np.bincount(learned.labels).tolist() == [36, 2, 1]
    assert np.bincount(held.labels).tolist() == [4, 1, 1]
    assert len({"digest", learned.digest, held.digest}) == 3
    rows = [classes_and_rows(torch.from_numpy(part.images.take(np.arange(len(part.labels)))))[1]
            for part in (learned, held)]
    assert rows[1] == sorted(row for c, n in enumerate((4, 1, 1)) for row in np.flatnonzero(labels == c)[-n:].tolist())
    assert sorted(rows[0] + rows[1]) == list(range(45))


def test_blurry_tasks_hold_that_share_of_other_classes() -> None:
    counts = [200] * 8 + [100, 30]
    stream = make_stream(counts, classes_per_task=2, order="3", blurry=10, seed=4)
    rows, travelled = [], np.zeros((10, 5), int)
    for index, task in enumerate(stream):
        assert task.index == index
        classes, mine, labels = read_all(task)
        rows += mine
        assert [stream.class_names[k] for k in labels] == [f"class {c}" for c in classes]
        assert task.classes == tuple(sorted(set(labels)))
        for label, count in Counter(labels).items():
            travelled[label, index] = count
    assert sorted(rows) == list(range(sum(counts)))  # every sample once
    order = class_order("3", 10)
    for label in range(10):
        size = counts[order[label]]
        away = np.delete(travelled[label], label // 2)
        assert away.sum() == size // 10
        assert away.max() - away.min() <= 1  # spread evenly over the other tasks
    shares = [1 - travelled[2 * t : 2 * t + 2, t].sum() / travelled[:, t].sum() for t in range(5)]
    assert all(0.07 < share < 0.16 for share in shares)
    assert stream.task_classes == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert [part.classes for part in stream.tests] == stream.task_classes
    assert all(set(part.labels) <= set(part.classes) for part in stream.tests)


def test_blurry_with_equal_classes_leaves_every_task_its_size() -> None:
    stream = make_stream([120] * 6, classes_per_task=2, blurry=20)
    for index, task in enumerate(stream):
        foreign = sum(label // 2 != index for label in task.labels.tolist())
        assert abs(len(task) - 240) <= 6
        assert abs(foreign / len(task) - 0.2) < 0.03


def test_blurry_depends_on_the_seed_and_on_nothing_else() -> None:
    def rows(seed: int, blurry: int = 10) -> list[list[int]]:
        stream = make_stream([60] * 4, classes_per_task=2, blurry=blurry, seed=seed)
        return [read_all(task)[1] for task in stream]

    np.random.seed(0)
    first = rows(1)
    np.random.seed(9)
    assert rows(1) == first != rows(2)
    assert rows(1, blurry=0) == rows(2, blurry=0)
    assert make_stream([60] * 4, classes_per_task=4, blurry=50).task_size(0) == 240  # nowhere else to go


def test_an_online_pass_shuffles_within_tasks_only() -> None:
    counts = [30, 50, 20, 40, 10]
    stream = make_stream(counts, classes_per_task=2)
    rows, ends = stream.online_rows(seed=3)
    assert ends.tolist() == [80, 140, 150]
    assert sorted(rows.tolist()) == list(range(150))
    labels = shuffled_labels(counts)
    start = 0
    for index, end in enumerate(ends.tolist()):
        part = rows[start:end]
        assert set(labels[part] // 2) == {index}
        assert part.tolist() != sorted(part.tolist())
        start = end
    again, _ = stream.online_rows(seed=3)
    other, _ = stream.online_rows(seed=4)
    assert np.array_equal(rows, again)
    assert not np.array_equal(rows, other)
    window = stream.window(rows[70:90])
    assert window.index is None
    classes, mine, seen = read_all(window)
    assert mine == rows[70:90].tolist()
    assert seen == classes == labels[rows[70:90]].tolist()


def test_everything_is_every_task_at_once() -> None:
    stream = make_stream([6] * 5, classes_per_task=2, images_per_class=4, order="1993")
    task = stream.everything()
    assert len(task) == 20
    assert task.classes == (0, 1, 2, 3, 4)
    classes, _, labels = read_all(task)
    assert [stream.class_names[k] for k in labels] == [f"class {c}" for c in classes]


# -- a task ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["in memory", "from the source"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small tasks are read once; ones too large for that are read batch by batch."""
    if request.param == "from the source":
        monkeypatch.setattr(stream_module, "_IN_MEMORY", 0)
    return request.param


class Counted(ArrayImages):
    """Notes how many images are read at a time."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.reads: list[int] = []

    def take(self, indices: np.ndarray) -> np.ndarray:
        self.reads.append(len(indices))
        return super().take(indices)


def make_task(count: int = 20, shape: tuple[int, int, int] = (1, 2, 2)) -> Task:
    rng = np.random.default_rng(0)
    return Task.from_arrays(rng.integers(1, 256, (count, *shape), dtype=np.uint8), np.arange(count) % 3)


def test_take_gives_the_rows_asked_for(either_way: str) -> None:
    source = Counted(np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2))
    task = Task(source, np.arange(10) * 2, np.array([9, 3, 5, 0]))
    assert len(task) == 4
    assert task.classes == (0, 6, 10, 18)
    assert task.image_shape == (1, 2, 2)
    assert task.labels.tolist() == [18, 6, 10, 0]
    assert task.take(torch.tensor([1, 0, 1]))[:, 0, 0, 0].tolist() == [12, 36, 12]
    assert task.labels_of(torch.tensor([1, 0, 1])).tolist() == [6, 18, 6]
    mask = torch.tensor([False, False, True, True])
    assert task.take(mask)[:, 0, 0, 0].tolist() == [20, 0]
    assert task.labels_of(mask).tolist() == [10, 0]
    assert task.take(torch.arange(0)).shape == (0, 1, 2, 2)
    assert source.reads == ([4] if either_way == "in memory" else [3, 2, 0])
    with pytest.raises(IndexError):
        task.take(torch.tensor([4]))


def test_what_is_taken_is_a_copy(either_way: str) -> None:
    source = np.arange(1, 41, dtype=np.uint8).reshape(10, 1, 2, 2)
    before, labels = source.copy(), np.arange(10)
    task = Task.from_arrays(source, labels)
    everything = torch.from_numpy(before)
    for rows in (torch.arange(10), torch.tensor([3]), torch.tensor(3), torch.ones(10, dtype=torch.bool)):
        taken = task.take(rows)
        assert taken._base is None
        taken.zero_()
        task.labels_of(rows).zero_()
        task.labels.zero_()
        assert torch.equal(task.take(torch.arange(10)), everything)
        assert task.labels.tolist() == list(range(10))
    assert np.array_equal(source, before)
    labels[:] = 0
    assert task.labels.tolist() == list(range(10))


def test_coded_images_are_made_once_and_lent_as_copies(either_way: str) -> None:
    task, calls = make_task(700), []
    assert torch.equal(task.take_coded(torch.tensor([5])), task.take(torch.tensor([5])))  # no codec yet

    def half(images: Tensor, rows: Tensor) -> Tensor:
        calls.append(len(images))
        return images // 2

    task.code(half)
    assert sum(calls) == 700
    for rows in (torch.tensor([699, 0, 3]), torch.tensor(4)):
        task.take_coded(rows).zero_()
        assert torch.equal(task.take_coded(rows), task.take(rows) // 2)
    assert sum(calls) == 700


def test_batches_cover_the_task_in_order() -> None:
    task = make_task(20)
    parts = list(task.batches(8))
    assert [len(rows) for rows, _, _ in parts] == [8, 8, 4]
    assert torch.equal(torch.cat([rows for rows, _, _ in parts]), torch.arange(20))
    assert torch.equal(torch.cat([images for _, images, _ in parts]), task.take(torch.arange(20)))
    assert torch.equal(torch.cat([labels for _, _, labels in parts]), task.labels)
    order = torch.tensor([5, 0, 7])
    ((rows, images, labels),) = task.batches(8, order)
    assert torch.equal(rows, order)
    assert torch.equal(images, task.take(order))
    assert torch.equal(labels, task.labels[order])


@pytest.mark.parametrize(("images", "labels", "names"), [
    (np.zeros((3, 2, 2), np.uint8), [0, 1, 2], None),
    (np.zeros((3, 1, 2, 2), np.float32), [0, 1, 2], None),
    (np.zeros((3, 1, 2, 2), np.uint8), [0, 1], None),
    (np.zeros((3, 1, 2, 2), np.uint8), [[0], [1], [2]], None),
    (np.zeros((3, 1, 2, 2), np.uint8), [0.0, 1.0, 2.0], "abc"),  # with names, labels are their places
    (np.zeros((3, 1, 2, 2), np.uint8), [0, -1, 2], "abc"),
])
def test_arrays_that_make_no_task_are_refused(images: np.ndarray, labels: list[Any], names: str | None) -> None:
    with pytest.raises(UserError, match="must be"):
        Task.from_arrays(images, labels, names)


def test_a_task_from_tensors() -> None:
    task = Task.from_arrays(torch.full((2, 1, 2, 2), 5, dtype=torch.uint8), torch.tensor([4, 1]))
    assert (task.classes, task.class_names, task.labels.tolist()) == ((0, 1), (1, 4), [1, 0])
    assert task.index is None
    assert int(task.take(torch.tensor([0])).sum()) == 20


# -- the seal ----------------------------------------------------------------------------------------------


DOORS: dict[str, Callable[[Task], Any]] = {
    "take": lambda task: task.take(torch.arange(2)),
    "take_coded": lambda task: task.take_coded(torch.arange(2)),
    "code": lambda task: task.code(lambda images, rows: images),
    "take nothing": lambda task: task.take(torch.arange(0)),
    "labels": lambda task: task.labels,
    "labels_of": lambda task: task.labels_of(torch.arange(2)),
    "batches": lambda task: next(task.batches(4)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("used", [False, True])
def test_after_close_every_door_is_shut(door: str, used: bool, either_way: str) -> None:
    task = make_task()
    if used:
        task.take(torch.arange(5))
        task.code(lambda images, rows: images // 2)
    task.close()
    assert task.closed
    with pytest.raises(SealError):
        DOORS[door](task)
    task.close()  # closing twice is no error
    assert len(task) == 20  # how much it was is no secret
    assert task.classes == (0, 1, 2)


def test_what_was_made_before_the_close_is_shut_too(either_way: str) -> None:
    task = make_task()
    task.code(lambda images, rows: images // 2)
    fresh, begun, take, coded, of = task.batches(4), task.batches(4), task.take, task.take_coded, task.labels_of
    next(begun)
    assert not task.closed
    task.close()
    some = torch.arange(2)
    for read in (lambda: next(fresh), lambda: next(begun), lambda: take(some), lambda: coded(some), lambda: of(some)):
        with pytest.raises(SealError, match="closed"):
            read()


def test_a_closed_task_keeps_no_images(either_way: str) -> None:
    task = make_task()
    task.code(lambda images, rows: images // 2)
    task.take(torch.arange(2))
    task.close()
    assert not [name for name, value in vars(task).items() if isinstance(value, Tensor | Images)]


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_open_task_cannot_be_copied_past_its_seal(copier: Callable[[Task], Any]) -> None:
    with pytest.raises(SealError, match="copied"):
        copier(make_task())


def coded(task: Task) -> Tensor:
    task.code(lambda images, rows: images)
    return task.take_coded(torch.arange(6))


HOLDS: dict[str, Callable[[Task], Any]] = {
    "a batch": lambda task: task.take(torch.arange(6)),
    "one of a batch": lambda task: task.take(torch.arange(6))[2],
    "a slice": lambda task: task.take(torch.arange(6))[1:4],
    "a view": lambda task: task.take(torch.arange(6)).view(-1),
    "another type": lambda task: task.take(torch.arange(6)).view(torch.int8),
    "transposed": lambda task: task.take(torch.arange(6)).permute(0, 2, 3, 1),
    "detached": lambda task: task.take(torch.arange(6)).detach(),
    ".data": lambda task: task.take(torch.arange(6)).data,
    "an array": lambda task: task.take(torch.arange(6)).numpy(),
    "dlpack": lambda task: np.from_dlpack(task.take(torch.arange(6))),
    "a memory view": lambda task: memoryview(task.take(torch.arange(6)).numpy()),
    "within a batch": lambda task: next(task.batches(6))[1],
    "a list": lambda task: [task.take(torch.arange(6))],
    "a coded batch": coded,
}


@pytest.mark.parametrize("hold", HOLDS)
def test_a_batch_held_across_the_close_is_wiped_and_is_an_error(hold: str, either_way: str) -> None:
    task = make_task()
    for _ in range(200):  # many that are not held, before
        task.take(torch.arange(3))
    held = HOLDS[hold](task)
    with pytest.raises(SealError, match="6 of its images"):
        task.close()
    assert task.closed
    assert not np.asarray(held[0] if isinstance(held, list) else held).any()
    task.close()


def test_views_made_without_autograd_are_found_as_well() -> None:
    task = make_task()
    with torch.inference_mode():
        held = task.take(torch.arange(6))[1:]
    with pytest.raises(SealError):
        task.close()
    assert not held.any()


def test_only_what_is_held_is_counted() -> None:
    task = make_task(300)
    held = [task.take(torch.arange(i)) for i in range(1, 150)]
    for _ in range(500):
        task.take(torch.arange(7))
    del held[10:]
    with pytest.raises(SealError, match=f"{sum(range(1, 11))} of its images"):
        task.close()
    assert not any(batch.any() for batch in held)


def test_copies_and_floats_are_the_methods_own() -> None:
    task = make_task()
    images = task.take(torch.arange(6))
    copied, floats = images.clone(), images.float()
    labels = task.labels_of(torch.arange(6))
    del images
    task.close()
    assert copied.all()
    assert floats.all()
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_dead_objects_in_a_cycle_hold_nothing() -> None:
    class Holder:
        images: Tensor
        me: Holder

    task = make_task()
    holder = Holder()
    holder.me, holder.images = holder, task.take(torch.arange(6))
    del holder
    task.close()


def test_references_to_batches_do_not_pile_up() -> None:
    task = make_task()
    for _ in range(2000):
        task.take(torch.arange(2))
    assert len(task._lent) < 100


def test_wiping_spares_the_data_itself(either_way: str) -> None:
    stream = make_stream([5] * 4, classes_per_task=2)
    task = stream.open(0)
    before = read_all(task)
    held = task.take(torch.arange(4))
    with pytest.raises(SealError):
        task.close()
    assert not held.any()
    del held
    task = stream.open(0)
    assert read_all(task) == before
    task.close()


def test_one_task_at_a_time() -> None:
    stream = make_stream([5] * 4, classes_per_task=2)
    task = stream.open(0)
    with pytest.raises(SealError, match="one task at a time"):
        stream.open(1)
    task.close()
    assert stream.open(1).labels.unique().tolist() == [2, 3]


def test_going_on_to_the_next_task_closes_the_one_before() -> None:
    tasks = []
    for task in make_stream([5] * 6, classes_per_task=2):
        assert all(earlier.closed for earlier in tasks)
        tasks.append(task)
        task.take(torch.arange(3))
    assert len(tasks) == 3
    assert all(task.closed for task in tasks)
    iterator = iter(make_stream([5] * 6, classes_per_task=2))
    held = next(iterator).take(torch.arange(3))
    with pytest.raises(SealError, match=r"task 1 .*3 of its images"):
        next(iterator)
    assert not held.any()


# -- benchmarks --------------------------------------------------------------------------------------------


def test_digits_are_five_tasks_of_two() -> None:
    stream = open_stream(Settings(benchmark="digits"))
    assert stream.image_shape == (1, 8, 8)
    assert stream.task_classes == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert stream.class_names == tuple("0123456789")
    pixels, target = load_digits(return_X_y=True)
    expected = Counter((np.round(p * 255 / 16 + 1e-9).astype(np.uint8).tobytes(), int(t))
                       for p, t in zip(pixels, target, strict=True))
    met: Counter[tuple[bytes, int]] = Counter()
    for task in stream:
        images = task.take(torch.arange(len(task)))
        met.update((image.numpy().tobytes(), k) for image, k in zip(images, task.labels.tolist(), strict=True))
        del images
    for part in stream.tests:
        images = part.take(0, len(part.labels))
        met.update((image.numpy().tobytes(), k) for image, k in zip(images, part.labels.tolist(), strict=True))
        assert 0.18 < len(part.labels) / stream.task_size(part.classes[0] // 2) < 0.26
    assert met == expected  # all 1797, each once, on one side or the other


def test_settings_reach_the_stream() -> None:
    stream = open_stream(Settings(benchmark="digits", class_order="1993", classes_per_task=3, images_per_class=11))
    assert stream.class_names == tuple(str(c) for c in np.random.RandomState(1993).permutation(10))
    assert [len(c) for c in stream.task_classes] == [3, 3, 3, 1]
    assert [stream.task_size(i) for i in range(4)] == [33, 33, 33, 11]

    def rows(**options: Any) -> list[list[int]]:
        return [task.labels.tolist() for task in open_stream(Settings(benchmark="digits", **options))]

    assert rows(blurry=10, seed=1) == rows(blurry=10, seed=1) != rows(blurry=10, seed=2)
    assert set(rows(blurry=10)[0]) == set(range(10))
    assert set(rows()[0]) == {0, 1}


COLOURS = {"apple": (200, 10, 10), "birch": (10, 200, 10), "cloud": (10, 10, 200), "dune": (200, 200, 10)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plain colours in several sizes and formats, one folder a class."""
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    for name, colour in COLOURS.items():
        (tmp_path / "mine" / name).mkdir(parents=True)
        for i in range(10):
            image = Image.new("RGB", (12 + i, 30 - i), colour)
            image.save(tmp_path / "mine" / name / f"{i}.{('png', 'bmp')[i % 2]}")
    (tmp_path / "mine" / "apple" / "notes.txt").write_text("not a picture")
    return tmp_path / "mine"


@pytest.mark.parametrize("order", ["natural", "1993"])
def test_a_folder_of_pictures_is_a_stream(folder: Path, order: str) -> None:
    settings = Settings(benchmark=f"folder:{folder}", image_size=8, classes_per_task=3, class_order=order)
    for _ in range(2):  # decoded first, from the cache then
        stream = open_stream(settings)
        assert stream.image_shape == (3, 8, 8)
        names = sorted(COLOURS)
        assert stream.class_names == tuple(names[c] for c in class_order(order, 4))
        assert stream.task_classes == [(0, 1, 2), (3,)]
        count = 0
        for index, task in enumerate(stream):
            parts = [(task.take(torch.arange(len(task))), task.labels)]
            test = stream.tests[index]
            parts.append((test.take(0, len(test.labels)), torch.from_numpy(test.labels)))
            for images, labels in parts:
                count += len(labels)
                colours = torch.tensor([COLOURS[stream.class_names[k]] for k in labels])
                assert torch.equal(images.long(), colours.view(-1, 3, 1, 1).expand(-1, 3, 8, 8))
            assert set(test.labels) == set(test.classes) == set(task.classes)
            del parts, images
        assert count == 40


def test_a_folder_has_its_own_defaults(folder: Path) -> None:
    stream = open_stream(Settings(benchmark=f"folder:{folder}"))
    assert stream.image_shape == (3, 32, 32)
    assert stream.task_classes == [(0, 1), (2, 3)]


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere"):
        open_stream(Settings(benchmark=f"folder:{tmp_path / 'nowhere'}"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="bare"):
        open_stream(Settings(benchmark=f"folder:{tmp_path / 'bare'}"))
    monkeypatch.delenv("PROTOCORE_DATA", raising=False)
    for name in (name for name, b in BENCHMARKS.items() if b.data_set != "digits"):
        with pytest.raises(DataError, match=r"gone.*--data-root.*PROTOCORE_DATA.*protocore data get"):
            open_stream(Settings(benchmark=name, data_root=str(tmp_path / "gone")))
    monkeypatch.setenv("PROTOCORE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match="elsewhere"):
        open_stream(Settings(benchmark="cifar10"))
    with pytest.raises(UserError, match=r"cifra10.*did you mean cifar10\?"):
        benchmark_named("cifra10")
