"""Nearest class mean, and the means that are stored for it."""

import numpy as np
import pytest
import torch

from helpers import task_of
from protocore.data.stream import Task
from protocore.errors import BudgetError
from protocore.learn.learner import Learner
from protocore.memory.plan import Horizon, plan_of
from protocore.methods.parts.means import ClassMeans, at_home, by_class, nearest_mean_scores
from protocore.runs.configure import configure


def unit(v: list[float]) -> list[float]:
    length = sum(a * a for a in v) ** 0.5
    return [a / length for a in v] if length else v


def scores_by_hand(z: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[-sum((a - b) ** 2 for a, b in zip(unit(x), unit(m), strict=True)) for m in means.tolist()]
                         for x in z.tolist()])


def test_scores_are_minus_squared_distances_of_unit_vectors():
    torch.manual_seed(0)
    z, means = torch.randn(9, 5), 3 * torch.randn(4, 5)
    found = nearest_mean_scores(z, means)
    assert found.shape == (9, 4)
    torch.testing.assert_close(found, scores_by_hand(z, means), atol=1e-6, rtol=1e-5)
    cosines = torch.nn.functional.cosine_similarity(z[:, None], means[None], dim=2)
    torch.testing.assert_close(found, 2 * cosines - 2, atol=1e-6, rtol=1e-5)


def test_worked_example():
    # (3, 4) is (0.6, 0.8): squared distance 0.16 + 0.64 to (1, 0), 0.36 + 0.04 to (0, 1), 4 to its opposite.
    found = nearest_mean_scores(torch.tensor([[3.0, 4.0]]), torch.tensor([[9.0, 0.0], [0.0, 0.1], [-6.0, -8.0]]))
    torch.testing.assert_close(found, torch.tensor([[-0.8, -0.4, -4.0]]))


def test_lengths_do_not_matter_and_a_zero_vector_is_one_away_from_every_mean():
    torch.manual_seed(1)
    z, means = torch.randn(6, 7), torch.randn(3, 7)
    plain = nearest_mean_scores(z, means)
    scaled = nearest_mean_scores(z * torch.rand(6, 1).add(0.1) * 100, means * torch.tensor([[0.01], [5.0], [300.0]]))
    torch.testing.assert_close(plain, scaled, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(nearest_mean_scores(torch.zeros(2, 7), means), -torch.ones(2, 3))
    torch.testing.assert_close(nearest_mean_scores(z, torch.zeros(1, 7)), -torch.ones(6, 1))


def test_means_that_half_precision_cannot_tell_apart_are_told_apart_under_autocast():
    means = torch.tensor([[1.0, 0.00], [1.0, 0.02]])  # 4e-4 apart; scores of bfloat16 have steps of 8e-3
    with torch.autocast("cpu", torch.bfloat16):
        found = nearest_mean_scores(means.clone(), means)
    assert found.dtype == torch.float32
    assert found.argmax(1).tolist() == [0, 1]


def test_scores_stand_in_the_columns_of_their_classes():
    found = by_class(torch.tensor([[1.0, 2.0]]), [3, 1], 5)
    assert found.tolist() == [[float("-inf"), 2.0, float("-inf"), 1.0, float("-inf")]]


@pytest.mark.parametrize(("labels", "home"), [
    ([0] * 10 + [1] * 10, [0, 1]),
    ([2] * 7, [2]),
    ([0] * 9 + [1] * 10 + [5], [0, 1]),  # an equal share would be 20/3; half of it is more than 1
    ([0] * 12 + [1] * 4, [0, 1]),  # 4 is half of 8
    ([0] * 13 + [1] * 3, [0]),
])
def test_what_a_task_is_about(labels, home):
    task = task_of(labels, shape=(1, 2, 2))
    assert at_home(task) == home


# -- stored means ------------------------------------------------------------------------------------------------


def test_a_returning_class_counts_by_its_images_and_one_made_anew_does_not():
    torch.manual_seed(2)
    z, labels = torch.randn(20, 3), torch.tensor([0, 1] * 10)
    means = ClassMeans(3, "float32")
    means.update(z[:6], labels[:6])
    means.update(z[6:], labels[6:])
    expected = torch.stack([z[labels == c].mean(0) for c in (0, 1)])
    torch.testing.assert_close(means.get([0, 1]), expected, atol=1e-6, rtol=1e-5)
    assert means.counts == {0: 10, 1: 10}
    means.update(z[:4], labels[:4], anew=[1])
    torch.testing.assert_close(means.get([1])[0], z[[1, 3]].mean(0))
    torch.testing.assert_close(means.get([0])[0], (10 * expected[0] + z[0] + z[2]) / 12, atol=1e-6, rtol=1e-5)
    assert means.counts == {0: 12, 1: 2}


@pytest.mark.parametrize(("dtype", "wide"), [("float16", 2), ("float32", 4)])
def test_what_is_stored_is_what_is_used_and_its_size_is_known_before(dtype, wide):
    torch.manual_seed(3)
    means = ClassMeans(5, dtype)
    means.update(torch.randn(12, 5), torch.arange(12) % 3 * 2)
    kept = means.tensors()
    assert {name: t.nbytes for name, t in kept.items()} == {
        "prototypes/features": 3 * 5 * wide, "prototypes/labels": 3, "prototypes/counts": 12}
    assert means.plan(Horizon((0, 2, 4))) == plan_of(kept)
    again = ClassMeans(5, dtype)
    again.load(kept)
    assert again.classes == [0, 2, 4]
    assert again.counts == means.counts
    assert torch.equal(again.get([0, 2, 4]), means.get([0, 2, 4]))
    again.load({})
    assert not len(again)
    assert again.counts == {}


@pytest.mark.parametrize("method", ["fecam", "pass", "ldc", "adc"])
def test_a_budget_too_small_is_refused_before_the_training_and_the_least_one_named_is_enough(method):
    flags = {"method": method, "backbone": "mlp", "width": 6, "threads": 1, "epochs": 1, "batch": 4}
    images = np.random.default_rng(0).integers(0, 256, (12, 1, 4, 4), dtype=np.uint8)
    steps: list[int] = []
    with pytest.raises(BudgetError, match="--budget 40 bytes cannot hold 3 classes") as refused:
        Learner.of(configure(flags | {"budget": 40}), (1, 4, 4)).learn(
            Task.from_arrays(images, np.arange(12) % 3), on_step=lambda *a: steps.append(1))
    assert not steps
    least = int(str(refused.value).split("need --budget ")[1])
    mine = Learner.of(configure(flags | {"budget": least}), (1, 4, 4))
    mine.learn(Task.from_arrays(images, np.arange(12) % 3))
    assert mine.ledger().total == least
