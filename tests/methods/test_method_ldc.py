"""LDC: linear drift is recovered, composed and applied to old classes only; and digits."""

from functools import partial

import pytest
import torch

from helpers import begin
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods.parts.ridge import apply_map, moments, ridge_map
from protocore.runs.configure import configure
from protocore.runs.job import run

D = 8
SMALL = {"method": "ldc", "backbone": "mlp", "width": D, "threads": 1, "epochs": 2, "batch": 8, "augment": "none",
         "prototype_dtype": "float32"}


def fitted(old: torch.Tensor, new: torch.Tensor, ridge: float = 1e-9, bias: bool = False) -> torch.Tensor:
    return ridge_map(*moments(old, new, bias), ridge)


def rotation(seed: int, d: int = D) -> torch.Tensor:
    """1.3 times an orthogonal matrix."""
    q, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    return 1.3 * q


@pytest.fixture
def old() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(500, D, dtype=torch.float64).relu() + 0.1 * torch.randn(500, D, dtype=torch.float64)


# -- the map ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 1e-9])
def test_a_linear_map_is_recovered_and_moves_prototypes(old, ridge):
    r = rotation(1)
    found = fitted(old, old @ r.T, ridge)
    torch.testing.assert_close(found, r, atol=1e-6, rtol=0)
    prototypes = torch.randn(4, D)
    torch.testing.assert_close(apply_map(found, prototypes), (prototypes.double() @ r.T).float(), atol=1e-5, rtol=1e-5)


def test_without_a_bias_a_shift_cannot_be_represented_with_one_it_is_recovered():
    torch.manual_seed(1)
    z = torch.randn(4000, D, dtype=torch.float64)
    z = z - z.mean(0)
    b = torch.randn(D, dtype=torch.float64)
    p = torch.randn(5, D)
    plain = apply_map(fitted(z, z + b), p) - p
    assert float((plain - b.float()).norm(dim=1).min()) > 0.8 * float(b.norm())
    shifted = fitted(z, z + b, bias=True)
    assert shifted.shape == (D, D + 1)
    torch.testing.assert_close(apply_map(shifted, p), p + b.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 10.0])
@pytest.mark.parametrize("bias", [False, True])
def test_where_nothing_has_moved_nothing_moves(old, ridge, bias):
    prototypes = torch.randn(3, D)
    torch.testing.assert_close(apply_map(fitted(old, old, ridge, bias), prototypes), prototypes)


def test_the_ridge_is_that_of_the_objective_and_leaves_the_bias_alone(old):
    """The gradient of ‖P A - B‖² + λ‖P - I‖² is 0, with λ relative to the mean square of a feature over the data."""
    new = old @ rotation(2).T + torch.randn(D, dtype=torch.float64)
    for bias in (False, True):
        weights = fitted(old, new, 0.05, bias).requires_grad_()
        a = torch.cat([old, torch.ones(500, 1, dtype=torch.float64)], 1) if bias else old
        lam = 0.05 * float(old.square().sum(0).mean())
        loss = (a @ weights.T - new).square().sum() + lam * (weights[:, :D] - torch.eye(D)).square().sum()
        gradient, = torch.autograd.grad(loss, weights)
        assert float(gradient.abs().max()) < 1e-7 * float(new.square().sum())


def test_with_fewer_images_than_dimensions_what_is_not_seen_stays():
    torch.manual_seed(3)
    seen = torch.zeros(3, D, dtype=torch.float64)
    seen[:, :3] = torch.randn(3, 3, dtype=torch.float64)  # only the first three dimensions
    found = fitted(seen, 2 * seen, 1e-6)
    expected = torch.eye(D, dtype=torch.float64)
    expected[range(3), range(3)] = 2
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    assert torch.equal(fitted(torch.zeros(3, D), torch.ones(3, D)), torch.eye(D, dtype=torch.float64))


def test_moments_add_up(old):
    new = old @ rotation(4).T
    parts = [moments(old[i : i + 100], new[i : i + 100], True) for i in range(0, 500, 100)]
    for i, whole in enumerate(moments(old, new, True)):
        torch.testing.assert_close(sum(p[i] for p in parts), whole)


# -- the method -------------------------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    """Features that are a linear map of the pixels."""

    dim = D

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(matrix.float())

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.matrix.T


task_of = partial(plain_task, shape=(1, 2, 4))


def learner(**flags) -> Learner:
    return small_learner(shape=(1, 2, 4), **SMALL | flags)


def pass_task(mine: Learner, task: Task, before: torch.Tensor, after: torch.Tensor) -> None:
    """A task in which the network goes from one linear map to another."""
    method = mine.method
    method.current = list(task.classes)
    method.seen = sorted({*method.seen, *task.classes})
    method.previous.net = Linear(before)
    method.net = Linear(after)
    method.end_task(task)


