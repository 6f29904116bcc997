"""CSReL: quotas, the reducible-loss order, what is kept of old tasks, both replay losses; digits end to end."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import begin
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import BudgetError, UserError
from protocore.learn.learner import Learner
from protocore.methods import csrel
from protocore.methods.base import Batch
from protocore.methods.csrel import CSReL
from protocore.methods.parts.coreset import Pool
from protocore.methods.parts.losses import sum_of_means
from protocore.methods.parts.selection import best, greedy, quota
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)
ONE = torch.zeros(4, dtype=torch.int64)  # all candidates of one kind


def images_of(labels: np.ndarray, seed: int, shape=SHAPE) -> np.ndarray:
    """Noise whose first pixels are the label and the number of the image."""
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = labels, np.arange(len(labels)) % 256
    return images


def task_of(labels, seed: int = 0, shape=SHAPE) -> Task:
    return plain_task(labels, images=images_of(labels, seed, shape))


def learner(shape=SHAPE, **flags) -> Learner:
    short = {"epochs": 1, "ref_epochs": 1, "proxy_steps": 2, "selection_steps": 3}
    return small_learner("csrel", shape, **short | flags)


def method_of(mine: Learner) -> CSReL:
    assert isinstance(mine.method, CSReL)
    return mine.method


def tasks_in(mine: Learner) -> list[int]:
    return mine.memory()["exemplars/task"].long().bincount().tolist()


# -- the quota (P2) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "total", "expected"), [
    ([1000] * 3, 200, [67, 67, 66]),
    ([1000] * 3, 100, [34, 33, 33]),
    ([5000] * 7, 200, [29, 29, 29, 29, 28, 28, 28]),
    ([200, 200, 200, 200, 2000], 100, [8, 7, 7, 7, 71]),
    ([7], 5, [5]),
    ([0, 10, 0, 20], 5, [0, 2, 0, 3]),  # 1.67 and 3.33: the spare slot goes to the earliest with samples
])
def test_quota(sizes, total, expected):
    assert quota(total, torch.tensor(sizes)).tolist() == expected


@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=9), total=st.integers(0, 400))
def test_quotas_add_up_and_go_by_size(sizes, total):
    if not any(sizes):
        sizes[0] = 1
    shares = quota(total, torch.tensor(sizes)).tolist()
    assert sum(shares) == total
    raised = [share - total * n // sum(sizes) for share, n in zip(shares, sizes, strict=True) if n]
    assert set(raised) <= {0, 1}
    assert raised == sorted(raised, reverse=True)  # the earliest have the spare slots
    assert all(share == 0 for share, n in zip(shares, sizes, strict=True) if not n)


# -- greedy --------------------------------------------------------------------------------------------------


def test_order_is_by_current_minus_reference_loss():
    current, reference = torch.tensor([3.0, 2.0, .1, 5.0]), torch.tensor([2.8, .2, .05, 4.9])
    for steps in (1, 4):
        order = greedy(reference, ONE, torch.tensor([4]), steps, lambda picked: current)
        assert order.tolist() == [1, 0, 3, 2]
    assert greedy(reference, ONE, torch.tensor([2]), 2, lambda picked: current).tolist() == [1, 0]
    assert greedy(torch.zeros(4), ONE, torch.tensor([4]), 4, lambda picked: current).tolist()[0] == 3
    assert greedy(reference, ONE, torch.tensor([4]), 4, lambda picked: torch.zeros(4)).tolist()[0] == 2


@pytest.mark.parametrize(("count", "steps", "sizes"), [
    (10, 4, [0, 2, 4, 6, 8]),  # floor(10 / 4) = 2 at a time
    (3, 100, [0, 1, 2]),  # never less than one
    (7, 2, [0, 3, 6]),  # the last increment is what is left
    (5, 1, [0]),
])
def test_a_new_model_for_every_increment_the_first_of_nothing(count, steps, sizes):
    met: list[torch.Tensor] = []

    def losses_after(picked: torch.Tensor) -> torch.Tensor:
        met.append(picked)
        return torch.arange(20.0) if len(met) % 2 else -torch.arange(20.0)

    told: list[tuple[int, int]] = []
    order = greedy(torch.zeros(20), torch.zeros(20).long(), torch.tensor([count]), steps, losses_after,
                   lambda done, of: told.append((done, of)))
    assert [len(picked) for picked in met] == sizes
    assert len(order) == len(set(order.tolist())) == count
    assert all(torch.equal(order[: len(picked)], picked) for picked in met)
    assert told[-1] == (count, count)
    assert order[0] == 19
    if len(sizes) > 1:
        assert order[sizes[1]] == 0  # the second model's losses count for the second increment


def test_no_more_than_there_is():
    assert sorted(greedy(torch.zeros(4), ONE, torch.tensor([9]), 2, lambda p: torch.rand(4)).tolist()) == [0, 1, 2, 3]
    assert greedy(torch.zeros(4), ONE, torch.tensor([0]), 2, lambda p: torch.rand(4)).tolist() == []


@given(st.data())
@settings(deadline=None)
def test_best_with_room_for_each_kind(data):
    n = data.draw(st.integers(1, 12))
    scores = torch.tensor(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))).float()
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    room = data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3))
    count = data.draw(st.integers(0, 12))
    expected, left = [], list(room)
    for i in sorted(range(n), key=lambda i: -scores[i]):
        if left[kinds[i]] and len(expected) < count:
            left[kinds[i]] -= 1
            expected.append(i)
    assert best(scores, torch.tensor(kinds), torch.tensor(room), count).tolist() == expected


def softmax_regression(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(3, 2) weights, the last row a bias, after a fixed number of full-batch steps.

    With weight decay: without it a model of few samples is so steep that rounding decides what is picked next.
    """
    a = torch.cat([x, torch.ones(len(x), 1)], 1)
    w = torch.zeros(3, 2)
    for _ in range(100):
        w -= 0.5 * (a.T @ ((a @ w).softmax(1) - F.one_hot(y, 2)) / len(a) + 0.1 * w)
    return w


