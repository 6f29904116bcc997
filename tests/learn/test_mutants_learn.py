"""Small changes of the code that no other test would see."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers import SHAPE, learner, marked, noise, task_of
from protocore.config import Settings
from protocore.data.images import ArrayImages, array_set
from protocore.data.stream import Stream, Task
from protocore.errors import BudgetError
from protocore.learn import export
from protocore.learn.ahead import evaluate_ahead
from protocore.learn.cflat import flat_step
from protocore.learn.evaluate import evaluate
from protocore.learn.learner import Learner
from protocore.learn.loop import Plan, first_is_over, steps_for
from protocore.learn.merging import merge
from protocore.learn.room import check_stream, end_of, longest, window_size
from protocore.methods.base import Batch, Method
from protocore.runs.configure import configure


@pytest.mark.parametrize(("samples", "epochs", "least", "steps"), [
    (10, 1, 7, 9),  # three steps an epoch: the third epoch is taken to its end
    (10, 1, 9, 9), (10, 1, 10, 12), (10, 5, 7, 15), (10, 2, 0, 6), (3, 1, 4, 4),
])
def test_small_data_is_passed_over_in_whole_epochs_until_there_are_steps_enough(samples: int, epochs: int, least: int,
                                                                                steps: int) -> None:
    assert steps_for(samples, Settings(batch=4, epochs=epochs, least_steps=least)) == steps


def test_told_steps_are_taken_whatever_the_epochs() -> None:
    assert steps_for(10, Settings(batch=4, epochs=5, least_steps=30, steps=7)) == 7


@pytest.mark.parametrize(("number", "over"), [(0, False), (-1, False), (1, True), (-2, True)])
def test_in_a_blurry_stream_the_first_task_is_the_first_window_with_its_second_phase(number: int, over: bool) -> None:
    mine = learner("rm", online=True, blurry=10)
    assert first_is_over(mine.method, Plan(8, 4, 2, (0, number))) is over


def test_a_second_phase_is_that_of_the_window_before_it_and_no_task_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or flat steps would begin with the second phase of the first window, and orders of rows would come twice."""
    told: list[tuple[int, bool]] = []

    def watched(method: Method, task: Task, plan: Plan, *more: object, **hooks: object) -> None:
        told.append((plan.seed[1], first_is_over(method, plan)))

    monkeypatch.setattr("protocore.learn.learner.fit", watched)
    mine = learner("rm", online=True, blurry=10)
    for number in range(2):
        mine.learn_window(task_of([0, 1] * 6, seed=number))
    assert told == [(0, False), (-1, False), (1, True), (-2, True)]


def test_after_a_flat_step_the_generator_stands_where_the_first_evaluation_left_it() -> None:
    net = nn.Linear(2, 1)

    def again() -> torch.Tensor:
        return net(torch.ones(1, 2)).square().sum()

    def first() -> torch.Tensor:
        torch.rand(3)  # such as what only the first evaluation notes down
        return again()

    torch.manual_seed(0)
    flat_step(again, first, net, list(net.parameters()), 0.1, 0.2)
    after = torch.rand(4)
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(after, torch.rand(4))


def test_a_class_that_has_not_come_yet_is_no_choice_and_no_mistake_of_the_program() -> None:
    """Online a task may be measured before its last class has come: the network has no output for it."""
    labels = np.array([0, 1, 2] * 4)
    some = array_set(ArrayImages(marked(labels)), labels, ("a", "b", "c"))
    stream = Stream(some, some, classes_per_task=3)
    mine = learner("er")
    mine.learn(task_of([0, 1] * 4, images=marked([0, 1] * 4)))
    row = evaluate(mine, stream, 1)
    assert row.per_class[2] == 0
    assert row.class_incremental == row.task_incremental
    assert row.class_incremental[0] <= 100 * 8 / 12


@pytest.mark.parametrize(("window", "batch", "size"), [(25, 10, 20), (30, 10, 30), (5, 10, 10)])
def test_windows_of_an_online_stream_are_whole_batches(window: int, batch: int, size: int) -> None:
    assert window_size(Settings(online=True, online_window=window, batch=batch)) == size


