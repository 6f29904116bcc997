"""The one training loop: batches, schedules, optimisers that live on while the head grows."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from protocore.config import Settings
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.learn.loop import Plan, adopt, grow_head, learning_rate, make_optimizer, plan_for
from protocore.methods.parts.losses import masked_cross_entropy
from protocore.runs.configure import configure


def toy(n: int = 20, classes: int = 2, shape: tuple[int, int, int] = (1, 4, 4), first: int = 0) -> Task:
    chance = np.random.default_rng(n + first)
    labels = np.arange(n) % classes + first
    return Task.from_arrays(chance.integers(0, 256, (n, *shape), dtype=np.uint8), labels)


def learner(shape=(1, 4, 4), **flags) -> Learner:
    flags = {"method": "finetune", "benchmark": "digits", "backbone": "mlp", "width": 8, "augment": "none",
             "threads": 1, "batch": 6, "epochs": 2} | flags
    return Learner.of(configure(flags), shape)


# -- where batches come from -------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "batch"), [(20, 6), (12, 4), (5, 8), (1, 1)])
@pytest.mark.parametrize("shuffled", [True, False])
def test_every_epoch_covers_each_sample_once(samples, batch, shuffled):
    plan = Plan(samples, batch, 3 * math.ceil(samples / batch), (0, 0), shuffled)
    steps = list(plan.rows())
    assert [step for step, _ in steps] == list(range(plan.steps))
    assert plan.epochs == 3
    for epoch in range(3):
        parts = steps[epoch * plan.steps_per_epoch : (epoch + 1) * plan.steps_per_epoch]
        assert all(len(rows) == batch for _, rows in parts[:-1])
        assert all(len(rows) == plan.size(step) for step, rows in parts)
        assert Counter(torch.cat([rows for _, rows in parts]).tolist()) == dict.fromkeys(range(samples), 1)
        if not shuffled:
            assert torch.cat([rows for _, rows in parts]).tolist() == list(range(samples))


def test_rows_do_not_depend_on_where_the_plan_is_taken_up():
    plan = Plan(17, 5, 14, (3, 2))
    whole = [rows.tolist() for _, rows in plan.rows()]
    for start in range(15):
        torch.manual_seed(start)  # whatever else is drawn meanwhile
        assert [(step, rows.tolist()) for step, rows in plan.rows(start)] == list(enumerate(whole))[start:]


def test_epochs_tasks_and_seeds_have_orders_of_their_own():
    def first(seed, task, epoch=0):
        return torch.cat([rows for _, rows in Plan(64, 16, 12, (seed, task)).rows()])[64 * epoch : 64 * (epoch + 1)]

    orders = {tuple(first(seed, task, epoch).tolist()) for seed in range(3) for task in range(3) for epoch in range(3)}
    assert len(orders) == 27


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    list(Plan(10, 3, 8, (0, 0)).rows())
    assert torch.equal(torch.rand(1), expected)


def test_epochs_or_steps():
    task = toy(20)
    assert plan_for(task, Settings(batch=6, epochs=3), 1) == Plan(20, 6, 12, (0, 1))
    assert plan_for(task, Settings(batch=6, epochs=3, steps=5, seed=7), 0) == Plan(20, 6, 5, (7, 0))


# -- schedules ---------------------------------------------------------------------------------------------


def test_schedules_are_functions_of_the_step():
    plan = Plan(100, 10, 50, (0, 0))  # five epochs of ten steps

    def rates(schedule):
        return [learning_rate(Settings(schedule=schedule, lr=0.4), step, plan) for step in range(50)]

    assert rates("constant") == [0.4] * 50
    assert rates("cosine") == pytest.approx([0.2 * (1 + math.cos(math.pi * n / 50)) for n in range(50)])
    assert rates("steps:2,4") == pytest.approx([0.4] * 20 + [0.04] * 20 + [0.004] * 10)
    assert rates("steps:1") == pytest.approx([0.4] * 10 + [0.04] * 40)


@pytest.mark.parametrize("schedule", ["linear", "steps", "steps:", "steps:a,b", "cosin", ""])
def test_a_bad_schedule_is_named(schedule):
    with pytest.raises(UserError, match="--schedule"):
        learner(schedule=schedule).learn(toy())


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "steps:1"])
def test_every_optimiser_and_schedule_trains_at_the_rate_that_is_said(optimizer, schedule):
    mine = learner(optimizer=optimizer, schedule=schedule, lr=0.05, momentum=0.9, weight_decay=1e-3)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    rates, losses = [], []
    original = kind.step

    def spy(self, *args, **kwargs):
        assert type(self) is kind
        rates.append(self.param_groups[0]["lr"])
        assert self.param_groups[0]["weight_decay"] == 1e-3
        if optimizer == "sgd":
            assert self.param_groups[0]["momentum"] == 0.9
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "step", spy)
        mine.learn(toy(), on_step=lambda done, of, loss: losses.append((done, of)))
    settings = mine.settings
    plan = Plan(20, 6, 8, (0, 0))
    assert rates == pytest.approx([learning_rate(settings, step, plan) for step in range(8)])
    assert losses == [(n + 1, 8) for n in range(8)]


def test_training_lowers_the_loss():
    losses = []
    learner(epochs=60, lr=0.01).learn(toy(), on_step=lambda done, of, loss: losses.append(float(loss)))
    assert sum(losses[-4:]) < 0.4 * sum(losses[:4])


def test_an_unknown_optimiser_is_named():
    with pytest.raises(UserError, match="--optimizer"):
        learner(optimizer="lion")


# -- a head that grows while the optimiser is at work --------------------------------------------------------


def head(rows: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(rows.shape[1], len(rows))
    linear.weight, linear.bias = nn.Parameter(rows.clone()), nn.Parameter(bias.clone())
    return linear


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_a_grown_head_trains_as_one_that_had_all_rows_from_the_start(kind):
    """Rows that no loss has touched have the optimiser state of rows that are not there: zeros."""
    torch.manual_seed(0)
    rows, bias = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    whole, small = head(rows, bias), head(rows[:2], bias[:2])
    settings = Settings(optimizer=kind, lr=0.05, momentum=0.9)
    optimisers = [make_optimizer(net, settings) for net in (whole, small)]

    def train(steps, classes):
        for _ in range(steps):
            x, y = torch.randn(8, 3, dtype=torch.float64), torch.randint(classes, (8,))
            for net, optimiser in zip((whole, small), optimisers, strict=True):
                optimiser.zero_grad()
                masked_cross_entropy(net(x), y, torch.arange(classes)).backward()
                optimiser.step()

    train(6, 2)
    assert torch.equal(whole.weight[2:], rows[2:])
    for old_name in ("weight", "bias"):
        old = getattr(small, old_name)
        full = rows if old_name == "weight" else bias
        new = nn.Parameter(torch.cat([old.detach(), full[2:]]))
        setattr(small, old_name, new)
        adopt(optimisers[1], old, new)
    assert len(optimisers[1].state) == 2
    train(6, 5)
    assert torch.allclose(whole.weight, small.weight, rtol=0, atol=1e-12)
    assert torch.allclose(whole.bias, small.bias, rtol=0, atol=1e-12)


def test_an_optimiser_without_state_adopts_too():
    old, new = nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.zeros(3, 2))
    optimiser = torch.optim.Adam([old], lr=0.1)
    adopt(optimiser, old, new)
    new.sum().backward()
    optimiser.step()
    assert bool((new < 0).all())


def test_growing_tells_the_optimiser_only_of_what_changed():
    mine = learner()
    mine.learn(toy())
    optimiser = make_optimizer(mine.net, mine.settings)
    mine.net(torch.rand(4, 1, 4, 4)).sum().backward()
    optimiser.step()
    before = {name: (p, dict(optimiser.state[p])) for name, p in mine.net.named_parameters()}
    grow_head(mine.net, 4, optimiser)
    managed = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert managed == {id(p) for p in mine.net.parameters()}
    for name, p in mine.net.named_parameters():
        old, state = before[name]
        average = optimiser.state[p]["exp_avg"]
        assert torch.equal(average[: len(old)], state["exp_avg"])
        assert (p is old) == (not name.startswith("head"))
        assert torch.equal(average[len(old) :], torch.zeros_like(average[len(old) :]))


def test_a_task_starts_with_a_fresh_optimiser_and_an_online_stream_goes_on_with_its_own():
    mine = learner(epochs=1)

    def steps_of_adam():
        return {int(state["step"]) for state in mine.optimizer.state.values()}

    mine.learn(toy(12))
    mine.learn(toy(18, first=2))
    assert steps_of_adam() == {3}
    online = mine = learner(method="er", spc=2, online=True, batch=6)
    online.learn_window(toy(12))
    online.learn_window(toy(18, first=2))
    assert steps_of_adam() == {5}
    assert online.net.classes == 4


# -- what a method is given ----------------------------------------------------------------------------------


def test_a_batch_holds_the_images_their_view_and_whether_they_are_new():
    mine = learner(epochs=3, augment="flip")
    task = toy()
    images = torch.cat([x for _, x, _ in task.batches(20)])
    batches = []
    original = mine.method.loss

    def spy(batch):
        batches.append((batch.images.clone(), batch.x.clone(), batch.labels.clone(), batch.rows, batch.first_pass))
        assert mine.net.training
        return original(batch)

    mine.method.loss = spy
    labels = task.labels
    mine.learn(task)
    assert [first for *_, first in batches] == [True] * 4 + [False] * 8
    for raw, view, y, rows, _ in batches:
        assert torch.equal(raw, images[rows])
        assert torch.equal(y, labels[rows])
        float_images = raw.float() / 255
        either = torch.stack([float_images, float_images.flip(3)])
        assert bool(((either - view).abs().amax((2, 3, 4)) < 1e-6).any(0).all())


def test_batch_norm_gets_company_for_a_lone_last_sample() -> None:
    """9 images in batches of 4 leave one over; group norm does not mind, and sees it alone."""
    def rows_seen(norm: str) -> list[int]:
        config = configure({"method": "finetune", "benchmark": "digits", "backbone": "resnet18", "width": 4,
                            "norm": norm, "batch": 4, "epochs": 1, "augment": "none", "threads": 1})
        learner = Learner.of(config, (1, 8, 8))
        sizes: list[int] = []
        inner = learner.method.loss
        learner.method.loss = lambda batch: sizes.append(len(batch.labels)) or inner(batch)  # type: ignore[func-returns-value,method-assign]
        learner.learn(Task.from_arrays(torch.randint(0, 256, (9, 1, 8, 8), dtype=torch.uint8), torch.arange(9) % 2))
        return sizes

    assert rows_seen("batch") == [4, 4, 2]
    assert rows_seen("group") == [4, 4, 1]
    config = configure({"method": "finetune", "benchmark": "digits", "backbone": "resnet18", "width": 4, "threads": 1})
    alone = Task.from_arrays(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([0]))
    with pytest.raises(UserError, match="--norm group"):
        Learner.of(config, (1, 8, 8)).learn(alone)