def test_maps_compose_over_tasks_and_new_classes_are_left_alone():
    mine, w = learner(ridge=1e-9), torch.eye(D, dtype=torch.float64)
    r1, r2 = rotation(5), rotation(6)
    tasks = [task_of([2 * t, 2 * t + 1] * 30, seed=t) for t in range(3)]
    pixels = [t.take(torch.arange(60)).flatten(1).double() / 255 for t in tasks]
    pass_task(mine, tasks[0], w, w)
    pass_task(mine, tasks[1], w, r1)
    pass_task(mine, tasks[2], r1, r2 @ r1)
    for c, matrix in [(0, r2 @ r1), (1, r2 @ r1), (2, r2 @ r1), (3, r2 @ r1), (4, r2 @ r1), (5, r2 @ r1)]:
        rows = pixels[c // 2][c % 2 :: 2]
        torch.testing.assert_close(mine.method.means.get([c])[0], (rows.mean(0) @ matrix.T).float(), atol=1e-4,
                                   rtol=1e-4)
    assert mine.method.previous.net is None


def test_new_classes_are_means_of_their_images_whatever_the_map_is():
    mine = learner(ridge=1e-9)
    first, second = task_of([0, 1] * 30), task_of([2, 3] * 30, seed=1)
    expected = second.take(torch.arange(60)).flatten(1)[::2].float().div(255).mean(0)
    w = torch.eye(D, dtype=torch.float64)
    pass_task(mine, first, w, w)
    p = mine.method.means.get([0, 1])
    pass_task(mine, second, 0.5 * w, w)  # the old network saw half of each feature
    torch.testing.assert_close(mine.method.means.get([2])[0], expected)
    torch.testing.assert_close(mine.method.means.get([0, 1]), 2 * p, atol=1e-4, rtol=1e-4)


def test_a_visitor_is_moved_and_then_counted_in_a_class_at_home_is_measured_anew():
    mine = learner(ridge=1e-9)
    w, first = torch.eye(D, dtype=torch.float64), task_of([0, 1, 4] * 30)
    second = task_of([0] * 2 + [1] * 30 + [2] * 30, seed=1)
    z = second.take(torch.arange(62)).flatten(1).float() / 255
    pass_task(mine, first, w, w)
    p = mine.method.means.get([0, 4])
    pass_task(mine, second, w, 3 * w)
    means = mine.method.means
    torch.testing.assert_close(means.get([0])[0], 3 * (30 * p[0] + z[:2].sum(0)) / 32, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(means.get([4])[0], 3 * p[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(means.get([1])[0], 3 * z[2:32].mean(0), atol=1e-4, rtol=1e-4)
    assert means.counts == {0: 32, 1: 30, 2: 30, 4: 30}


@pytest.mark.parametrize("bias", [False, True])
def test_the_published_fit_comes_close_when_it_has_the_steps(bias):
    mine = learner(fit="adam", adam_lr=1e-2, adam_epochs=100, fit_bias=bias)
    w, r = torch.eye(D, dtype=torch.float64), rotation(7)
    pass_task(mine, task_of([0, 1] * 30), w, w)
    p = mine.method.means.get([0, 1])
    pass_task(mine, task_of([2, 3] * 300, seed=1), w, r)
    torch.testing.assert_close(mine.method.means.get([0, 1]), (p.double() @ r.T).float(), atol=0.03, rtol=0)


def test_the_nearest_mean_in_angle_predicts_and_classes_without_a_mean_do_not():
    mine = learner()
    x = torch.rand(5, 1, 2, 4)
    begin(mine, task_of([0, 1] * 8))
    assert torch.equal(mine.scores(x), mine.net(x).detach())  # no mean yet: the head
    mine.learn(task_of([0, 1] * 8))
    means = torch.nn.functional.normalize(mine.method.means.get([0, 1]), dim=1)
    z = torch.nn.functional.normalize(mine.net.features(x), dim=1)
    torch.testing.assert_close(mine.scores(x), -torch.cdist(z, means).square().detach(), atol=1e-5, rtol=1e-4)
    begin(mine, task_of([2, 3] * 8, seed=1))
    assert mine.scores(x)[:, 2:].tolist() == [[float("-inf")] * 2] * 5


def test_what_it_keeps_and_what_it_holds():
    mine = learner(prototype_dtype="float16")
    mine.learn(task_of([0, 1] * 8))
    assert mine.method.held() == {}
    mine.learn(task_of([2, 3] * 8, seed=1))
    network = sum(v.nbytes for v in mine.net.state_dict().values())
    assert mine.method.held() == {"previous network, during a task": network}
    assert {k: v.nbytes for k, v in mine.memory().items()} == {
        "prototypes/features": 4 * D * 2, "prototypes/labels": 4, "prototypes/counts": 16}


@pytest.mark.parametrize("flags", [{"ridge": -1}, {"ridge_views": 0}, {"adam_epochs": 0}, {"adam_lr": -1}])
def test_numbers_that_make_no_sense_are_refused(flags):
    with pytest.raises(UserError, match="--" + next(iter(flags)).replace("_", "-")):
        learner(**flags)


# -- digits -----------------------------------------------------------------------------------------------------

DIGITS = {"method": "ldc", "backbone": "mlp", "width": 64, "threads": 1}


def test_digits_and_what_the_map_is_good_for(tmp_path):
    """Tasks of two classes; fine-tuning ends at 19 %."""
    result = run(configure(DIGITS | {"epochs": 4}), tmp_path).class_incremental
    assert result.A_T >= 60
    unmoved = run(configure(DIGITS | {"epochs": 4, "ridge": 1e9}), tmp_path / "unmoved").class_incremental
    assert result.A_T >= unmoved.A_T + 4


@pytest.mark.parametrize("blurry", [0, 20])
def test_online(tmp_path, blurry):
    flags = DIGITS | {"online": True, "online_window": 100, "blurry": blurry}
    assert run(configure(flags), tmp_path).class_incremental.A_T >= 60
