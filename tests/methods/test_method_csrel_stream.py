"""CSReL online: the reducible loss, the reservoir that goes by it, and how both are wired over several windows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin, marked
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.memory import fill
from protocore.memory.fill import reservoir_slots
from protocore.methods import csrel_stream
from protocore.methods.csrel import CSReL
from protocore.methods.csrel_stream import CSReLStream, reducible, shares_of
from protocore.methods.parts.replay import Replay
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 8, 8)
WINDOWS = ([0, 1] * 20, [1, 2] * 20, [2, 3] * 20)


def task_of(labels, seed: int = 0) -> Task:
    """Noise whose first pixels are the label and the number of the image."""
    images = marked(labels, seed, SHAPE)
    images[:, 0, 0, 1] = np.arange(len(labels)) % 256
    return plain_task(labels, images=images)


def learner(**flags) -> Learner:
    short = {"online": True, "batch": 5, "replay_batch": 4, "proxy_steps": 3, "selection_steps": 4}
    return small_learner("csrel", SHAPE, **short | flags)


def method_of(mine: Learner) -> CSReLStream:
    assert isinstance(mine.method, CSReLStream)
    return mine.method


def test_online_has_the_form_for_streams_and_offline_has_not():
    assert isinstance(learner().method, CSReLStream)
    assert isinstance(learner(online=False).method, CSReL)


# -- the score -----------------------------------------------------------------------------------------------


def slow_cross_entropy(row: list[float], label: int) -> float:
    return math.log(sum(math.exp(z) for z in row)) - row[label]


@pytest.mark.parametrize("mse", [0.0, 0.2, 3.0])
def test_the_reducible_loss_of_each_sample_written_out(mse):
    torch.manual_seed(0)
    logits, of_memory, labels = torch.randn(6, 4), torch.randn(6, 4) * 2, torch.tensor([0, 3, 1, 1, 2, 0])
    expected = []
    for mine, other, label in zip(logits.tolist(), of_memory.tolist(), labels.tolist(), strict=True):
        gap = sum((a - b) ** 2 for a, b in zip(mine, other, strict=True)) / 4
        expected.append(slow_cross_entropy(other, label) + mse * gap - slow_cross_entropy(mine, label))
    found = reducible(logits, of_memory, labels, mse)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    below = sum(math.exp(d) for d in expected)
    assert shares_of(found).tolist() == pytest.approx([6 * math.exp(d) / below for d in expected], rel=1e-5)
    assert float(shares_of(found).mean()) == pytest.approx(1)


def test_noise_that_nobody_can_learn_is_less_wanted_than_what_the_memory_lacks():
    """Three samples that the memory gets wrong; the network has learned the first, not the second: its label is noise.
    The third both know."""
    logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])
    of_memory = torch.tensor([[0.0, 4.0], [4.0, 0.0], [4.0, 0.0]])
    shares = shares_of(reducible(logits, of_memory, torch.tensor([0, 1, 0]), 0.2))
    assert shares[0] > 10 * shares[1]
    assert shares[1] == pytest.approx(float(shares[2]))  # a loss that is large in both counts as little as a small one


# -- the reservoir that goes by it -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_slots_are_those_of_offering_one_by_one(seed, monkeypatch):
    """The published loop, with the same chance: r of {0..n}, kept if r < M · s, in any slot."""
    chance = np.random.default_rng(seed)
    seen, offered, capacity = int(chance.integers(0, 30)), int(chance.integers(1, 12)), int(chance.integers(1, 12))
    shares = torch.tensor(chance.exponential(1.0, offered))
    draws = [torch.tensor(chance.random(offered)), torch.tensor(chance.random(offered))]
    given = iter(draws)
    monkeypatch.setattr(fill.torch, "rand", lambda *a, **k: next(given))
    items, slots = reservoir_slots(seen, offered, capacity, shares)
    monkeypatch.undo()
    memory: dict[int, int] = {}
    for i in range(offered):
        n = seen + i
        if n < capacity:
            memory[n] = i
        elif math.floor(float(draws[0][i]) * (n + 1)) < capacity * float(shares[i]):
            memory[math.floor(float(draws[1][i]) * capacity)] = i
    assert dict(zip(slots.tolist(), items.tolist(), strict=True)) == memory


def test_how_often_a_sample_is_kept_falls_with_what_was_seen_and_grows_with_its_share():
    torch.manual_seed(0)
    runs, capacity = 6000, 3
    shares = torch.tensor([0.5, 1.0, 2.0, 50.0])
    kept = torch.zeros(4)
    where = torch.zeros(capacity)
    for _ in range(runs):
        for item, share in enumerate(shares):
            items, slots = reservoir_slots(19, 1, capacity, share[None])
            kept[item] += len(items)
            where[slots] += 1
    # r < 3s of 20 values: 2 (0 and 1), 3, 6 and all of them.
    assert kept / runs == pytest.approx(np.array([2, 3, 6, 20]) / 20, abs=0.02)
    assert where / where.sum() == pytest.approx(np.full(3, 1 / 3), abs=0.02)


@pytest.mark.parametrize("flags", [{"spc": 3}, {"capacity": 7}])
def test_the_memory_has_its_size_and_its_rows_belong_together(flags):
    mine = learner(**flags)
    for number, labels in enumerate(WINDOWS):
        task = task_of(labels, number)
        mine.learn_window(task)
    memory = mine.memory()
    counts = memory["exemplars/labels"].bincount()
    assert counts.tolist() == [3] * 4 if "spc" in flags else int(counts.sum()) == 7
    assert memory["exemplars/bytes"][:, 0, 0, 0].tolist() == memory["exemplars/labels"].tolist()
    assert memory["exemplars/logits"].shape == (len(memory["exemplars/labels"]), 4)
    assert memory["exemplars/logits"].dtype == torch.float16
    assert int(memory["exemplars/seen"].sum()) == 120


# -- wiring, over three windows --------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [{"spc": 3}, {"capacity": 9}, {"spc": 3, "mse": 0.0}])
def test_every_batch_is_judged_by_the_model_of_the_memory_and_the_network_of_that_moment(flags, monkeypatch):
    """Batch norm and transforms: the model judges in evaluation mode, the very view that was learned."""
    mine = learner(backbone="convnet", width=4, norm="batch", augment="crop1", **flags)
    method, met = method_of(mine), []
    offer, loss_of = Replay.offer, CSReLStream.loss

    def loss(self, batch):
        value = loss_of(self, batch)
        met.append({"x": batch.x.clone(), "y": batch.labels.clone(), "first": batch.images[:, 0, 0, 0].tolist(),
                    "model": {k: v.clone() for k, v in self.model.there.state_dict().items()},
                    "logits": batch.notes["logits"].clone(), "mode": self.model.there.training})
        return value

    def offering(self, batch, *, shares=None, **columns):
        assert shares is not None
        images, labels = batch.images, batch.labels
        met[-1] |= {"shares": shares.clone(), "columns": {k: v.clone() for k, v in columns.items()},
                    "kind": images.dtype, "stored": images[:, 0, 0, 0].tolist(), "labels": labels.clone()}
        return offer(self, batch, shares=shares, **columns)

    monkeypatch.setattr(CSReLStream, "loss", loss)
    monkeypatch.setattr(Replay, "offer", offering)
    mse = flags.get("mse", 0.2)
    for number, labels in enumerate(WINDOWS):
        met.clear()
        mine.learn_window(task_of(labels, number))
        assert len(met) == 8
        for step in met:
            assert not step["mode"]
            judge = mine.tools.fresh(mine.net.classes)
            judge.load_state_dict(step["model"])
            with torch.no_grad():
                other = judge.eval()(step["x"])
            d = [slow_cross_entropy(b, y) - slow_cross_entropy(a, y)
                 + mse * sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) / len(a)
                 for a, b, y in zip(step["logits"].tolist(), other.tolist(), step["labels"].tolist(), strict=True)]
            below = sum(math.exp(value) for value in d)
            assert step["shares"].tolist() == pytest.approx([5 * math.exp(v) / below for v in d], rel=1e-3)
            assert torch.equal(step["columns"]["logits"], step["logits"].half())
            assert (step["kind"], step["stored"]) == (torch.uint8, step["first"])
            assert torch.equal(step["labels"], step["y"])
    assert method.model.net is None  # nothing of it outlives the window


@pytest.mark.parametrize(("flags", "room"), [({"spc": 3}, [6, 6, 6]), ({"capacity": 12}, [12, 8, 6])])
def test_the_model_of_the_memory_is_made_anew_when_enough_has_changed(flags, room, monkeypatch):
    """Of the exemplars of the window's classes, untrained before; first at a window's beginning."""
    mine = learner(selection_steps=2, **flags)
    method, stored, fits, renewals = method_of(mine), [], [], []
    offer, fit, renew = Replay.offer, csrel_stream.fit_proxy, CSReLStream.renew

    def offering(self, batch, **columns):
        stored.append(offer(self, batch, **columns))
        return stored[-1]

    def fitting(net, images, labels, **how):
        assert how == {"steps": 3, "lr": 0.05, "batch": 32}
        fits.append(labels.tolist())
        assert torch.equal((images(torch.arange(len(labels)))[:, 0, 0, 0] * 255).round().long(), labels)
        return fit(net, images, labels, **how)

    def renewing(self):
        renewals.append(len(stored))
        before = self.model.net
        renew(self)
        assert self.model.net is not before

    monkeypatch.setattr(Replay, "offer", offering)
    monkeypatch.setattr(csrel_stream, "fit_proxy", fitting)
    monkeypatch.setattr(CSReLStream, "renew", renewing)
    for number, labels in enumerate(WINDOWS):
        stored.clear()
        fits.clear()
        renewals.clear()
        mine.learn_window(task_of(labels, number))
        expected, since = [0], 0
        for step, count in enumerate(stored):
            since += count
            if since >= max(room[number] / 2, 1):
                expected.append(step + 1)
                since = 0
        assert renewals == expected
        assert len(fits) == len(expected) - (number == 0)  # the very first time there is nothing to train on
        assert all(set(seen) <= set(labels) for seen in fits)
        assert method.updates == since


def test_the_loss_is_der_plus_plus_with_alpha_for_labels_and_beta_for_logits(monkeypatch):
    mine = learner(alpha=2.5, beta=0.7, capacity=9)
    mine.learn_window(task_of(WINDOWS[0]))
    task = task_of(WINDOWS[1], 1)
    begin(mine, task, keep_optimizer=True)
    store = method_of(mine).memory.store
    draws = iter([torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5, 6])])
    monkeypatch.setattr(type(store), "draw", lambda self, n: self.at(next(draws)))
    x, y = to_float(task.take(torch.arange(5))), task.labels_of(torch.arange(5))
    batch = csrel_stream.Batch(task.take(torch.arange(5)), x, y, torch.arange(5), first_pass=True)
    loss = mine.method.loss(batch)
    memory = mine.memory()
    images, labels, logits = to_float(memory["exemplars/bytes"]), memory["exemplars/labels"].long(), \
        memory["exemplars/logits"].float()
    dark = (mine.net(images[[0, 2, 4]]) - logits[[0, 2, 4]]).square().mean()
    hard = F.cross_entropy(mine.net(images[[1, 3, 5, 6]]), labels[[1, 3, 5, 6]])
    expected = F.cross_entropy(mine.net(x), y) + 0.7 * dark + 2.5 * hard
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


# -- settings ----------------------------------------------------------------------------------------------------


def test_a_reservoir_over_the_stream_needs_a_fixed_size():
    with pytest.raises(UserError, match=r"--balance off .*--capacity"):
        learner(balance="off", spc=4)
    counts: Tensor = torch.zeros(0)
    for balance in ("off", "on"):
        mine = learner(balance=balance, capacity=8)
        for number, labels in enumerate(WINDOWS):
            mine.learn_window(task_of(labels, number))
        counts = mine.memory()["exemplars/labels"].bincount()
        assert int(counts.sum()) == 8
    assert counts.tolist() == [2] * 4


@pytest.mark.parametrize(("name", "value"), [("beta", -0.1), ("mse", -1.0)])
def test_values_that_make_no_sense(name, value):
    with pytest.raises(UserError, match=f"--{name}"):
        learner(**{name: value})


def test_presets():
    online = configure({"method": "csrel", "benchmark": "cifar100-10", "preset": "paper", "online": True})
    s, o = online.settings, online.options
    assert (s.optimizer, s.lr, s.batch, s.replay_batch, s.epochs) == ("sgd", 0.02, 32, 32, 1)
    assert (o.alpha, o.beta, o.mse, o.proxy_steps, o.proxy_lr, o.selection_steps) == (1.0, 0.1, 0.2, 20, 5e-3, 100)
    tiny = configure({"method": "csrel", "benchmark": "tinyimagenet-20", "preset": "paper", "online": True})
    assert (tiny.settings.lr, tiny.options.mse, tiny.options.selection_steps) == (0.03, 0.5, 250)


# -- digits ------------------------------------------------------------------------------------------------------

DIGITS = {"method": "csrel", "backbone": "mlp", "threads": 1, "online": True, "online_window": 100,
          "images_per_class": 60, "lr": 0.01}


@pytest.mark.parametrize("flags", [{"spc": 4}, {"budget": 4000}, {"capacity": 40, "codec": "webp:10"}])
def test_digits_and_every_byte_of_it(flags, tmp_path):
    result = run(configure(DIGITS | flags), tmp_path)
    rows = {row.name: row for row in result.ledger.entries}
    assert (tmp_path / "memory.safetensors").stat().st_size == result.bytes_kept <= flags.get("budget", 10**9)
    n = rows["exemplars/labels"].rows
    assert n == 40 if "budget" not in flags else n > 20
    assert rows["exemplars/logits"].bytes == n * 10 * 2
    assert rows["exemplars/seen"].bytes == 4 * (10 if "spc" in flags else 1)
    assert rows["model of the memory, during a window"].shared
    assert result.seconds["select"] > 0
    assert result.task_incremental.A_T >= 65
