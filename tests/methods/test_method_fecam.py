"""FeCAM: the worked example, invariances of the distance, what is stored, and a network that stays as it was."""

import numpy as np
import pytest
import torch

from helpers import learner as small_learner
from helpers import noise
from helpers import task_of as plain_task
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.memory.covariances import Covariances
from protocore.memory.plan import Horizon, plan_of
from protocore.memory.prototypes import PrototypeStore
from protocore.methods.parts.gaussian import correlation, covariance, distances, pooled, shrunk, tukey
from protocore.runs.configure import configure
from protocore.runs.job import run
from protocore.runs.reporters import Reporter

SMALL = {"method": "fecam", "backbone": "mlp", "width": 32, "threads": 1}
# five images of one class; their roots are (1,1) (2,2) (3,2) (4,3) (2,1)
CLASS = torch.tensor([[1.0, 1.0], [4.0, 4.0], [9.0, 4.0], [16.0, 9.0], [4.0, 1.0]], dtype=torch.float64)
POINT = torch.tensor([[4.0, 16.0]], dtype=torch.float64)


def unit(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def distance(point: torch.Tensor, mean: torch.Tensor, matrix: torch.Tensor) -> float:
    return float(distances(unit(point.sqrt()), unit(mean.sqrt())[None], [torch.linalg.inv(matrix)]))


# -- the worked example -----------------------------------------------------------------------------------------


def test_statistics_of_the_worked_example():
    assert CLASS.mean(0).tolist() == pytest.approx([6.8, 3.8])  # of the features, not of their roots
    cov = covariance(tukey(CLASS, 0.5))
    torch.testing.assert_close(cov, torch.tensor([[1.3, 0.85], [0.85, 0.7]], dtype=torch.float64))
    once = shrunk(cov, 1, 1)
    torch.testing.assert_close(once, torch.tensor([[2.3, 1.7], [1.7, 1.7]], dtype=torch.float64))
    twice = shrunk(once, 1, 1)
    torch.testing.assert_close(twice, torch.tensor([[4.3, 3.4], [3.4, 3.7]], dtype=torch.float64))
    assert float(correlation(twice)[0, 1]) == pytest.approx(0.852401, abs=1e-6)
    assert float(correlation(once)[0, 1]) == pytest.approx(0.859727, abs=1e-6)


def test_distances_of_the_worked_example():
    mean, cov = CLASS.mean(0), covariance(tukey(CLASS, 0.5))
    offset = unit(tukey(POINT, 0.5)) - unit(tukey(mean, 0.5))
    assert offset[0].tolist() == pytest.approx([-0.353729, 0.295686], abs=1e-6)
    assert distance(POINT, mean, correlation(shrunk(shrunk(cov, 1, 1), 1, 1))) == pytest.approx(1.429577, abs=1e-6)
    assert distance(POINT, mean, torch.eye(2, dtype=torch.float64)) == pytest.approx(0.212555, abs=1e-6)


class Given(torch.nn.Module):
    """Pixels are the features."""

    dim = 2

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(("shrinks", "expected"), [(2, 1.429577), (1, None), (0, None)])
def test_the_whole_method_gives_the_distance_of_the_worked_example(shrinks, expected):
    flags = {"covariance_dtype": "float32", "prototype_dtype": "float32", "shrinks": shrinks, "width": 2}
    mine = Learner.of(configure(SMALL | flags), (1, 1, 2))
    method = mine.method
    method.net = Given()  # type: ignore[assignment]
    images = CLASS.to(torch.uint8).view(5, 1, 1, 2).numpy()
    method.seen, method.current = [0], [0]
    method.end_task(Task.from_arrays(images, np.zeros(5, np.int64)))
    # bytes reach the network as parts of 255: a common factor of the features, which must not matter
    found = -float(method.scores(POINT.float().view(1, 1, 1, 2)))
    if expected is None:
        cov = covariance(tukey(CLASS, 0.5))
        expected = distance(POINT, CLASS.mean(0), correlation(shrunk(cov, 1, 1) if shrinks else cov))
    assert found == pytest.approx(expected, rel=2e-5)


# -- properties -------------------------------------------------------------------------------------------------


@pytest.fixture
def rows() -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)).relu() + 0.1


def test_covariance_is_numpy_s_and_of_one_row_it_is_zero(rows):
    np.testing.assert_allclose(covariance(rows).numpy(), np.cov(rows.numpy(), rowvar=False), rtol=1e-12)
    assert torch.equal(covariance(rows[:1]), torch.zeros(6, 6, dtype=torch.float64))


