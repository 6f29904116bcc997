"""Experience replay: one forward pass, raw images in memory, each sample offered once; and the bounds' floors."""

import numpy as np
import pytest
import torch

from helpers import begin
from helpers import learner as small_learner
from helpers import marked as images_of
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods.base import Batch
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)


def task_of(labels, seed: int = 0) -> tuple[Task, np.ndarray]:
    images = images_of(labels, seed)
    return plain_task(labels, images=images), images


def learner(method: str = "er", **flags) -> Learner:
    return small_learner(method, **flags)


def watch(mine: Learner) -> list[torch.Tensor]:
    """What goes through the feature extractor, a tensor a forward pass."""
    seen: list[torch.Tensor] = []
    mine.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    return seen


# -- a step --------------------------------------------------------------------------------------------------


def test_a_step_is_one_forward_pass_of_current_and_replayed_images():
    mine = learner(batch=6, replay_batch=5, epochs=2)
    task, _ = task_of([0, 1] * 9)
    seen = watch(mine)
    mine.learn(task)
    # B alone in the very first step; then B + M, as soon as the memory holds M.
    assert [len(x) for x in seen] == [6] + [6 + 5] * 5


def test_the_replay_batch_is_no_larger_than_the_memory():
    mine = learner(batch=2, replay_batch=50, epochs=1, spc=3)
    task, _ = task_of([0, 1] * 6)
    seen = watch(mine)
    mine.learn(task)
    assert [len(x) for x in seen] == [2, 2 + 2, 2 + 4, 2 + 6, 2 + 6, 2 + 6]


def test_memory_holds_images_as_they_are_and_replay_augments_them_anew():
    mine = learner(epochs=2)
    mine.tools.augment = lambda images: to_float(images) + 100
    task, images = task_of([0, 1] * 9)
    seen = watch(mine)
    mine.learn(task)
    assert all(bool((x >= 100).all()) for x in seen)
    assert sum(len(x) for x in seen) > 18
    stored = mine.memory()["exemplars/bytes"]
    labels = mine.memory()["exemplars/labels"]
    originals = {image.tobytes(): image[0, 0, 0] for image in images}
    assert len(stored) == 8
    for image, label in zip(stored.numpy(), labels.tolist(), strict=True):
        assert originals[image.tobytes()] == label


def test_a_sample_is_offered_once_however_many_epochs_there_are():
    mine = learner(epochs=5, spc=9)
    task, _ = task_of([0] * 9 + [1] * 12)
    mine.learn(task)
    kept = mine.memory()
    assert kept["exemplars/seen"].tolist() == [9, 12]
    assert kept["exemplars/labels"].bincount().tolist() == [9, 9]
    assert len({image.tobytes() for image in kept["exemplars/bytes"].numpy()}) == 18


def test_a_reservoir_over_the_stream_counts_every_sample_once():
    mine = learner(epochs=3, capacity=7)
    for first in (0, 2):
        task, _ = task_of(np.arange(20) % 2 + first, seed=first)
        mine.learn(task)
    kept = mine.memory()
    assert kept["exemplars/seen"].tolist() == [40]
    assert len({image.tobytes() for image in kept["exemplars/bytes"].numpy()}) == 7