def point_losses(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(torch.cat([x, torch.ones(len(x), 1)], 1) @ w, y, reduction="none")


def test_label_noise_is_left_alone():
    """Two Gaussians, a fifth of the labels flipped: reducible loss beats the raw loss clearly, and a random choice."""
    accuracy = {"reducible": [], "raw": [], "random": []}
    flipped_share = {"reducible": [], "raw": []}
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        y = torch.arange(400) % 2
        x = torch.randn(400, 2, generator=g) + torch.tensor([1.5, 0.75]) * (2 * y[:, None] - 1)
        x, y, test_x, test_y = x[:200], y[:200], x[200:], y[200:]
        flipped = torch.randperm(200, generator=g)[:40]
        noisy = y.clone()
        noisy[flipped] = 1 - noisy[flipped]
        first = torch.randn(3, 2, generator=g) * 0.1  # the untrained model of the first pick

        def losses_after(picked: torch.Tensor, x=x, noisy=noisy, first=first) -> torch.Tensor:
            return point_losses(softmax_regression(x[picked], noisy[picked]) if len(picked) else first, x, noisy)

        reference = point_losses(softmax_regression(x, noisy), x, noisy)
        kinds = torch.zeros(200, dtype=torch.int64)
        for name, ref in (("reducible", reference), ("raw", torch.zeros(200)), ("random", None)):
            if ref is None:
                chosen = torch.randperm(200, generator=g)[:20]
            else:
                chosen = greedy(ref, kinds, torch.tensor([20]), 20, losses_after)
                flipped_share[name].append(torch.isin(chosen, flipped).float().mean().item())
            w = softmax_regression(x[chosen], noisy[chosen])
            right = (torch.cat([test_x, torch.ones(200, 1)], 1) @ w).argmax(1) == test_y
            accuracy[name].append(right.float().mean().item())
    mean = {name: float(np.mean(values)) for name, values in accuracy.items()}
    assert mean["reducible"] >= mean["raw"] + 0.15
    assert mean["reducible"] >= mean["random"]
    assert np.mean(flipped_share["reducible"]) < np.mean(flipped_share["raw"])


# -- the loss ------------------------------------------------------------------------------------------------


def test_sum_over_tasks_of_the_mean_loss():
    losses = torch.tensor([1.0, 3.0, 10.0, 2.0, 6.0])
    assert sum_of_means(losses, torch.tensor([0, 0, 2, 5, 5])).item() == pytest.approx(2 + 10 + 4)


@pytest.mark.parametrize("replay", ["sub", "full"])
def test_loss_is_current_plus_alpha_times_replay(replay):
    mine = learner(replay=replay, alpha=2.5, capacity=10, balance="off", replay_batch=4)
    mine.learn(task_of([0, 1] * 15))
    mine.learn(task_of([2, 3] * 5, seed=1))
    assert tasks_in(mine) == [8, 2]  # 10 slots for pools of 30 and 10: 7.5 and 2.5
    begin(mine, task_of([4, 5] * 9, seed=2))
    seen: list[torch.Tensor] = []
    mine.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    images = torch.from_numpy(images_of(np.array([4, 5, 4]), 9))
    loss = mine.method.loss(Batch(images, to_float(images), torch.tensor([4, 5, 4]), torch.arange(3), first_pass=True))
    (x,) = seen
    assert len(x) == 3 + (4 if replay == "sub" else 10)
    labels = (x[:, 0, 0, 0] * 255).round().long()
    each = F.cross_entropy(mine.net(x), labels, reduction="none")
    if replay == "sub":
        expected = each[:3].mean() + 2.5 * each[3:].mean()
    else:
        first = labels[3:] < 2  # the first task's classes
        expected = each[:3].mean() + 2.5 * (each[3:][first].mean() + each[3:][~first].mean())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_without_replay_the_loss_is_plain():
    mine = learner(alpha=0)
    mine.learn(task_of([0, 1] * 9))
    begin(mine, task_of([2, 3] * 9, seed=1))
    images = torch.from_numpy(images_of(np.array([2, 3]), 9))
    batch = Batch(images, to_float(images), torch.tensor([2, 3]), torch.arange(2), first_pass=True)
    expected = F.cross_entropy(mine.net(batch.x), batch.labels)
    assert mine.method.loss(batch).item() == pytest.approx(expected.item())


# -- what is kept --------------------------------------------------------------------------------------------


def test_tasks_have_their_quota_of_a_fixed_capacity():
    mine = learner(capacity=20, balance="off")
    expected = {1: [20], 2: [10, 10], 3: [7, 7, 6], 4: [5, 5, 5, 5]}
    for t in range(4):
        mine.learn(task_of(np.arange(40) % 2 + 2 * t, seed=t))
        assert tasks_in(mine) == expected[t + 1]
    mine.learn(task_of(np.arange(160) % 2 + 8, seed=5))  # a pool four times as large
    assert tasks_in(mine) == [3, 3, 2, 2, 10]
    assert mine.memory()["pools/sizes"].tolist() == [[40], [40], [40], [40], [160]]


def test_slots_that_an_old_task_cannot_fill_go_to_the_new_one():
    mine = learner(spc=4, balance="off")
    mine.learn(task_of([0, 1] * 20))
    mine.learn(task_of([2, 3] * 10, seed=1))
    assert tasks_in(mine) == [8, 8]  # 16 slots for pools of 40 and 20 would be 11 and 5, but 8 are all there is


def test_every_class_has_its_room_in_the_balanced_form():
    mine = learner(spc=4)
    for t in range(3):
        mine.learn(task_of(np.arange(30) % 2 + 2 * t, seed=t))
        assert mine.memory()["exemplars/labels"].bincount().tolist() == [4] * (2 * t + 2)
    # A class that returns shares its four slots among the tasks it came in, by their sizes: 15 and 45.
    mine.learn(task_of([0] * 45 + [6] * 10, seed=7))
    memory = mine.memory()
    assert memory["exemplars/labels"].bincount().tolist() == [4] * 7
    assert memory["exemplars/task"][memory["exemplars/labels"] == 0].tolist() == [0, 3, 3, 3]


def test_a_balanced_memory_never_loses_a_class_however_many_windows_come():
    mine = learner(capacity=6, balance="on")
    for t in range(8):
        mine.learn(task_of(np.arange(12) % 2 + 2 * (t // 4), seed=t))
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [2, 2, 1, 1]


def test_reference_losses_are_computed_once_and_stay_with_their_exemplars(monkeypatch):
    """One reference model a task, of the task's pool only; old tasks are selected anew by their stored losses."""
    trained: list[list[int]] = []
    given: list[tuple[int, torch.Tensor]] = []
    reference_of, grown = CSReL.reference, CSReL.grown

    def reference(self, pool, kept):
        trained.append(pool.labels[: pool.new].unique().tolist())
        return reference_of(self, pool, kept)

    def growing(self, pool, rows, reference, kinds, room, what):
        given.append((int(rows[0] >= pool.new), reference.clone()))
        return grown(self, pool, rows, reference, kinds, room, what)

    monkeypatch.setattr(CSReL, "reference", reference)
    monkeypatch.setattr(CSReL, "grown", growing)
    mine = learner(capacity=12, balance="off")
    known: dict[bytes, float] = {}
    for t in range(3):
        before = mine.memory()
        given.clear()
        mine.learn(task_of(np.arange(24) % 2 + 2 * t, seed=t))
        memory = mine.memory()
        for image, value in zip(memory["exemplars/bytes"].numpy(), memory["exemplars/reference"].tolist(), strict=True):
            assert known.setdefault(image.tobytes(), value) == value
        old = [losses for is_old, losses in given if is_old]
        assert len(old) == t
        for task, losses in enumerate(old):
            stored = before["exemplars/reference"][before["exemplars/task"] == task]
            assert torch.equal(losses, stored)
    assert trained == [[0, 1], [2, 3], [4, 5]]
    assert bool(mine.memory()["exemplars/reference"].isfinite().all())


def test_a_memory_that_fits_is_not_selected_again(monkeypatch):
    """Re-selecting K of K gives the same set, and costs nothing."""
    mine = learner(spc=4)
    mine.learn(task_of([0, 1] * 15))
    before = {image.tobytes() for image in mine.memory()["exemplars/bytes"].numpy()}
    calls = []
    monkeypatch.setattr(csrel, "greedy", lambda *a, **k: calls.append(a) or greedy(*a, **k))
    mine.learn(task_of([2, 3] * 15, seed=1))
    memory = mine.memory()
    assert {i.tobytes() for i in memory["exemplars/bytes"][memory["exemplars/task"] == 0].numpy()} == before
    assert len(calls) == 1  # the new task's


def test_greedy_of_everything_is_everything():
    """Through all increments: each candidate once, of both kinds, and the models are trained on what is there."""
    asked = []

    def losses_after(picked: torch.Tensor) -> torch.Tensor:
        asked.append(picked.tolist())
        return torch.arange(12.0)

    kinds = torch.arange(12) % 2
    rows = greedy(torch.zeros(12), kinds, torch.tensor([6, 6]), 4, losses_after)
    assert rows.tolist() == list(range(11, -1, -1))
    assert asked == [rows[:n].tolist() for n in (0, 3, 6, 9)]


@pytest.mark.parametrize("room", [11, 12])
def test_a_selection_of_all_needs_no_model_and_of_all_but_one_does(room, monkeypatch):
    mine = learner()
    task = task_of([0, 1] * 6)
    begin(mine, task)
    method, made, fresh = method_of(mine), [], mine.tools.fresh
    monkeypatch.setattr(mine.tools, "fresh", lambda n: made.append(n) or fresh(n))
    pool = Pool(task, method.store, mine.tools)
    rows = method.grown(pool, torch.arange(12), torch.zeros(12), torch.zeros(12).long(), torch.tensor([room]), "")
    assert len(rows) == len(set(rows.tolist())) == room
    assert len(made) == (0 if room == 12 else 4)  # 3 at a time, then the last two


def test_scoring_and_training_modes(monkeypatch):
    """Networks are untrained at first, made anew for each increment, and score in evaluation mode."""
    mine = learner(capacity=9, balance="off", selection_steps=3)
    made, scored = [], []
    fresh, losses = mine.tools.fresh, CSReL.losses
    monkeypatch.setattr(mine.tools, "fresh", lambda n: made.append(fresh(n)) or made[-1])

    def watched(self, net, pool, rows):
        result = losses(self, net, pool, rows)
        scored.append((id(net), net.training))
        return result

    monkeypatch.setattr(CSReL, "losses", watched)
    mine.learn(task_of([0, 1] * 15))
    assert len({id(net) for net in made}) == 1 + 3  # the reference, then nothing picked, 3 and 6 picked
    assert scored == [(id(net), False) for net in made]
    assert mine.net.training
    assert all(net is not mine.net for net in made)


def test_losses_are_cross_entropies_of_the_given_network():
    mine = learner()
    task = task_of([0, 1] * 6)
    begin(mine, task)
    method = method_of(mine)
    pool = Pool(task, method.store, mine.tools)
    rows = torch.tensor([5, 2, 7])
    losses = method.losses(mine.net, pool, rows)
    expected = F.cross_entropy(mine.net(to_float(task.take(rows))), task.labels_of(rows), reduction="none")
    assert torch.allclose(losses, expected)


@pytest.mark.parametrize("prv", [0, 3, 20])
def test_prv_enlarges_the_reference_pool(prv, monkeypatch):
    mine = learner(capacity=12, balance="off", prv=prv)
    mine.learn(task_of([0, 1] * 12))
    met: list[torch.Tensor] = []
    view, reference_of = CSReL.view, CSReL.reference

    def reference(self, pool, kept):
        monkeypatch.setattr(CSReL, "view", lambda s, p, rows: met.append(p.labels[rows]) or view(s, p, rows))
        net = reference_of(self, pool, kept)
        monkeypatch.setattr(CSReL, "view", view)
        return net

    monkeypatch.setattr(CSReL, "reference", reference)
    mine.learn(task_of([2, 3] * 12, seed=1))
    labels = torch.cat(met)
    assert (labels >= 2).sum() == 24
    assert (labels < 2).sum() == prv  # of the 6 that stay, repeated cyclically if need be


# -- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [
    {"budget": 2500}, {"budget": 2500, "balance": "on"}, {"capacity": 9}, {"spc": 3},
    {"budget": 1800, "codec": "webp:10"}, {"capacity": 8, "codec": "jpeg:20", "replay_space": "codec"},
    {"spc": 2, "prv": 2},
])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8)])
def test_every_kind_of_allowance_is_held(flags, shape):
    mine = learner(shape, **flags)
    for t, labels in enumerate(([0, 0, 1, 1], [2] * 7, [3, 4, 0] * 6)):
        mine.learn(task_of(labels, t, shape))
        kept = mine.memory()
        counts = kept["exemplars/labels"].bincount()
        assert mine.ledger().total <= flags.get("budget", 10**9)
        assert int(counts.sum()) <= flags.get("capacity", 10**9)
        assert int(counts.max()) <= flags.get("spc", 10**9)
        assert len(kept["exemplars/reference"]) == len(kept["exemplars/task"]) == int(counts.sum()) > 0
    state = {k: v.clone() for k, v in mine.memory().items()}
    other = learner(shape, **flags)
    other.method.load_state(state)
    assert {k: v.tolist() for k, v in other.memory().items()} == {k: v.tolist() for k, v in state.items()}


