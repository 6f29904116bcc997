"""ADC: exact for translations, close for linear drift, what the attack may do, whom it believes; and digits."""

from functools import partial

import numpy as np
import pytest
import torch

from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods.adc import attack, drift, nearest
from protocore.runs.configure import configure
from protocore.runs.job import run

D = 8
SMALL = {"method": "adc", "backbone": "mlp", "width": D, "threads": 1, "epochs": 2, "batch": 8, "augment": "none",
         "prototype_dtype": "float32"}


# -- a linear world: images of 20 pixels, features of 6 -----------------------------------------------------------


@pytest.fixture
def world() -> dict[str, torch.Tensor]:
    """Old features W x, new ones A W x; four old classes far from the current images."""
    torch.manual_seed(0)
    w, a = torch.randn(6, 20) / 20**0.5, torch.eye(6) + 0.4 * torch.randn(6, 6)
    x = torch.randn(400, 20)
    return {"w": w, "a": a, "x": x, "old": x @ w.T, "p": 1.5 * torch.randn(4, 6)}


def compensated(world, each: bool = False, alpha: float = 25.0, steps: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Δ of the attack, and the mean old feature of the attacked images, of each class."""
    f_old, f_new = (lambda x: x @ world["w"].T), (lambda x: x @ world["w"].T @ world["a"].T)
    rows = nearest(world["old"], world["p"], 100)
    x = attack(f_old, world["x"][rows], world["p"], alpha=alpha, steps=steps, low=-9, high=9, each=each)
    clean = (f_new(world["x"]) - f_old(world["x"]))[rows]
    found = drift(f_old, f_new, x, torch.arange(4), world["p"], clean)
    z = f_old(x.flatten(0, 1)).unflatten(0, (4, 100))
    kept = torch.cdist(z.flatten(0, 1), world["p"]).argmin(1).view(4, 100) == torch.arange(4)[:, None]
    assert bool(kept.any(1).all())
    return found, torch.stack([z[k][kept[k]].mean(0) for k in range(4)])


@pytest.mark.parametrize(("each", "alpha", "steps"), [(False, 25, 3), (False, 25, 10), (True, 2.5, 3), (True, 1, 10)])
def test_linear_drift_is_bounded_by_how_near_the_attack_comes_and_beats_clean_images(world, each, alpha, steps):
    found, reached = compensated(world, each, alpha, steps)
    p, a = world["p"], world["a"]
    error = (p + found - p @ a.T).norm(dim=1)
    bound = torch.linalg.matrix_norm(a - torch.eye(6), 2) * (reached - p).norm(dim=1)
    assert bool((error <= bound + 1e-4).all())
    rows = nearest(world["old"], p, 100)
    clean = (world["old"] @ a.T - world["old"])[rows].mean(1)
    assert float(error.mean()) < 0.5 * float((p + clean - p @ a.T).norm(dim=1).mean())


def test_a_translation_is_found_exactly_whatever_the_attack_does(world):
    b = torch.randn(6)
    f_old, f_new = (lambda x: x @ world["w"].T), (lambda x: x @ world["w"].T + b)
    for alpha, steps in ((25, 3), (1000, 2), (0, 1), (25, 0)):
        rows = nearest(world["old"], world["p"], 50)
        x = attack(f_old, world["x"][rows], world["p"], alpha=alpha, steps=steps, low=-1, high=1)
        found = drift(f_old, f_new, x, torch.arange(4), world["p"], b.expand(4, 50, 6))
        torch.testing.assert_close(found, b.expand(4, 6), atol=2e-6, rtol=0)


# -- the attack ---------------------------------------------------------------------------------------------------


def test_the_nearest_in_plain_distance():
    z = torch.tensor([[0.0, 0.0], [5.0, 5.0], [1.0, 0.0], [100.0, 100.0]])
    assert nearest(z, torch.tensor([[4.0, 4.0], [-1.0, 0.0]]), 2).tolist() == [[1, 2], [0, 2]]  # not by angle


def by_hand(f, x: torch.Tensor, target: torch.Tensor, alpha: float, each: bool) -> torch.Tensor:
    """One step for the images of one class, pixels from 0 to 1."""
    x = x.clone().requires_grad_()
    torch.nn.functional.mse_loss(f(x), target.expand(len(x), -1)).backward()
    g = x.grad
    moved = []
    for i in range(len(x)):
        norm = g[i].norm() if each else g.norm()
        moved.append((x[i] - alpha * g[i] / norm).clamp(0, 1))
    return torch.stack(moved).detach()


@pytest.mark.parametrize("each", [False, True])
def test_steps_of_all_classes_at_once_are_those_of_each_class_by_itself(each):
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 9), torch.nn.Tanh(), torch.nn.Linear(9, 5))
    x, targets = torch.rand(3, 7, 3, 2, 2), torch.randn(3, 5)
    found = attack(net, x, targets, alpha=0.5, steps=2, low=0, high=1, each=each)
    assert not found.requires_grad
    assert all(p.grad is None for p in net.parameters())
    for k in range(3):
        expected = x[k]
        for _ in range(2):
            expected = by_hand(net, expected, targets[k], 0.5, each)
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=1e-4)


def test_pixels_stay_in_their_range_and_a_step_is_no_longer_than_alpha():
    torch.manual_seed(3)
    w = torch.randn(4, 20)
    x, targets = torch.rand(2, 30, 20), 5 * torch.randn(2, 4)
    for each in (False, True):
        before = x
        for _ in range(4):
            after = attack(lambda v: v @ w.T, before, targets, alpha=3.0, steps=1, low=0.1, high=0.9, each=each)
            inside = before.clamp(0.1, 0.9)  # the first step also brings pixels into the range
            moved = (after - inside).flatten(2).norm(dim=2) if each else (after - inside).flatten(1).norm(dim=1)
            assert float(moved.max()) <= 3.0 + 1e-4
            assert float(after.min()) >= 0.1 - 1e-7
            assert float(after.max()) <= 0.9 + 1e-7
            before = after
    far = attack(lambda v: v @ w.T, x, targets, alpha=3.0, steps=1, low=-1e9, high=1e9)
    torch.testing.assert_close((far - x).flatten(1).norm(dim=1), torch.tensor([3.0, 3.0]))  # one norm for the batch
    far = attack(lambda v: v @ w.T, x, targets, alpha=3.0, steps=1, low=-1e9, high=1e9, each=True)
    torch.testing.assert_close((far - x).norm(dim=2), torch.full((2, 30), 3.0))


def test_lengths_are_those_of_normalised_pixels():
    """With x = mean + std·n, the attack on x in units of std is the attack on n."""
    torch.manual_seed(4)
    w, n, targets = torch.randn(4, 2, 3, 3), torch.randn(2, 6, 2, 3, 3), torch.randn(2, 4)
    mean, std = torch.tensor([0.5, 0.2]).view(1, 2, 1, 1), torch.tensor([0.1, 0.3]).view(1, 2, 1, 1)

    def of_normalised(v: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nchw,dchw->nd", v, w)

    far = {"alpha": 2.0, "steps": 2, "low": -1e9, "high": 1e9}
    expected = attack(of_normalised, n, targets, **far)
    found = attack(lambda v: of_normalised((v - mean) / std), mean + std * n, targets, scale=std, **far)
    torch.testing.assert_close((found - mean) / std, expected, atol=1e-4, rtol=1e-4)


def test_an_image_that_is_there_already_stays_and_nothing_is_nan():
    x = torch.tensor([[[1.0, 2.0]]])
    assert torch.equal(attack(lambda v: v, x, x[:, 0], alpha=25, steps=3, low=-9, high=9), x)


# -- whom the drift is taken from -----------------------------------------------------------------------------------


def test_only_images_that_the_old_network_takes_for_the_class_are_used():
    snapshot = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    # class 1: the second image is nearest to class 0; class 2: none is nearest to it
    x = torch.tensor([[[9.0, 1.0], [1.0, 1.0], [11.0, 3.0]], [[0.0, 1.0], [9.0, 2.0], [2.0, 2.0]]])
    clean = torch.tensor([[[7.0, 7.0]] * 3, [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]])
    found = drift(lambda v: v, lambda v: v * torch.tensor([2.0, -1.0]), x, torch.tensor([1, 2]), snapshot, clean)
    assert found[0].tolist() == pytest.approx([(9 + 11) / 2, -2 * (1 + 3) / 2])
    assert found[1].tolist() == pytest.approx([3.0, 5.0])  # all rejected: the clean images


# -- the method -----------------------------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    """Features that are a linear map of the pixels, and a shift."""

    dim = D

    def __init__(self, matrix: torch.Tensor, shift: torch.Tensor | float = 0.0) -> None:
        super().__init__()
        self.matrix, self.shift = torch.nn.Parameter(matrix), shift
        self.register_buffer("std", torch.full((1, 1, 1, 1), 0.5))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.matrix.T + self.shift


task_of = partial(plain_task, shape=(1, 2, 4))


def learner(**flags) -> Learner:
    return small_learner(shape=(1, 2, 4), **SMALL | flags)


def pass_task(mine: Learner, task: Task, before: Linear, after: Linear) -> None:
    method = mine.method
    method.current = list(task.classes)
    method.seen = sorted({*method.seen, *task.classes})
    method.previous.net = before.requires_grad_(False)  # type: ignore[assignment]
    method.net = after  # type: ignore[assignment]
    method.end_task(task)


@pytest.mark.parametrize("norm", ["batch", "image"])
def test_old_means_follow_a_translation_and_new_ones_are_left_alone(norm):
    torch.manual_seed(5)
    mine, b, eye = learner(attack_norm=norm), torch.randn(D), torch.eye(D)
    pass_task(mine, task_of([0, 1, 2] * 30), Linear(eye), Linear(eye))
    p = mine.method.means.get([0, 1, 2])
    task = task_of([3, 4] * 70, seed=1)
    own = task.take(torch.arange(140)).flatten(1)[::2].float().div(255).mean(0) + b
    pass_task(mine, task, Linear(eye), Linear(eye, b))
    torch.testing.assert_close(mine.method.means.get([0, 1, 2]), p + b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine.method.means.get([3])[0], own, atol=1e-5, rtol=1e-5)


def test_a_class_that_no_image_is_taken_for_follows_the_images_before_the_attack():
    torch.manual_seed(5)
    mine, b, eye = learner(attack_steps=0), torch.randn(D), torch.eye(D)
    pass_task(mine, task_of([0, 1] * 30), Linear(eye), Linear(eye))
    method = mine.method
    near = method.means.get([0])[0]
    method.means.set([1], (near + 50)[None])  # far from everything: every image is taken for class 0
    pass_task(mine, task_of([2, 3] * 30, seed=1), Linear(eye), Linear(eye, b))
    torch.testing.assert_close(method.means.get([0, 1]), torch.stack([near, near + 50]) + b, atol=1e-4, rtol=1e-5)


def test_images_of_a_class_that_the_task_is_about_again_say_nothing_of_another_old_one():
    """Its old mean is no longer needed, but an image nearer to it is not taken for the class that moves."""
    mine, eye, light = learner(attack_steps=0), torch.eye(D), torch.tensor([[0.2], [0.9]])
    pass_task(mine, task_of([0, 1] * 30), Linear(eye), Linear(eye))
    mine.method.means.set([0, 1], light.expand(2, D))
    labels = [0] * 30 + [3] * 30
    images = np.repeat(np.array([51, 204], np.uint8), 30)[:, None, None, None] * np.ones((1, 1, 2, 4), np.uint8)
    pass_task(mine, task_of(labels, images=images), Linear(eye), Linear(2 * eye))  # so an image drifts by itself
    torch.testing.assert_close(mine.method.means.get([1])[0], torch.full((D,), 0.9 + 0.8), atol=1e-5, rtol=1e-5)


def test_every_class_is_moved_as_if_it_were_the_only_one():
    """Selection is by the prototypes as they were: neither chunks nor the order of the classes matter."""
    torch.manual_seed(6)
    before, after = Linear(torch.randn(D, D)), Linear(torch.randn(D, D))
    found = []
    for images in (100, 300):  # five classes in one go, or one after the other
        mine = learner(attack_images=images, attack_total=500, attack_alpha=25 * (images / 100) ** 0.5)
        pass_task(mine, task_of([0, 1, 2, 3, 4] * 30), before, before)
        told: list[tuple[int, int]] = []
        mine.tools.progress = lambda what, done, of, told=told: told.append((done, of))
        pass_task(mine, task_of([5, 6] * 150, seed=1), before, after)
        assert told[-1] == (5, 5)
        found.append(mine.method.means.get([0, 1, 2, 3, 4]))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)  # 500 in all: 100 a class both times


def test_the_cost_is_bounded_and_small_tasks_will_do(monkeypatch):
    sizes: list[tuple[int, int]] = []
    alphas: list[float] = []

    def spy(f, x, targets, **how):
        sizes.append(tuple(x.shape[:2]))
        alphas.append(how["alpha"])
        assert how["low"] >= 0
        assert how["high"] <= 1
        return attack(f, x, targets, **how)

    monkeypatch.setattr("protocore.methods.adc.attack", spy)
    eye = torch.eye(D)
    for labels, total, m in (([5, 6] * 60, 10000, 100), ([5, 6] * 60, 200, 40), ([5, 6], 10000, 2), ([5, 6], 1, 1)):
        sizes.clear()
        alphas.clear()
        mine = learner(attack_total=total)
        pass_task(mine, task_of([0, 1, 2, 3, 4] * 5), Linear(eye), Linear(eye))
        pass_task(mine, task_of(labels, seed=1), Linear(eye), Linear(2 * eye))
        assert sum(k for k, _ in sizes) == 5
        assert {size for _, size in sizes} == {m}
        assert all(k * size <= max(512, size) for k, size in sizes)
        # each image moves as far as one of 100 would
        assert alphas == pytest.approx([25 * (m / 100) ** 0.5] * len(alphas))
        assert bool(mine.method.means.get(list(range(7))).isfinite().all())


def test_what_it_keeps_and_what_it_holds():
    mine = learner(prototype_dtype="float16")
    mine.learn(task_of([0, 1] * 8))
    mine.learn(task_of([2, 3] * 8, seed=1))
    network = sum(v.nbytes for v in mine.net.state_dict().values())
    assert mine.method.held() == {"previous network, during a task": network}
    assert {k: v.nbytes for k, v in mine.memory().items()} == {
        "prototypes/features": 4 * D * 2, "prototypes/labels": 4, "prototypes/counts": 16}


def test_colour_images_in_a_convolutional_network():
    images = np.random.default_rng(0).integers(0, 256, (24, 3, 9, 7), dtype=np.uint8)
    flags = {"method": "adc", "backbone": "convnet", "width": 9, "threads": 1, "epochs": 1, "batch": 8}
    mine = Learner.of(configure(flags), (3, 9, 7), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    mine.learn(Task.from_arrays(images, np.arange(24) % 2))
    before = mine.method.means.get([0, 1])
    mine.learn(Task.from_arrays(images[::-1].copy(), np.arange(24) % 2 + 2))
    after = mine.method.means.get([0, 1])
    assert bool(after.isfinite().all())
    assert not torch.equal(before, after)


@pytest.mark.parametrize(("name", "value"), [("alpha", -1), ("steps", -1), ("images", 0), ("total", 0)])
def test_numbers_that_make_no_sense_are_refused(name, value):
    with pytest.raises(UserError, match=f"--attack-{name} {value}"):
        learner(**{f"attack_{name}": value})


# -- digits -----------------------------------------------------------------------------------------------------

DIGITS = {"method": "adc", "backbone": "mlp", "width": 64, "threads": 1}


def test_digits(tmp_path):
    """Tasks of two classes; fine-tuning ends at 19 %."""
    assert run(configure(DIGITS | {"epochs": 4}), tmp_path).class_incremental.A_T >= 60


@pytest.mark.parametrize("blurry", [0, 20])
def test_online(tmp_path, blurry):
    flags = DIGITS | {"online": True, "online_window": 100, "blurry": blurry}
    assert run(configure(flags), tmp_path).class_incremental.A_T >= 60