def step(mine: Learner, labels: list[int]) -> tuple[Batch, torch.Tensor]:
    images = torch.from_numpy(images_of(np.array(labels), seed=9))
    batch = Batch(images, to_float(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=True)
    return batch, mine.method.loss(batch)


def cross_entropy_by_hand(logits: torch.Tensor, labels: list[int], classes: list[int]) -> torch.Tensor:
    terms = [torch.logsumexp(row[classes], 0) - row[label] for row, label in zip(logits, labels, strict=True)]
    return sum(terms, torch.zeros(())) / len(terms)


@pytest.fixture
def second_task() -> dict[str, Learner]:
    """Learners inside their second task: classes 0, 1 in memory, 2, 3 current."""
    made = {}
    for current in ("all", "masked"):
        mine = learner(current=current, replay_batch=8)
        mine.learn(task_of([0, 1] * 9)[0])
        begin(mine, task_of([2, 3] * 9, seed=1)[0])
        made[current] = mine
    return made


def test_the_loss_is_the_mean_over_both_halves(second_task):
    mine = second_task["all"]
    seen = watch(mine)
    _, loss = step(mine, [2, 3, 2])
    (x,) = seen
    labels = [2, 3, 2] + [int(v) for v in (x[3:, 0, 0, 0] * 255).round()]
    assert len(labels) == 3 + 8
    expected = cross_entropy_by_hand(mine.net(x), labels, [0, 1, 2, 3])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_masked_current_data_compete_among_the_current_classes_only(second_task):
    mine = second_task["masked"]
    seen = watch(mine)
    _, loss = step(mine, [2, 3, 2])
    (x,) = seen
    old = [int(v) for v in (x[3:, 0, 0, 0] * 255).round()]
    logits = mine.net(x)
    expected = (cross_entropy_by_hand(logits[:3], [2, 3, 2], [2, 3])
                + cross_entropy_by_hand(logits[3:], old, [0, 1, 2, 3]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_masked_holds_also_where_nothing_is_replayed():
    mine = learner(current="masked", replay_batch=0)
    mine.learn(task_of([0, 1] * 9)[0])
    begin(mine, task_of([2, 3] * 9, seed=1)[0])
    batch, loss = step(mine, [2, 3, 3])
    expected = cross_entropy_by_hand(mine.net(batch.x), [2, 3, 3], [2, 3])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("method", ["er", "finetune"])
def test_label_smoothing_reaches_the_loss(method):
    mine = learner(method=method, label_smoothing=0.2)
    begin(mine, task_of([0, 1, 2] * 6)[0])
    batch, loss = step(mine, [0, 1, 1])
    logits = mine.net(batch.x)
    right = cross_entropy_by_hand(logits, [0, 1, 1], [0, 1, 2])
    uniform = sum(cross_entropy_by_hand(logits, [c] * 3, [0, 1, 2]) for c in range(3)) / 3
    assert loss.item() == pytest.approx((0.8 * right + 0.2 * uniform).item(), rel=1e-5)


@pytest.mark.parametrize(("draw", "share"), [("uniform", 0.9), ("balanced", 0.5)])
def test_replay_batches_are_uniform_over_exemplars_or_balanced_over_classes(draw, share):
    mine = learner(draw=draw, capacity=40, replay_batch=20, epochs=1)
    mine.learn(task_of([0] * 36 + [1] * 4)[0])
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [36, 4]
    torch.manual_seed(0)
    seen = watch(mine)
    for _ in range(60):
        step(mine, [0, 1])
    replayed = torch.cat([x[2:, 0, 0, 0] for x in seen])
    assert len(replayed) == 1200
    assert (replayed == 0).float().mean().item() == pytest.approx(share, abs=0.05)


def test_a_stream_reservoir_needs_a_size():
    with pytest.raises(UserError, match="--fill stream"):
        learner(fill="stream")


def test_balanced_memory_keeps_old_classes_at_their_number():
    mine = learner(spc=4, epochs=1)
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(30) % 2 + first, seed=first)[0])
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [4] * 6


def test_a_budget_is_held_after_every_task_and_a_smaller_one_is_refused_before_training():
    mine = learner(budget=700, fill="class")
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(60) % 2 + first, seed=first)[0])
        assert mine.ledger().total <= 700
        counts = mine.memory()["exemplars/labels"].bincount()
        counts = counts[counts > 0].tolist()
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1
        assert mine.ledger().total > 700 - 17 - 8  # not even one more would fit; headers come in eights
    steps = []
    with pytest.raises(UserError, match="--budget"):
        learner(budget=200, fill="class").learn(task_of([0, 1] * 9)[0], on_step=lambda *a: steps.append(a))
    assert not steps


# -- the bounds on real digits ---------------------------------------------------------------------------------


def test_finetune_floor(tmp_path):
    """What is learned last is all that is left, though each pair of classes can still be told apart."""
    result = run(configure({"method": "finetune", "epochs": 4, "threads": 1}), tmp_path)
    tasks = result.tasks
    assert tasks == 5
    assert 100 * (1 / tasks + 0.05) >= result.class_incremental.A_T
    assert result.class_incremental.A_L >= 90
    assert result.task_incremental.A_T >= 60
    assert result.bytes_kept == result.ledger.entries[-1].bytes  # an empty file's header


def test_joint_is_one_training_with_one_row(tmp_path):
    result = run(configure({"method": "joint", "epochs": 3, "threads": 1}), tmp_path)
    assert [len(row) for row in result.class_incremental.R] == [5]
    assert result.class_incremental.A_T >= 85
    assert result.class_incremental.forgetting is None


def test_er_keeps_what_it_learned(tmp_path):
    result = run(configure({"method": "er", "spc": 20, "epochs": 6, "threads": 1}), tmp_path)
    assert result.class_incremental.A_T >= 85
    assert result.task_incremental.A_T >= 95