def test_shrinkage_entry_by_entry(rows):
    cov = covariance(rows)
    v1 = sum(float(cov[i, i]) for i in range(6)) / 6
    v2 = sum(float(cov[i, j]) for i in range(6) for j in range(6) if i != j) / 30
    expected = [[float(cov[i, j]) + (0.7 * v1 if i == j else 0.3 * v2) for j in range(6)] for i in range(6)]
    torch.testing.assert_close(shrunk(cov, 0.7, 0.3), torch.tensor(expected, dtype=torch.float64))


def test_dead_units_count_in_the_mean_of_the_entries_unless_they_are_left_out():
    cov = torch.tensor([[2.0, 1.0, 0.0], [1.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    assert shrunk(cov, 1, 1)[0].tolist() == pytest.approx([2 + 2, 1 + 1 / 3, 1 / 3])
    assert shrunk(cov, 1, 1, nonzero=True)[0].tolist() == pytest.approx([2 + 2, 1 + 1, 1])


@pytest.mark.parametrize("nonzero", [False, True])
def test_an_exactly_diagonal_covariance_has_no_mean_off_it(nonzero):
    cov = torch.diag(torch.tensor([1.0, 2.0, 6.0]))
    found = shrunk(cov, 1, 1, nonzero=nonzero)
    assert torch.equal(found, torch.diag(torch.tensor([4.0, 5.0, 9.0])))
    assert torch.equal(correlation(found), torch.eye(3))


def test_a_correlation_has_a_unit_diagonal_and_is_positive_definite(rows):
    found = correlation(shrunk(shrunk(covariance(tukey(rows, 0.5)), 1, 1), 1, 1))
    torch.testing.assert_close(found.diagonal(), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(found, found.T)
    assert float(torch.linalg.eigvalsh(found)[0]) > 0
    assert float(found.abs().max()) <= 1 + 1e-9
    assert torch.equal(correlation(torch.zeros(3, 3)), torch.eye(3))


def test_with_the_identity_it_is_euclid_and_with_any_matrix_the_quadratic_form(rows):
    x, means = unit(rows[:7].sqrt()), unit(rows[7:10].sqrt())
    eye = [torch.eye(6, dtype=torch.float64)] * 3
    torch.testing.assert_close(distances(x, means, eye), torch.cdist(x, means) ** 2)
    inverses = [torch.linalg.inv(covariance(rows[i::3])) for i in range(3)]
    by_hand = [[float((a - m) @ inverse @ (a - m)) for m, inverse in zip(means, inverses, strict=True)] for a in x]
    torch.testing.assert_close(distances(x, means, inverses), torch.tensor(by_hand, dtype=torch.float64))


def test_only_correlation_counts():
    matrix = torch.linalg.inv(torch.tensor([[1.0, 0.85], [0.85, 1.0]]))
    offsets, origin = torch.tensor([[0.1, 0.1], [0.1, -0.1]]), torch.zeros(1, 2)
    assert distances(offsets, origin, [matrix]).flatten().tolist() == pytest.approx([0.0108, 0.1333], abs=5e-5)
    assert distances(offsets, origin, [torch.eye(2)]).flatten().tolist() == pytest.approx([0.02, 0.02])
    torch.manual_seed(1)
    stretched = torch.randn(100000, 3) * torch.tensor([1.0, 5.0, 20.0])  # along the axes: nothing to correlate
    assert float((correlation(covariance(stretched)) - torch.eye(3)).abs().max()) < 0.02


def test_powers():
    z = torch.tensor([[0.0, 4.0, 9.0]])
    assert tukey(z, 0.5)[0].tolist() == pytest.approx([0.0, 2.0, 3.0])
    assert tukey(z, 1) is z
    assert tukey(z, 0)[0, 1:].tolist() == pytest.approx([1.386294, 2.197225], abs=1e-6)
    assert bool(tukey(z, 0).isfinite().all())
    with pytest.raises(UserError, match="--tukey 1"):
        tukey(z - 1, 0.5)
    assert tukey(z - 1, 1).min() == -1


def test_pooling_weighs_by_degrees_of_freedom_and_one_row_adds_nothing(rows):
    parts = rows[:10], rows[10:40]
    centred = torch.cat([part - part.mean(0) for part in parts])
    found = pooled(covariance(parts[0]), 10, covariance(parts[1]), 30)
    torch.testing.assert_close(found, centred.T @ centred / 38)
    torch.testing.assert_close(pooled(covariance(parts[1]), 30, covariance(rows[:1]), 1), covariance(parts[1]))
    assert torch.equal(pooled(covariance(rows[:1]), 1, covariance(rows[1:2]), 1), covariance(rows[:1]))


# -- what is stored ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "wide", "near"), [("float16", 2, 1e-3), ("float32", 4, 1e-6)])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_a_covariance_is_stored_as_its_triangle_at_any_scale(rows, dtype, wide, near, scale):
    cov = covariance(rows) * scale
    means = PrototypeStore(6)
    means.set([1, 4], torch.zeros(2, 6))
    store = Covariances(6, dtype, "prototypes", means)
    store.set(4, cov)
    store.set(1, torch.zeros(6, 6))
    kept = store.tensors()
    assert {name: t.nbytes for name, t in kept.items()} == {
        "prototypes/triangles": 2 * 21 * wide, "prototypes/scales": 8}
    assert store.plan(Horizon((1, 4))) == plan_of(kept)
    again = Covariances(6, dtype, "prototypes", means)
    again.load(kept)
    assert torch.equal(again.get(4), store.get(4))
    assert torch.equal(again.get(1), torch.zeros(6, 6, dtype=torch.float64))
    assert torch.equal(again.get(4), again.get(4).T)
    assert float((again.get(4) - cov).abs().max()) < near * float(cov.abs().max())


def task_of(labels, seed: int = 0) -> Task:
    images = noise(labels, seed)
    images[:, 0, 0, :] = np.asarray(labels)[:, None] * 25
    return plain_task(labels, images=images)


def learner(**flags) -> Learner:
    return small_learner(**SMALL | {"epochs": 2, "batch": 8, "width": 12} | flags)


def test_the_network_is_trained_on_the_first_task_and_then_stays_as_it_is():
    mine = learner()
    before = {k: v.clone() for k, v in mine.net.backbone.state_dict().items()}
    mine.learn(task_of([0, 1, 2] * 8))
    after = {k: v.clone() for k, v in mine.net.backbone.state_dict().items()}
    assert not any(torch.equal(before[k], v) for k, v in after.items())
    steps: list[int] = []
    mine.learn(task_of([3, 4] * 8, seed=1), on_step=lambda *a: steps.append(1))
    assert not steps
    assert all(torch.equal(v, after[k]) for k, v in mine.net.backbone.state_dict().items())
    assert mine.predict(torch.zeros(3, 1, 4, 4)).max() <= 4


def test_statistics_of_a_class_that_returns_are_those_of_all_its_images_up_to_the_parts_own_means():
    mine = learner(covariance_dtype="float32", prototype_dtype="float32")
    mine.learn(task_of([0, 1, 2] * 8))
    old = mine.method.covariances.get(1).clone()
    z_old = mine.method.means.get([1]) * 8
    task = task_of([1] * 5 + [3] * 9, seed=2)
    z, labels = mine.method.task_features(task)
    mine.learn(task)
    torch.testing.assert_close(mine.method.means.get([1])[0], (z_old[0] + z[labels == 1].sum(0)) / 13,
                               atol=1e-6, rtol=1e-4)
    new = covariance(tukey(z[labels == 1].double(), 0.5))
    torch.testing.assert_close(mine.method.covariances.get(1), (7 * old + 4 * new) / 11, atol=1e-7, rtol=1e-4)
    assert mine.method.means.counts == {0: 8, 1: 13, 2: 8, 3: 9}


def test_a_shared_covariance_weighs_every_class_alike():
    mine = learner(covariance="shared", covariance_dtype="float32")
    first, second = task_of([0, 1, 2] * 8), task_of([3] * 6 + [4] * 10 + [1] * 2, seed=1)
    mine.learn(first)
    base = mine.method.covariances.get(0).clone()
    z, labels = mine.method.task_features(second)
    mine.learn(second)
    new = [covariance(tukey(z[labels == c].double(), 0.5)) for c in (3, 4)]
    torch.testing.assert_close(mine.method.covariances.get(0), (3 * base + new[0] + new[1]) / 5, atol=1e-7, rtol=1e-4)
    assert mine.memory()["shared covariance/triangles"].shape == (1, 78)


def test_while_the_network_is_trained_a_shared_covariance_holds_nothing_of_what_it_was_before():
    """A class that is measured anew in a later window does not count among the old ones, too."""
    mine = learner(covariance="shared", covariance_dtype="float32", online=True, first_windows=3)
    mine.learn_window(task_of([0, 1, 2] * 8))
    base, second = mine.method.covariances.get(0), task_of([1, 2] * 9, seed=1)
    mine.learn_window(second)
    z, labels = mine.method.task_features(task_of([1, 2] * 9, seed=1))
    new = [covariance(tukey(z[labels == c].double(), 0.5)) for c in (1, 2)]
    torch.testing.assert_close(mine.method.covariances.get(0), (base + new[0] + new[1]) / 3, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("covariance", ["class", "shared"])
def test_an_inverse_is_made_anew_when_its_covariance_has_changed(covariance):
    mine = learner(covariance=covariance)
    mine.learn(task_of([0, 1, 2] * 8))
    first = mine.method.inverses([0, 1])
    mine.learn(task_of([3] * 12 + [1] * 4, seed=1))
    found = mine.method.inverses([0, 1])
    assert torch.equal(found[0], first[0]) == (covariance == "class")  # what stayed was not inverted again
    assert not torch.equal(found[1], first[1])
    mine.method._inverses = {}
    assert all(map(torch.equal, found, mine.method.inverses([0, 1])))


def test_one_image_of_a_class_is_enough():
    mine = learner()
    mine.learn(task_of([0, 1, 2] * 8))
    mine.learn(task_of([3, 4, 4], seed=1))
    assert bool(mine.scores(torch.rand(4, 1, 4, 4)).isfinite().all())


def test_right_after_the_first_task_the_head_answers_if_it_is_asked_to():
    mine, x = learner(head_first=True), torch.rand(5, 1, 4, 4)
    mine.learn(task_of([0, 1, 2] * 8))
    torch.testing.assert_close(mine.scores(x), mine.net(x).detach())
    mine.learn(task_of([3, 4] * 8, seed=1))
    assert mine.scores(x).max() <= 0
    assert mine.scores(x).shape == (5, 5)


@pytest.mark.parametrize("covariance", ["class", "shared"])
def test_a_learner_read_back_predicts_the_same_and_knows_that_it_is_frozen(tmp_path, covariance):
    mine, x = learner(covariance=covariance), torch.rand(20, 1, 4, 4)
    mine.learn(task_of([0, 1, 2] * 8))
    mine.save(tmp_path / "learner")
    again = learner(covariance=covariance)
    again.restore(tmp_path / "learner")
    assert torch.equal(again.scores(x), mine.scores(x))
    assert again.memory().keys() == mine.memory().keys()
    assert all(torch.equal(again.memory()[k], v) for k, v in mine.memory().items())
    assert not again.method.wants_training(task_of([3]))
    # 3 classes of d = 12: mean, triangle or one triangle for all, in half precision; label, count, scale
    kept = {"class": 3 * 2 * (12 + 78) + 3 + 12 + 12 + 4, "shared": 2 * (3 * 12 + 78) + 3 + 12 + 4 + 4}[covariance]
    assert sum(t.nbytes for t in mine.memory().values()) == kept


@pytest.mark.parametrize("flags", [{"tukey": -0.5}, {"shrinks": -1}, {"gamma1": -1}, {"first_windows": 0}])
def test_numbers_that_make_no_sense_are_refused(flags):
    with pytest.raises(UserError, match="--" + next(iter(flags)).replace("_", "-")):
        learner(**flags)


# -- digits -----------------------------------------------------------------------------------------------------


def test_digits(tmp_path):
    """Half of the classes first; fine-tuning ends at 45 %."""
    result = run(configure(SMALL | {"epochs": 6, "classes_per_task": 5, "width": 64}), tmp_path)
    assert result.class_incremental.A_T >= 85
    assert result.class_incremental.R[1][0] >= 90  # a frozen network forgets little
    euclid = SMALL | {"epochs": 6, "classes_per_task": 5, "width": 64, "shrinks": 1, "gamma1": 1e6}
    assert result.class_incremental.A_T > run(configure(euclid), tmp_path / "i").class_incremental.A_T


def test_online_the_first_windows_stand_for_the_first_task(tmp_path):
    flags = SMALL | {"online": True, "online_window": 100, "first_windows": 4, "width": 64, "classes_per_task": 5}
    trained: list[int] = []

    class Steps(Reporter):
        def step(self, done, of, loss):
            trained.append(done)

    result = run(configure(flags), tmp_path, reporters=[Steps()])
    assert trained == [*range(1, 11)] * 4
    assert result.class_incremental.A_T >= 75