def test_a_loaded_learner_knows_which_classes_came_first(tmp_path: Path) -> None:
    """C-Flat, online, waits for the first class that is not among them."""
    mine = learner("er")
    for labels in ([0, 1], [2]):
        mine.learn(task_of(labels * 4))
    mine.save(tmp_path / "learner")
    again = Learner.load(tmp_path / "learner")
    assert (again.method.first_classes, again.method.seen, again.method.current) == ([0, 1], [0, 1, 2], [2])


@pytest.mark.parametrize("method", ["lwf", "icarl"])
def test_a_loaded_learner_still_says_what_was_held_during_its_tasks_and_what_that_was(method: str, tmp_path: Path
                                                                                      ) -> None:
    mine = learner(method)
    for labels in ([0, 1], [2]):
        mine.learn(task_of(labels * 4))
    rows = [e for e in mine.ledger().entries if e.shared]
    assert [(e.name, e.kind) for e in rows] == [("previous network, during a task", "network")]
    mine.save(tmp_path / "learner")
    again = Learner.load(tmp_path / "learner")
    assert again.ledger() == mine.ledger()
    assert again.images_learned == mine.images_learned > 0


@pytest.mark.parametrize("online", [False, True])
def test_the_end_of_a_stream_has_its_largest_task_in_mind_wherever_that_comes(online: bool) -> None:
    labels = np.array([0, 1] * 3 + [2, 3] * 10 + [4, 5] * 2)
    some = array_set(ArrayImages(marked(labels)), labels, tuple("abcdef"))
    at = end_of(learner("er", online=online, online_window=18), Stream(some, some, classes_per_task=2), 5)
    assert (at.tasks, at.images) == ((2, 18) if online else (3, 20))
    assert online or at.of_class == 10
    assert at.classes == (0, 1, 2, 3, 4, 5)
    assert {(size.mean, size.most) for size in at.sizes.values()} == {(5, 5)}


def test_in_codec_space_every_test_picture_passes_through_the_codec_once(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0, 1] * 6)
    shape = (1, 16, 16)
    some = array_set(ArrayImages(marked(labels, shape=shape)), labels, ("a", "b"))
    mine = learner("er", shape, codec="webp:10", replay_space="codec")
    mine.learn(task_of(labels, images=marked(labels, shape=shape)))
    coded, real = [], mine.through_codec
    monkeypatch.setattr(mine, "through_codec", lambda x, rows=None: coded.append(len(x)) or real(x, rows))
    kept: dict[int, torch.Tensor] = {}
    stream = Stream(some, some, classes_per_task=2)
    first = evaluate(mine, stream, 1, kept)
    assert evaluate(mine, stream, 1, kept) == first
    assert coded == [12]
    assert torch.equal(kept[0], real(torch.from_numpy(marked(labels, shape=shape))))


def test_a_window_of_an_online_stream_is_learned_in_the_order_in_which_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may end inside it, and is measured there: what comes later must not be learned before."""
    mine, met = learner("er", online=True), []
    after = mine.method.after_step

    def watched(batch: Batch) -> None:
        met.extend(batch.rows.tolist())
        after(batch)

    monkeypatch.setattr(mine.method, "after_step", watched)
    mine.learn_window(task_of([0, 1] * 10))
    assert met == list(range(20))


def test_a_certificate_asks_for_the_others_without_the_class_before_and_after() -> None:
    """Else what the class drew to itself would look like something that forgetting has mended."""
    mine = learner("er")
    labels = [0, 1, 2] * 8
    mine.learn(task_of(labels, images=marked(labels)))
    assert mine.net.head.bias is not None
    with torch.no_grad():
        mine.net.head.bias[1] = 1e4
    found = mine.forget(1)
    assert found.others_before == found.others_after
    assert found.others_before is not None
    assert found.others_before > 0


def test_with_its_last_class_a_learner_forgets_how_sure_it_was() -> None:
    mine = learner("er")
    mine.learn(task_of([0, 1] * 6))
    mine.temperature = 3.0
    mine.forget(0)
    assert mine.temperature == 3.0
    mine.forget(1)
    assert mine.temperature == 1.0


def test_before_a_task_is_learned_one_output_of_each_class_is_asked_however_many_it_has(
        monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0, 1, 2, 3] * 4)
    some = array_set(ArrayImages(marked(labels)), labels, tuple("abcd"))

    class Sure:
        """Right by the first of a class's four outputs, and loud in the others."""

        def grow(self, outputs: int) -> None:
            self.outputs = outputs

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            logits = torch.full((len(x), self.outputs), 5.0)
            logits[:, ::4] = 0
            logits[torch.arange(len(x)), 4 * (255 * x[:, 0, 0, 0]).round().long()] = 1
            return logits

    mine = learner("pass")
    monkeypatch.setattr(mine.net, "frozen_copy", Sure)
    assert evaluate_ahead(mine, Stream(some, some, classes_per_task=2), 1, {}) == (100, 100)


