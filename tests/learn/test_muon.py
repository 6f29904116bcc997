"""Muon: orthogonal steps that keep the length of convolutions; Adam for the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protocore.config import Settings
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.learn.loop import Plan, learning_rate, make_optimizer
from protocore.learn.muon import MOMENTUM, Muon, orthogonal
from protocore.runs.configure import configure


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (64, 2, 3, 3)])
def test_singular_values_come_near_one(shape):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(g).flatten(1))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.25
    # The directions are those of the gradient: U and V of the two agree.
    u, _, v = torch.linalg.svd(g.flatten(1), full_matrices=False)
    middle = u.T @ orthogonal(g).flatten(1) @ v.T
    assert torch.allclose(middle, middle.diagonal().diag(), atol=1e-4)


def test_two_steps_against_a_slow_reference():
    torch.manual_seed(0)
    conv, linear = nn.Conv2d(3, 4, 3, bias=False), nn.Linear(5, 2)
    optimizer = Muon([conv.weight, *linear.parameters()], lr=0.2)
    twin = nn.Linear(5, 2)
    twin.load_state_dict(linear.state_dict())
    adam = torch.optim.Adam(twin.parameters(), lr=0.002)
    p, momentum = conv.weight.detach().clone(), torch.zeros_like(conv.weight)
    for _ in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 0.2 * group["share"]
        g = torch.randn(conv.weight.shape)
        conv.weight.grad = g.clone()
        for a, b in zip(linear.parameters(), twin.parameters(), strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        optimizer.step()
        adam.step()
        momentum = MOMENTUM * momentum + g
        moved = p - 0.2 * p.norm() / 4**0.5 * orthogonal(g + MOMENTUM * momentum)
        p = moved * p.norm() / moved.norm()
        assert torch.allclose(conv.weight, p, atol=1e-6)
        assert torch.allclose(linear.weight, twin.weight, atol=1e-7)


def test_lengths_stay_and_the_schedule_reaches_both_groups():
    torch.manual_seed(0)
    mine = Learner.of(configure({"method": "finetune", "benchmark": "digits", "backbone": "fastnet", "width": 8,
                                 "threads": 1, "optimizer": "muon", "lr": 0.2, "schedule": "triangle", "epochs": 2,
                                 "batch": 8}), (1, 8, 8))
    images = torch.randint(0, 256, (32, 1, 8, 8), dtype=torch.uint8)
    convolutions = [m.weight for m in mine.net.modules() if isinstance(m, nn.Conv2d) and m.weight.requires_grad]
    before = [float(w.detach().norm()) for w in convolutions]
    starts = [w.detach().clone() for w in convolutions]
    mine.learn(Task.from_arrays(images, [0, 1] * 16))
    assert [float(w.detach().norm()) for w in convolutions] == pytest.approx(before, rel=1e-4)
    assert all(not torch.allclose(a, b) for a, b in zip(starts, convolutions, strict=True))
    turned, rest = mine.optimizer.param_groups
    assert turned["lr"] == pytest.approx(0.2 * (1 - 7 / 8) / 0.8)
    assert rest["lr"] == pytest.approx(turned["lr"] / 100)


def test_the_triangle():
    plan = Plan(samples=100, batch=10, steps=100, seed=(0, 0))
    settings = Settings(lr=2.0, schedule="triangle")
    assert [learning_rate(settings, step, plan) for step in (0, 10, 20, 60, 99)] == pytest.approx(
        [0.0, 1.0, 2.0, 1.0, 0.025])


def test_weight_decay_is_refused():
    with pytest.raises(UserError, match=r"--weight-decay 0\.1 has no meaning with --optimizer muon"):
        make_optimizer(nn.Linear(2, 2), Settings(optimizer="muon", weight_decay=0.1))