def test_a_budget_is_used_and_one_too_small_is_refused_before_training():
    mine = learner(budget=1500, balance="off")
    for t in range(3):
        mine.learn(task_of(np.arange(200) % 2 + 2 * t, t))
        assert 1500 - 22 - 6 * 96 <= mine.ledger().total <= 1500  # all but a row and the header's reserve
    steps = []
    with pytest.raises(BudgetError, match="--budget"):
        learner(budget=300).learn(task_of([0, 1] * 9), on_step=lambda *a: steps.append(a))
    assert not steps


@pytest.mark.parametrize(("name", "value"), [("ref_epochs", 0), ("proxy_steps", 0), ("selection_steps", 0), ("prv", -1),
                                             ("alpha", -1.0), ("ref_lr", 0.0), ("proxy_lr", -1.0)])
def test_values_that_make_no_sense(name, value):
    with pytest.raises(UserError, match="--" + name.replace("_", "-")):
        learner(**{name: value})


def test_presets():
    paper = configure({"method": "csrel", "benchmark": "cifar100-10", "preset": "paper"})
    assert (paper.options.alpha, paper.options.replay, paper.options.selection_steps) == (4.0, "sub", 40)
    assert (paper.options.ref_epochs, paper.options.proxy_steps, paper.settings.lr) == (10, 7, 0.02)
    cpu = configure({"method": "csrel", "benchmark": "cifar100-10", "preset": "cpu"})
    assert cpu.settings.epochs == 6
    assert cpu.settings.batch == cpu.settings.replay_batch == 64


# -- digits --------------------------------------------------------------------------------------------------

DIGITS = {"method": "csrel", "backbone": "mlp", "threads": 1, "selection_steps": 3}


def test_digits(tmp_path):
    """Fine-tuning ends at about 19 %."""
    result = run(configure(DIGITS | {"epochs": 6, "capacity": 60, "replay": "full", "images_per_class": 80}), tmp_path)
    assert result.class_incremental.A_T >= 70
    assert result.seconds["select"] > 0