def test_features_that_two_merged_learners_see_are_those_that_their_front_has_made() -> None:
    """The pictures of one are far brighter: feature pictures of both have another scale than before."""
    dark, light = noise([0, 1] * 6) // 8, noise([0, 1] * 6, seed=1)
    config = configure({"method": "ncm", "benchmark": "digits", "threads": 1, "freeze": "all"})
    mine, other = (Learner.of(config, SHAPE, backbone=nn.Flatten()) for _ in range(2))
    for one, images, names in ((mine, dark, ["a", "b"]), (other, light, ["c", "d"])):
        one.learn(Task.from_arrays(images, [0, 1] * 6, names))
    assert mine.front is not None
    before = float(mine.front.high)
    merge(mine, other)
    assert float(mine.front.high) > 1.2 * before
    x = torch.from_numpy(light).float() / 255
    with torch.no_grad():
        assert torch.allclose(mine.net.backbone(mine.front(x)), mine.front.roots(x), atol=1e-5)


class Sayer:
    """A graph that says these classes, whatever it is shown."""

    def __init__(self, columns: list[int]) -> None:
        self.columns = columns

    def scores(self, images: np.ndarray) -> np.ndarray:
        return np.eye(3, dtype=np.float32)[self.columns[: len(images)]]


def test_what_whole_numbers_cost_is_told_beside_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    true, worse = [0, 1, 2, 0], [0, 1, 1, 1]
    monkeypatch.setattr(export, "in_whole_numbers", lambda model, pictures: "whole")
    monkeypatch.setattr(export, "opened", lambda path, data: Sayer(worse))
    sample = export.Sample(torch.from_numpy(noise(true)), "the caller", torch.tensor([0, 1, 2, -1]))
    made, told = export._quantised(Path("x"), "floats", lambda of: b"." * len(of), Sayer(true), sample)  # type: ignore
    assert made == "whole"
    assert (told.float_accuracy, told.accuracy) == (1.0, pytest.approx(2 / 3))  # one picture is of no known class
    assert (told.agreement, told.float_bytes) == (0.5, 6)


@pytest.mark.parametrize(("method", "flags", "enough"), [
    ("er", {}, True), ("protocore", {"exemplars": "coded"}, True), ("protocore", {"exemplars": "synthetic"}, False)])
def test_pictures_of_the_data_say_nothing_of_the_size_of_invented_ones(method: str, flags: dict[str, str],
                                                                       enough: bool) -> None:
    """They may take as many bytes as the codec ever writes."""
    shape, labels = (3, 32, 32), np.repeat(np.arange(4), 6)
    images = np.full((len(labels), *shape), 90, np.uint8)
    some = array_set(ArrayImages(images), labels, tuple("abcd"))
    stream = Stream(some, some, classes_per_task=2)

    def made(budget: int) -> Learner:
        return learner(method, shape, codec="vqgan:2,entropy", spc=1, budget=budget, **flags)

    mine = made(10**6)
    largest = mine.tools.codec.largest
    assert largest is not None
    real, most = (mine.method.bytes_at(end_of(mine, stream, size), 4) for size in (longest(mine, stream), largest))
    assert real < most
    check_stream(made(most), stream)
    if enough:
        check_stream(made(real), stream)
    else:
        with pytest.raises(BudgetError, match="to the end of the stream"):
            check_stream(made(most - 1), stream)
