"""Rainbow Memory: votes over perturbed copies, positions and quotas, CutMix, the schedule, the online second phase."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin, learner, marked
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.learn.loop import warm_restarts
from protocore.methods import rm
from protocore.methods.base import Batch
from protocore.methods.parts.perturbations import PERTURBATIONS, cutmix, cutout, invert, perturbed, rotate, solarize
from protocore.methods.rm import RainbowMemory, diverse, filled, spread, uncertainty
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 6)
images_of = partial(marked, shape=SHAPE)


def task_of(labels, seed: int = 0) -> Task:
    return plain_task(labels, images=images_of(labels, seed))


make = partial(learner, "rm", SHAPE, width=10, epochs=1, cutmix=0.0)


def rainbow(learner: Learner) -> RainbowMemory:
    assert isinstance(learner.method, RainbowMemory)
    return learner.method


def watch(learner: Learner) -> list[Tensor]:
    seen: list[Tensor] = []
    learner.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    return seen


# -- P1: the votes -----------------------------------------------------------------------------------------------


def test_uncertainty_of_votes():
    votes = torch.tensor([[7] * 9 + [2] * 2 + [0], [3] * 12, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1], list(range(12))])
    assert uncertainty(votes).tolist() == pytest.approx([0.25, 0, 10 / 12, 11 / 12])


def test_uncertainty_is_as_counted_and_bounded_by_the_number_of_classes():
    votes = torch.randint(10, (500, 12))
    counts = torch.stack([(votes == c).sum(1) for c in range(10)], dim=1)
    u = uncertainty(votes)
    assert torch.allclose(u, 1 - counts.max(1).values / 12)
    assert u.max() <= 10 / 12 + 1e-6


# -- the perturbations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 5, 9), (1, 1, 1)])
@pytest.mark.parametrize("whole", [True, False])
def test_twelve_copies_of_any_shape_within_the_range_of_images(shape, whole):
    images = torch.randint(0, 256, (4, *shape), dtype=torch.uint8)
    given = images if whole else to_float(images)
    before = given.clone()
    copies = list(perturbed(given))
    assert len(copies) == len(PERTURBATIONS) == 12
    assert torch.equal(given, before)
    for copy in copies:
        assert copy.shape == (4, *shape)
        assert copy.dtype == torch.float32
        assert copy.min() >= 0
        assert copy.max() <= 1 + 1e-6


def test_the_list_of_perturbations():
    x = torch.rand(2, 3, 32, 32) * 0.9 + 0.05
    torch.manual_seed(0)
    copies = list(perturbed(x))
    torch.manual_seed(0)
    for copy, share in zip(copies[:4], (8 / 32, 16 / 32, 24 / 32, 32 / 32), strict=True):
        assert torch.equal(copy, cutout(x, share))
    expected = [x.flip(3), x.flip(2), rotate(x, 45), torch.rot90(x, 1, (2, 3)), 1 - x,
                torch.where(x >= 128 / 255, 1 - x, x), torch.where(x >= 64 / 255, 1 - x, x),
                torch.where(x >= 32 / 255, 1 - x, x)]
    off = [(a - b).abs() > 1e-4 for a, b in zip(copies[4:], expected, strict=True)]
    # half a step of 255 beside a threshold may be told apart otherwise
    assert [round(float(o.float().mean()), 2) for o in off] == [0] * 8


def test_cutout_blacks_out_one_box_anywhere_and_is_cut_off_at_the_border():
    x = torch.ones(400, 2, 12, 16)
    black = cutout(x, 0.25) == 0
    assert torch.equal(black[:, 0], black[:, 1])
    rows, columns = black[:, 0].any(2), black[:, 0].any(1)
    assert torch.equal(black[:, 0], rows[:, :, None] & columns[:, None, :])
    assert int(rows.sum(1).max()) == 3
    assert int(columns.sum(1).max()) == 4
    assert int(rows.sum(1).min()) == 2  # a corner of the centre's range
    assert len({tuple(r.tolist()) for r in rows}) == 12
    assert bool((cutout(x, 1.0) == 0)[:, 0].any((1, 2)).all())


def test_rotations():
    x = torch.rand(2, 3, 7, 7)
    assert torch.allclose(rotate(x, 90), torch.rot90(x, 1, (2, 3)), atol=1e-5)
    assert torch.allclose(rotate(x, 180), x.flip(2, 3), atol=1e-5)
    assert torch.allclose(rotate(x, 0), x, atol=1e-5)
    wide = torch.zeros(1, 1, 5, 9)
    wide[0, 0, 2, 6] = 1  # two to the right of the centre
    turned = rotate(wide, 90)
    assert turned[0, 0, 0, 4] == pytest.approx(1, abs=1e-5)  # two above it
    assert rotate(torch.ones(1, 1, 21, 21), 45)[0, 0, [0, 0, 20, 20], [0, 20, 0, 20]].tolist() == [0] * 4
    assert rotate(torch.ones(1, 1, 21, 21), 45)[0, 0, 10, 10] == pytest.approx(1, abs=1e-5)


def test_invert_and_solarize():
    images = torch.tensor([0, 31, 32, 63, 64, 127, 128, 255], dtype=torch.uint8).view(1, 1, 2, 4)
    x = to_float(images)
    assert (invert(x) * 255).round().flatten().tolist() == [255, 224, 223, 192, 191, 128, 127, 0]
    assert (solarize(x, 128) * 255).round().flatten().tolist() == [0, 31, 32, 63, 64, 127, 127, 0]
    assert (solarize(x, 32) * 255).round().flatten().tolist() == [0, 31, 223, 192, 191, 128, 127, 0]


# -- P3: positions and quotas ------------------------------------------------------------------------------------


def test_positions_are_spread_from_easy_to_hard():
    assert spread(10, 4).tolist() == [0, 2, 5, 7]
    assert spread(7, 7).tolist() == list(range(7))
    assert spread(3, 8).tolist() == [0, 1, 2]
    for n in range(1, 40):
        for q in range(1, n + 1):
            assert spread(n, q).tolist() == [j * n // q for j in range(q)]
            assert len(set(spread(n, q).tolist())) == q
            assert spread(n, q, "stride").tolist() == [*range(0, n, n // q)][:q]


def test_the_released_stride_keeps_only_the_easiest_below_twice_the_quota():
    assert spread(19, 10, "stride").tolist() == list(range(10))
    assert spread(19, 10).tolist() == [0, 1, 3, 5, 7, 9, 11, 13, 15, 17]


def test_candidates_are_taken_by_uncertainty_within_each_class():
    labels = torch.tensor([0, 1] * 10)
    u = torch.randperm(20).float()
    chosen = diverse(labels, u, 4)
    for label in (0, 1):
        ranked = sorted((i for i in range(20) if labels[i] == label), key=lambda i: float(u[i]))
        assert [int(i) for i in chosen if labels[i] == label] == [ranked[j] for j in (0, 2, 5, 7)]


def test_ties_are_broken_by_chance():
    labels, u = torch.zeros(10, dtype=torch.int64), torch.zeros(10)
    first = [int(diverse(labels, u, 1)) for _ in range(300)]
    assert set(first) == set(range(10))
    hard = torch.tensor([1.0] * 5 + [0.0] * 5)
    for _ in range(20):
        chosen = diverse(labels, hard, 2)
        assert int(chosen[0]) >= 5 > int(chosen[1])  # the easiest, and the one in the middle


@pytest.mark.parametrize("positions", ["even", "stride"])
@pytest.mark.parametrize(("sizes", "total", "counts"), [
    ([100] * 10, 500, [50] * 10),
    ([100] * 6, 500, None),  # 83 each and 2 by chance
    ([10] + [100] * 9, 500, None),  # 10 of the first, whose slots others take
    ([30, 20], 500, [30, 20]),
])
def test_quotas_and_filling(sizes, total, counts, positions):
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])
    quota = total // len(sizes)
    chosen = diverse(labels, torch.rand(len(labels)), quota, positions)
    assert labels[chosen].bincount().tolist() == [min(n, quota) for n in sizes]
    everything = filled(chosen, len(labels), total)
    assert torch.equal(everything[: len(chosen)], chosen)
    assert len(everything) == len(everything.unique()) == min(total, len(labels))
    if counts is not None:
        assert labels[everything].bincount().tolist() == counts


def test_the_capacity_is_used_to_the_last_place_and_spc_is_a_limit_of_each_class():
    learner = make(capacity=11)
    sizes = []
    for labels in ([0] * 2 + [1] * 5, [2] * 9 + [3] * 9, [4] * 2):
        learner.learn(task_of(labels, seed=labels[0]))
        sizes.append(len(rainbow(learner).store))
        images, y = rainbow(learner).store.images, rainbow(learner).store.labels
        assert images[:, 0, 0, 0].tolist() == y.tolist()
        assert len({image.tobytes() for image in images.numpy()}) == len(images)
    assert sizes == [7, 11, 11]
    assert set(rainbow(learner).store.counts()) == {0, 1, 2, 3, 4}
    learner = make(spc=4)
    learner.learn(task_of([0] * 2 + [1] * 9))
    learner.learn(task_of([2] * 9))
    assert rainbow(learner).store.counts() == {0: 2, 1: 4, 2: 4}


def test_the_first_memory_is_random_and_later_all_candidates_are_judged(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(rm, "perturbed", lambda x: asked.append(len(x)) or [x] * 12)
    learner = make(spc=4)
    learner.learn(task_of([0] * 10 + [1] * 3))
    assert asked == []
    learner.learn(task_of([2] * 9 + [0] * 2))
    assert asked == [9 + 2 + 4]  # new ones and stored ones of classes 0 and 2; class 1 has no more than its quota


def test_votes_are_those_of_the_network_on_the_copies():
    learner = make(spc=2)
    learner.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8, seed=1)
    begin(learner, task)
    method = rainbow(learner)
    pool = rm.Pool(task, method.store, learner.tools, torch.arange(len(method.store)))
    torch.manual_seed(3)
    u = method.votes(pool, 2)
    torch.manual_seed(3)
    rows = torch.arange(16)  # of the stored classes there are no more than the quota
    with torch.no_grad():
        votes = torch.stack([learner.net(c).argmax(1) for c in perturbed(pool.x(rows))], dim=1)
    slow = [1 - max(row.tolist().count(c) for c in range(4)) / 12 for row in votes]
    assert u[:16].tolist() == pytest.approx(slow)
    assert u[16:].tolist() == [0] * 4
    assert 0 < float(u.max()) < 1


def test_voting_leaves_the_network_as_it_was():
    learner = Learner.of(configure({"method": "rm", "backbone": "convnet", "width": 8, "norm": "batch", "threads": 1,
                                 "spc": 2, "epochs": 1, "batch": 8, "augment": "none"}), (1, 8, 8))
    rng = np.random.default_rng(0)
    learner.learn(Task.from_arrays(rng.integers(0, 256, (16, 1, 8, 8), dtype=np.uint8), [0, 1] * 8))
    task = Task.from_arrays(rng.integers(0, 256, (16, 1, 8, 8), dtype=np.uint8), [2, 3] * 8)
    begin(learner, task)
    learner.net.train()
    before = {k: v.clone() for k, v in learner.net.state_dict().items()}
    learner.finish(task, None)
    task.close()
    assert learner.net.training
    assert all(torch.equal(v, before[k]) for k, v in learner.net.state_dict().items())


# -- P4: the schedule --------------------------------------------------------------------------------------------


def test_the_schedule_of_warm_restarts():
    rates = [0.05 * warm_restarts(epoch) for epoch in range(256)]
    assert rates[:10] == pytest.approx([0.005, 0.05, 0.05, 0.02525, 0.05, 0.042751, 0.02525, 0.007749, 0.05, 0.048116],
                                       abs=5e-7)
    assert [rates[e] for e in (127, 128, 131, 255)] == pytest.approx([0.00053, 0.05, 0.049933, 0.000507], abs=5e-7)


# -- P5: CutMix --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 5, 9)])
def test_the_share_is_one_minus_the_pasted_area(shape):
    # Image i is all i: what is pasted can be seen.
    x = torch.arange(4.0).view(4, 1, 1, 1).expand(4, *shape).clone()
    partner = torch.tensor([1, 2, 3, 0])
    generator = np.random.default_rng(0)
    for _ in range(60):
        share, row, column = generator.random(), generator.integers(shape[1]), generator.integers(shape[2])
        mixed, own = cutmix(x, partner, float(share), int(row), int(column))
        pasted = mixed != x
        assert torch.equal(mixed[pasted], x[partner][pasted])  # also where the partner has been written to already
        assert torch.equal(pasted, pasted[:1, :1].expand_as(pasted))
        assert own == pytest.approx(1 - pasted[0, 0].double().mean().item())
        assert x[:, 0, 0, 0].tolist() == [0, 1, 2, 3]


def test_boxes():
    x = torch.stack([torch.zeros(1, 32, 32), torch.ones(1, 32, 32)])
    partner = torch.tensor([1, 0])
    mixed, own = cutmix(x, partner, 0.75, 16, 20)  # a side of one half, in the middle of the rows
    assert own == 0.75
    assert mixed[0, 0].any(1).nonzero().flatten().tolist() == list(range(8, 24))
    assert mixed[0, 0].any(0).nonzero().flatten().tolist() == list(range(12, 28))
    mixed, own = cutmix(x, partner, 0.75, 0, 31)  # rows -8..7 and columns 23..38: about a quarter lies inside
    assert own == 1 - 8 * 9 / 1024
    mixed, own = cutmix(x, partner, 1.0, 5, 5)
    assert own == 1
    assert torch.equal(mixed, x)
    mixed, own = cutmix(x, partner, 0.0, 16, 16)
    assert own == 0
    assert torch.equal(mixed, x[partner])


def batch_of(labels: list[int], seed: int = 5) -> Batch:
    images = torch.from_numpy(images_of(labels, seed))
    return Batch(images, to_float(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=True)


def test_the_loss_with_cutmix(monkeypatch):
    learner = make(cutmix=1.0)
    begin(learner, task_of([0, 1, 2] * 4))
    batch, seen = batch_of([0, 1, 2, 1, 0]), []

    def spy(x, partner, share, row, column):
        seen.append((partner, *cutmix(x, partner, share, row, column)))
        return seen[-1][1:]

    monkeypatch.setattr(rm, "cutmix", spy)
    shares = set()
    for _ in range(20):
        loss = learner.method.loss(batch)
        partner, mixed, own = seen[-1]
        logits = learner.net(mixed)
        each = F.cross_entropy(logits, batch.labels, reduction="none").mean() * own
        other = F.cross_entropy(logits, batch.labels[partner], reduction="none").mean() * (1 - own)
        assert loss.item() == pytest.approx((each + other).item(), rel=1e-5)
        shares.add(own)
    assert len(shares) > 5
    assert max(shares) <= 1
    assert min(shares) >= 0


def test_cutmix_comes_with_its_probability(monkeypatch):
    learner = make(cutmix=0.5)
    begin(learner, task_of([0, 1] * 4))
    mixed: list[int] = []

    def count(x, *rest):
        mixed.append(1)
        return cutmix(x, *rest)

    monkeypatch.setattr(rm, "cutmix", count)
    for _ in range(400):
        learner.method.loss(batch_of([0, 1]))
    assert 150 < len(mixed) < 250
    with pytest.raises(UserError, match=r"--cutmix 1\.5"):
        make(cutmix=1.5)


# -- the head, and the second phase ------------------------------------------------------------------------------


def test_a_fresh_head_only_where_it_is_asked_for():
    for fresh in (False, True):
        learner = make(fresh_head=fresh)
        learner.learn(task_of([0, 1] * 6))
        before = learner.net.head.weight.detach().clone()
        begin(learner, task_of([2, 3] * 6))
        assert learner.optimizer is not None
        trained = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
        assert torch.equal(learner.net.head.weight[:2], before) is not fresh
        assert id(learner.net.head.weight) in trained
        learner = make(fresh_head=fresh, online=True)
        learner.learn_window(task_of([0, 1] * 6))
        before = learner.net.head.weight.detach().clone()
        begin(learner, task_of([0, 1] * 6), keep_optimizer=True)
        assert torch.equal(learner.net.head.weight, before)  # a window without a new class


def test_a_fresh_head_begins_as_heads_of_this_network_do():
    learner = make(fresh_head=True)
    learner.net.head.xavier = True
    learner.learn(task_of([0, 1] * 6))
    begin(learner, task_of([2, 3] * 6))
    assert learner.net.head.bias is not None
    assert not learner.net.head.bias.any()
    assert learner.net.head.weight.any()


def test_online_the_memory_alone_is_learned_after_each_window():
    learner = make(online=True, epochs=3, batch=6, replay_batch=5, spc=4)
    seen = watch(learner)
    learner.learn_window(task_of([0, 1] * 6))
    memory = rainbow(learner).store
    assert [len(x) for x in seen] == [6, 6] + [6, 2] * 3  # two steps of the stream, three epochs over 8 exemplars
    shown = torch.cat(seen[2:])[:, 0, 0, 0].mul(255).round()
    assert sorted(shown.tolist()) == [0.0] * 12 + [1.0] * 12
    assert len(memory) == 8
    seen.clear()
    learner.learn_window(task_of([2, 3] * 6))
    steps = [len(x) for x in seen]
    assert steps[:2] == [6 + 5, 6 + 5]
    assert steps[-9:] == [6, 6, 4] * 3  # 16 exemplars, without replay beside them
    assert len(steps) == 2 + 12 + 9


def test_offline_there_is_no_second_phase():
    learner = make(epochs=2, batch=6)
    seen = watch(learner)
    learner.learn(task_of([0, 1] * 6))
    assert [len(x) for x in seen] == [6] * 4
    assert learner.method.rehearse() is None


def test_one_image_and_one_class():
    learner = make(capacity=3, online=True)
    for label in range(3):
        learner.learn_window(task_of([label]))
    assert rainbow(learner).store.counts() == {0: 1, 1: 1, 2: 1}


# -- whole runs --------------------------------------------------------------------------------------------------

SMALL = {"method": "rm", "images_per_class": 16, "epochs": 2, "batch": 8, "replay_batch": 8, "threads": 1,
         "backbone": "mlp", "width": 12, "tasks": 4}


def test_digits_end_to_end(tmp_path):
    """Fine-tuning ends at about 19 %."""
    flags = {"method": "rm", "capacity": 200, "epochs": 5, "lr": 0.003, "backbone": "mlp", "images_per_class": 100}
    result = run(configure(flags | {"threads": 1}), tmp_path)
    assert result.class_incremental.A_T >= 65
    assert result.task_incremental.A_T >= 90
