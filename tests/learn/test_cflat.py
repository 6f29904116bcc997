"""C-Flat: the gradient of its authors' step, four evaluations that differ in nothing but the weights."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers import begin, task_of
from helpers import learner as small_learner
from protocore.data.augment import to_float
from protocore.learn.cflat import flat_step
from protocore.learn.learner import Learner
from protocore.learn.loop import plan_for
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)


def flat_gradient(loss, *parameters: nn.Parameter, rho: float, weight: float) -> list[torch.Tensor | None]:
    flat_step(loss, loss, nn.Identity(), parameters, rho, weight)
    return [p.grad for p in parameters]


def quadratic(hessian: torch.Tensor, theta: torch.Tensor, rho: float, weight: float) -> torch.Tensor:
    parameter = nn.Parameter(theta.clone())
    (g,) = flat_gradient(lambda: 0.5 * parameter @ hessian @ parameter, parameter, rho=rho, weight=weight)
    assert g is not None
    return g


def closed_form(hessian: torch.Tensor, theta: torch.Tensor, rho: float, weight: float) -> torch.Tensor:
    """G = g0 + ρHĝ0 + λρHĝ2 with g2 = g0 + ρ·H(Hĝ0)/‖Hĝ0‖."""
    g0 = hessian @ theta
    bent = hessian @ (g0 / g0.norm())
    g2 = g0 + rho * hessian @ (bent / bent.norm())
    return g0 + rho * bent + weight * rho * hessian @ (g2 / g2.norm())


# -- the gradient --------------------------------------------------------------------------------------------


def test_quadratic_with_known_numbers():
    hessian, theta = torch.diag(torch.tensor([4.0, 1.0])).double(), torch.tensor([1.0, 2.0]).double()
    both = quadratic(hessian, theta, 0.2, 0.2)
    assert both.tolist() == pytest.approx([4.862933, 2.105006], abs=1e-6)
    assert quadratic(hessian, theta, 0.2, 0.0).tolist() == pytest.approx([4.715542, 2.089443], abs=1e-6)
    g0 = hessian @ theta
    assert float(quadratic(hessian, theta, 0.1, 0.2) @ g0) == pytest.approx(21.83, abs=5e-3)
    assert float(both @ g0) == pytest.approx(4 * 4.862933 + 2 * 2.105006, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_any_quadratic_has_a_closed_form_and_is_aligned_with_the_gradient(seed):
    chance = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=chance, dtype=torch.float64)
    hessian, theta = root @ root.T, torch.randn(6, generator=chance, dtype=torch.float64)
    got = quadratic(hessian, theta, 0.3, 0.7)
    assert torch.allclose(got, closed_form(hessian, theta, 0.3, 0.7), rtol=1e-9)
    g0 = hessian @ theta
    assert got @ g0 >= g0 @ g0


def test_the_norm_is_over_all_parameters_together():
    hessian, theta = torch.diag(torch.tensor([4.0, 1.0])).double(), torch.tensor([1.0, 2.0]).double()
    a, b = nn.Parameter(theta[:1].clone()), nn.Parameter(theta[1:].clone())

    def loss():
        return 0.5 * (4 * a.square().sum() + b.square().sum())

    apart = flat_gradient(loss, a, b, rho=0.2, weight=0.2)
    assert torch.allclose(torch.cat([g for g in apart if g is not None]), closed_form(hessian, theta, 0.2, 0.2))


def test_a_general_function_by_hand():
    """Written out for a function that is not quadratic: v is g1 - g0, e2 comes on top of e1."""
    def value(t):
        return (t[0] ** 4 + torch.sin(t[1]) * t[0] + 0.5 * t[1] ** 2).sum()

    def gradient(t):
        return torch.func.grad(value)(t)

    theta, rho, weight = torch.tensor([0.7, -1.2]).double(), 0.3, 0.5
    g0 = gradient(theta)
    g1 = gradient(theta + rho * g0 / g0.norm())
    e1 = rho * (g1 - g0) / (g1 - g0).norm()
    g2 = gradient(theta + e1)
    g3 = gradient(theta + e1 + rho * g2 / g2.norm())
    parameter = nn.Parameter(theta.clone())
    (got,) = flat_gradient(lambda: value(parameter), parameter, rho=rho, weight=weight)
    assert torch.allclose(got, g1 + weight * (g3 - g2), rtol=1e-10)
    (sam,) = flat_gradient(lambda: value(parameter), parameter, rho=rho, weight=0.0)
    assert torch.allclose(sam, g1, rtol=1e-12)


def test_a_small_radius_gives_the_gradient_and_none_gives_it_exactly():
    hessian, theta = torch.diag(torch.tensor([4.0, 1.0])).double(), torch.tensor([1.0, 2.0]).double()
    g0 = hessian @ theta
    errors = [float((quadratic(hessian, theta, rho, 0.2) - g0).norm()) for rho in (1e-2, 1e-3, 1e-4)]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.05)
    assert torch.equal(quadratic(hessian, theta, 0.0, 0.2), g0)


def test_a_loss_without_curvature_gives_its_gradient_and_no_nan():
    slope = torch.tensor([1.0, -2.0])
    parameter = nn.Parameter(torch.zeros(2))
    (g,) = flat_gradient(lambda: parameter @ slope, parameter, rho=0.2, weight=0.2)
    assert torch.equal(g, slope)
    (g,) = flat_gradient(lambda: 0 * parameter.sum(), parameter, rho=0.2, weight=0.2)
    assert torch.equal(g, torch.zeros(2))


def test_parameters_without_part_in_the_loss_are_left_alone():
    used, unused = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
    scale = torch.tensor([4.0, 1.0])
    got = flat_gradient(lambda: 0.5 * (scale * used.square()).sum(), used, unused, rho=0.2, weight=0.2)
    assert got[1] is None
    assert torch.allclose(got[0], closed_form(torch.diag(scale), torch.tensor([1.0, 2.0]), 0.2, 0.2), rtol=1e-5)
    assert unused.tolist() == [3.0]


def test_the_weights_are_put_back_bit_for_bit_even_if_an_evaluation_fails():
    parameter = nn.Parameter(torch.randn(50))
    before = parameter.detach().clone()
    calls: list[int] = []

    def loss(fail_at: int = 99):
        calls.append(1)
        if len(calls) == fail_at:
            raise KeyboardInterrupt
        return (parameter.square() * 1.7).sum().exp().log1p()

    flat_gradient(loss, parameter, rho=0.2, weight=0.2)
    assert torch.equal(parameter, before)
    assert len(calls) == 4
    with pytest.raises(KeyboardInterrupt):
        flat_gradient(lambda: loss(7), parameter, rho=0.2, weight=0.2)
    assert torch.equal(parameter, before)


# -- what the four evaluations share -------------------------------------------------------------------------


def test_all_evaluations_draw_the_same_and_the_generator_goes_on_as_after_one():
    parameter, drawn = nn.Parameter(torch.ones(3)), []

    def loss():
        drawn.append(torch.rand(3))
        return (parameter * drawn[-1]).square().sum()

    torch.manual_seed(1)
    flat_gradient(loss, parameter, rho=0.2, weight=0.2)
    following = torch.rand(3)
    torch.manual_seed(1)
    once = torch.rand(3)
    assert len(drawn) == 4
    assert all(torch.equal(d, once) for d in drawn)
    assert torch.equal(following, torch.rand(3))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_as_in_one_plain_pass(momentum):
    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum), nn.ReLU(), nn.Linear(6, 2))

    x = torch.randn(8, 4)
    flat, plain = net(), net()
    for _ in range(2):
        flat_step(lambda: flat(x).square().mean(), lambda: flat(x).square().mean(), flat, list(flat.parameters()),
                  0.2, 0.2)
        plain(x)
    for name, value in plain.state_dict().items():
        assert torch.equal(flat.state_dict()[name], value), name
    assert flat[1].momentum == momentum
    assert int(flat[1].num_batches_tracked) == 2


def test_batch_statistics_are_still_those_of_the_batch():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(8, 4)
    outputs = []

    def loss():
        outputs.append(net(x))
        return (outputs[-1] * torch.arange(3)).exp().mean()

    flat_step(loss, loss, net, list(net.parameters()), 0.2, 0.2)
    shift, scale = net[1].bias, net[1].weight
    assert len(outputs) == 4
    for out in outputs[1:]:  # perturbed, but normalised: the mean is the shift of that moment, near the one it has
        assert torch.allclose(out.mean(0), shift, atol=0.25)
        assert torch.allclose(out.std(0, unbiased=False), scale, atol=0.25)


# -- in the training loop ------------------------------------------------------------------------------------


def learner(method: str = "cflat", **flags) -> Learner:
    return small_learner(method, SHAPE, **{"epochs": 1} | flags)


def passes(mine: Learner) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    mine.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    return seen


@pytest.mark.parametrize(("first", "each"), [(False, [1, 4]), (True, [4, 4])])
def test_four_evaluations_a_step_from_the_second_task_on(first, each):
    mine = learner(cflat_first=first)
    seen, counts = passes(mine), []
    for number in range(2):
        mine.learn(task_of(np.arange(18) % 2 + 2 * number, seed=number))
        counts.append(len(seen) - sum(counts))
    assert counts == [3 * n for n in each]


def evaluations(windows, **flags) -> list[int]:
    """Forward passes a step in each window of an online stream."""
    mine = learner(online=True, batch=6, **flags)
    seen, counts = passes(mine), []
    for number, labels in enumerate(windows):
        mine.learn_window(task_of(labels, seed=number))
        counts.append(len(seen) - sum(counts))
    return [count // (len(labels) // 6) for count, labels in zip(counts, windows, strict=True)]


FIRST, SECOND, BORDER = [0, 1] * 9, [2, 3] * 9, [0, 1, 2] * 6


@pytest.mark.parametrize(("windows", "expected"), [
    ([FIRST, FIRST, FIRST, SECOND, SECOND], [1, 1, 1, 4, 4]),
    ([FIRST, FIRST, BORDER, SECOND, FIRST], [1, 1, 4, 4, 4]),  # a class that is not new any more does not end it
    ([FIRST, [0] * 18, [1] * 18, SECOND], [1, 1, 1, 4]),
])
def test_an_online_stream_is_flat_from_the_second_task_on_not_from_the_second_window(windows, expected):
    assert evaluations(windows) == expected
    assert evaluations(windows, cflat_first=True) == [4] * len(windows)


def test_in_a_blurry_online_stream_the_first_task_is_the_first_window():
    assert evaluations([FIRST + SECOND] * 3, blurry=20) == [1, 4, 4]


def test_the_second_phase_of_a_first_window_is_plain_like_the_first():
    mine = learner(method="rm", online=True, cflat=True, epochs=2, cutmix=0.0)
    steps: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protocore.learn.loop.flat_step", lambda *a: steps.append(len(steps)) or flat_step(*a))
        mine.learn_window(task_of(FIRST))
        assert not steps
        mine.learn_window(task_of(SECOND, seed=1))
    assert len(steps) > 3  # the window's three, and those of the phase after it


def test_a_learner_that_is_taken_up_knows_whether_the_first_task_is_over(tmp_path):
    for before, each in (([FIRST], 1), ([FIRST, SECOND], 4)):
        mine, other = learner(online=True), learner(online=True)
        for number, labels in enumerate(before):
            mine.learn_window(task_of(labels, seed=number))
        mine.save(tmp_path / "checkpoint.safetensors")
        other.restore(tmp_path / "checkpoint.safetensors")
        seen = passes(other)
        other.learn_window(task_of(FIRST, seed=7))
        assert len(seen) == 3 * each


def test_the_four_evaluations_see_the_same_images_under_the_same_augmentation():
    mine = learner(cflat_first=True)
    mine.tools.augment = lambda images: to_float(images) + torch.rand(len(images), 1, 1, 1)
    seen = passes(mine)
    mine.learn(task_of(np.arange(30) % 3))
    assert len(seen) == 20
    for at in range(0, 20, 4):
        assert all(torch.equal(seen[at], other) for other in seen[at + 1 : at + 4])
    assert not torch.equal(seen[4], seen[8])


@pytest.mark.parametrize("method", ["der", "derpp"])
def test_stored_logits_are_those_of_the_first_evaluation(method):
    mine = learner(method=method, cflat=True, cflat_first=True, cflat_rho=0.5, logit_dtype="float32", lr=0.05)
    task = task_of([0, 1] * 6)
    copies, offered = [], []

    class Watched(type(mine.method)):
        def loss(self, batch):
            if not batch.notes:
                copies.append(mine.net.frozen_copy())
            return super().loss(batch)

        def after_step(self, batch):
            offered.append((batch.x, batch.notes["logits"]))
            super().after_step(batch)

    mine.method.__class__ = Watched
    mine.learn(task)
    assert len(copies) == 4 * len(offered) == 8
    for step, (x, logits) in enumerate(offered):
        assert torch.allclose(copies[4 * step](x), logits, atol=1e-6)
        for other in range(1, 4):
            assert not torch.allclose(copies[4 * step + other](x), logits, atol=1e-3)


def test_without_a_radius_it_is_experience_replay():
    """Same draws, same statistics, same steps: only the perturbation makes a difference."""
    nets = {}
    for name, flags in {"er": {"method": "er"}, "none": {"cflat_rho": 0.0}, "some": {}}.items():
        mine = learner(epochs=2, cflat_first=True, **flags) if name != "er" else learner(epochs=2, **flags)
        for number in range(2):
            mine.learn(task_of(np.arange(18) % 2 + 2 * number, seed=number))
        nets[name] = torch.cat([p.detach().flatten() for p in mine.net.parameters()])
    assert torch.equal(nets["er"], nets["none"])
    assert not torch.allclose(nets["er"], nets["some"], atol=1e-4)


def test_weight_decay_is_no_part_of_the_perturbed_loss():
    """One step of plain SGD: θ - lr·(G + wd·θ), with G the same with and without weight decay."""
    ends, starts = {}, {}
    for decay in (0.0, 0.1):
        mine = learner(optimizer="sgd", lr=0.5, cflat_first=True, weight_decay=decay)
        task = task_of([0, 1, 0, 1])
        begin(mine, task)
        starts[decay] = torch.cat([p.detach().flatten().clone() for p in mine.net.parameters()])
        mine._fit(task, plan_for(task, mine.settings, 0), 0, None)
        ends[decay] = torch.cat([p.detach().flatten() for p in mine.net.parameters()])
    assert torch.equal(starts[0.0], starts[0.1])
    assert torch.allclose(ends[0.0] - ends[0.1], 0.5 * 0.1 * starts[0.1], atol=1e-6)


def test_cflat_on_digits(tmp_path):
    flags = {"method": "cflat", "backbone": "mlp", "epochs": 5, "lr": 0.01, "images_per_class": 60, "threads": 1}
    result = run(configure(flags), tmp_path)
    assert result.class_incremental.A_T >= 55  # fine-tuning: 19
    assert math.isfinite(result.class_incremental.forgetting)
