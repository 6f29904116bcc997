"""Old and new classes are compared on what looks decoded: nobody learns that raw means new."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin, task_of
from protocore.codecs.pixels import Pixels
from protocore.codecs.table import CODECS, CodecInfo
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.learn.learner import Learner
from protocore.methods.base import Batch
from protocore.methods.parts.losses import cross_entropy, icarl_fair_loss, icarl_loss, icarl_targets
from protocore.methods.rm import partners
from protocore.runs.configure import configure

SHAPE = (1, 8, 8)
MARK = (slice(None), slice(None), 0)  # the first row, dark in every picture, that the codec turns white


class Marking(Pixels):
    """Pictures come back as they were, but for the mark: a look that tells decoded from raw."""

    name = "marking"

    def decode(self, z: Tensor) -> Tensor:
        images = super().decode(z).clone()
        images[MARK] = 1.0
        return images

    @property
    def lossless(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def marking(monkeypatch):
    monkeypatch.setitem(CODECS._things, "marking", CodecInfo(lambda shape, wish: Marking(shape), "marks"))


def make(method: str, **flags) -> Learner:
    base = {"method": method, "benchmark": "digits", "backbone": "mlp", "width": 24, "augment": "none", "threads": 1,
            "batch": 8, "replay_batch": 8, "epochs": 2, "codec": "marking", "spc": 4}
    return Learner.of(configure(base | flags), SHAPE)


def pictures(labels: list[int], seed: int = 0) -> Tensor:
    """Noise with a bright row, another one for every class: hard enough that the look would pay."""
    x = torch.randint(0, 170, (len(labels), *SHAPE), generator=torch.Generator().manual_seed(seed))
    for i, label in enumerate(labels):
        x[i, 0, 1 + label] += 40
    x[MARK] = 0
    return x.byte()


def task(labels: list[int], seed: int) -> Task:
    return task_of(labels, images=pictures(labels, seed).numpy())


PLAIN = {"er": {}, "csrel": {}, "der": {}, "derpp": {}, "rm": {"cutmix": 1.0}, "ocs": {}, "bcsr": {}, "pbcs": {},
         "protocore": {"distill": 0.0, "cur_pro": 0.0, "pre_pro": 0.0, "noise": "0", "masked": False}}


@pytest.mark.parametrize("method", PLAIN)
def test_a_raw_row_says_nothing_about_old_classes(method):
    """The gradient of a current row's old outputs: none where it looks raw, some where it looks decoded."""
    mine = make(method, **PLAIN[method])
    mine.learn(task([0, 1] * 12, 0))
    begin(mine, task([2, 3] * 12, 1))
    images, seen = pictures([2, 3] * 4, 2), []
    raw = torch.tensor([True, False, False, True, True, False, True, False])
    batch = Batch(images, to_float(images), torch.tensor([2, 3] * 4), torch.arange(8), first_pass=True, raw=raw)
    hook = mine.net.head.register_forward_hook(
        lambda module, inputs, logits: seen.append(logits) if logits.requires_grad else None)
    loss = mine.method.loss(batch)
    hook.remove()
    assert loss.isfinite()
    gradients = [g for g in torch.autograd.grad(loss, seen, allow_unused=True) if g is not None]
    kept = raw if method not in ("ocs", "bcsr") else raw[batch.notes["picked"]]
    of_old = next(g for g in gradients if len(g) >= len(kept))[: len(kept), :2].abs().sum(1)
    assert torch.equal(of_old > 0, ~kept)
    # All look alike: every row is compared.
    mine.method.loss(replace(batch, raw=None, notes={}))


def test_prototypes_of_old_and_new_classes_are_held_apart_by_rows_that_look_decoded():
    """The gradient of a row that looks raw is none: its look alone would tell its prototype from the old ones."""
    mine = make("protocore", distill=0.0, task_cur=0.0, task_pre=0.0, pre_pro=0.0, noise="0")
    mine.learn(task([0, 1] * 12, 0))
    begin(mine, task([2, 3] * 12, 1))
    images, labels = pictures([2, 3] * 4, 2), torch.tensor([2, 3] * 4)
    raw = torch.tensor([True, False, False, True, True, False, True, False])
    for looks, counts in ((raw, ~raw), (None, torch.ones(8, dtype=torch.bool))):
        x = to_float(images).requires_grad_()
        loss = mine.method.loss(Batch(images, x, labels, torch.arange(8), first_pass=True, raw=looks))
        (gradient,) = torch.autograd.grad(loss, x)
        assert torch.equal(gradient.flatten(1).abs().sum(1) > 0, counts)


def test_with_masked_losses_no_current_row_meets_old_classes():
    mine = make("er", current="masked")
    mine.learn(task([0, 1] * 12, 0))
    begin(mine, task([2, 3] * 12, 1))
    images = pictures([2, 3] * 4, 2)
    one, other = (Batch(images, to_float(images), torch.tensor([2, 3] * 4), torch.arange(8), True, raw=raw)
                  for raw in (None, torch.tensor([True] * 8)))
    torch.manual_seed(0)
    first = mine.method.loss(one)
    torch.manual_seed(0)
    assert torch.equal(mine.method.loss(other), first)


@pytest.mark.parametrize("method", ["er", "derpp", "protocore"])
def test_the_look_alone_gains_nothing(method):
    """The same pictures in both looks: how many more are taken for a new class because they look raw."""
    def leak(space: str) -> float:
        mine = make(method, replay_space=space, epochs=40, lr=3e-3, spc=6, width=64)
        mine.learn(task([0, 1, 2] * 20, 0))
        mine.learn(task([3, 4, 5] * 20, 1))
        old = pictures([0, 1, 2] * 40, 9)
        marked = old.clone()
        marked[MARK] = 255
        return float((mine.predict(old) >= 3).mean() - (mine.predict(marked) >= 3).mean())

    fair, unfair = leak("mix"), leak("raw")
    assert unfair > 0.2
    assert abs(fair) < unfair / 2


def test_half_shows_both_looks_and_compares_all(monkeypatch):
    found = {}
    for space in ("mix", "half", "codec", "raw"):
        mine, rows = make("er", replay_space=space, epochs=1), []
        learn = mine.method.loss

        def spy(batch: Batch, learn=learn, rows=rows) -> Tensor:
            rows.append((batch.x[MARK].flatten(1).amin(1) > 0.5, batch.raw))
            return learn(batch)

        monkeypatch.setattr(mine.method, "loss", spy)
        mine.learn(task([0, 1] * 40, 0))
        decoded = torch.cat([d for d, _ in rows])
        found[space] = float(decoded.float().mean())
        for marked, raw in rows:
            assert (raw is None) == (space != "mix")
            if raw is not None:
                assert torch.equal(raw, ~marked)
    assert found["codec"] == 1
    assert found["raw"] == 0
    assert 0.3 < found["mix"] < 0.7
    assert 0.3 < found["half"] < 0.7


# -- pure functions --------------------------------------------------------------------------------------------


def test_cross_entropy_with_classes_out_of_the_competition():
    logits = torch.tensor([[1.0, 2.0, -math.inf, 0.5], [0.3, -0.7, 0.2, 1.0]])
    labels = torch.tensor([1, 2])
    slow = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        there = [i for i, v in enumerate(row) if v > -math.inf]
        total = math.log(sum(math.exp(row[i]) for i in there))
        slow.append(0.9 * (total - row[label]) + 0.1 * sum(total - row[i] for i in there) / len(there))
    losses = cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
    assert losses.tolist() == pytest.approx(slow, rel=1e-5)
    assert float(cross_entropy(logits, labels, label_smoothing=0.1)) == pytest.approx(sum(slow) / 2, rel=1e-5)
    whole = logits[1:]
    assert torch.equal(cross_entropy(whole, labels[1:], label_smoothing=0.1),
                       F.cross_entropy(whole, labels[1:], label_smoothing=0.1))


def test_icarl_raw_rows_keep_the_teacher_and_compete_among_themselves():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels, old = torch.tensor([2, 3, 2, 0, 1]), torch.tensor([0, 1])
    teacher = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    targets = icarl_targets(labels, 4, old, teacher)
    raw = torch.tensor([True, False, True])  # of three current rows; two are replayed
    loss = icarl_fair_loss(logits, targets, raw, old)
    slow = 0.0
    for i in range(5):
        apart = i < 3 and bool(raw[i])
        for c in range(4):
            p = float(logits[i, c].detach().sigmoid())
            if not (apart and c >= 2):
                slow -= float(targets[i, c]) * math.log(p) + (1 - float(targets[i, c])) * math.log(1 - p)
        if apart:
            slow -= float(logits[i, 2:].detach().log_softmax(0)[int(labels[i]) - 2])
    assert float(loss) == pytest.approx(slow / 20, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 2:].sum().abs() < 1e-7  # for one new class against another, not for new classes as such
    assert torch.equal(icarl_fair_loss(logits, targets, torch.zeros(3, dtype=torch.bool), old),
                       icarl_loss(logits, targets))


def test_icarl_takes_the_fair_loss_where_a_teacher_is_there(monkeypatch):
    mine = make("icarl")
    mine.learn(task([0, 1] * 12, 0))
    begin(mine, task([2, 3] * 12, 1))
    images = pictures([2, 3] * 4, 2)
    batch = Batch(images, to_float(images), torch.tensor([2, 3] * 4), torch.arange(8), True, raw=torch.ones(8) > 0)
    torch.manual_seed(0)
    fair = mine.method.loss(batch)
    torch.manual_seed(0)
    assert abs(float(fair - mine.method.loss(replace(batch, raw=None)))) > 1e-3


def test_partners_of_raw_rows_are_raw():
    raw = torch.tensor([True, False, True, True])
    apart = torch.cat([raw, torch.zeros(6, dtype=torch.bool)])
    shuffles = set()
    for seed in range(20):
        torch.manual_seed(seed)
        partner = partners(10, raw)
        assert sorted(partner.tolist()) == list(range(10))
        assert torch.equal(apart[partner], apart)
        shuffles.add(tuple(partner.tolist()))
    assert len(shuffles) > 10
    torch.manual_seed(3)
    everyone = partners(10, None)
    torch.manual_seed(3)
    assert torch.equal(everyone, torch.randperm(10))
