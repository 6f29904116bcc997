"""OCS: the scores of its paper, which images of a batch are learned from, and what is kept."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import begin, marked
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods.base import Batch
from protocore.methods.ocs import affinity, scores, similarity_and_diversity
from protocore.methods.parts.gradients import residuals, with_one
from protocore.methods.parts.picking import Picking
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)
P1 = torch.tensor([[1, 0], [0.9, 0.1], [0, 1], [-1, 0]]).double()


def one(n: int) -> torch.Tensor:
    """Inputs of 1: r ⊗ h is then any gradient r that a test likes."""
    return torch.ones(n, 1).double()


def parts(gradients: torch.Tensor, **how) -> tuple[torch.Tensor, torch.Tensor]:
    k = gradients @ gradients.T
    return similarity_and_diversity([k], k.diagonal(), **how)


def cos(a, b) -> float:
    return float(a @ b) / max(float(a.norm() * b.norm()), 1e-6)


def slow_scores(gradients, past=None, tau=0.0, leave_one_out=True) -> list[float]:
    """The formulas, sample by sample."""
    n, mean, found = len(gradients), gradients.mean(0), []
    for i, mine in enumerate(gradients):
        others = [cos(mine, other) for j, other in enumerate(gradients) if j != i or not leave_one_out]
        score = cos(mine, mean) - sum(others) / (n - 1 if leave_one_out else n)
        found.append(score + (0 if past is None else tau * cos(mine, past)))
    return found


# -- the scores ------------------------------------------------------------------------------------------------


def test_the_worked_example():
    s, v = parts(P1)
    np.testing.assert_allclose(s, [0.633238, 0.714834, 0.773957, -0.633238], atol=1e-6)
    np.testing.assert_allclose(v, [0.002039, -0.036811, -0.036811, 0.664628], atol=1e-6)
    _, repo = parts(P1, leave_one_out=False)
    np.testing.assert_allclose(repo, [-0.248471, -0.277608, -0.277608, 0.248471], atol=1e-6)
    total = scores(P1, one(4))
    np.testing.assert_allclose(total, [0.635277, 0.678024, 0.737147, 0.031390], atol=1e-6)
    assert total.argsort(descending=True).tolist() == [2, 1, 0, 3]
    past = torch.tensor([[0.0], [1.0]]).double()
    np.testing.assert_allclose(affinity(P1, one(4), past), [0, 0.110432, 1, 0], atol=1e-6)
    np.testing.assert_allclose(scores(P1, one(4), past, 1000), [0.635277, 111.10955, 1000.737147, 0.031390], atol=1e-4)


def test_the_released_diversity_is_a_fixed_function_of_the_other_and_can_turn_the_order_round():
    torch.manual_seed(0)
    turned = {3: 0, 20: 0}
    for n in turned:
        for _ in range(200):
            g = torch.randn(n, 2).double()
            _, v = parts(g)
            _, repo = parts(g, leave_one_out=False)
            torch.testing.assert_close(repo, (v * (n - 1) - 1) / n)
            first = [int(scores(g, one(n), leave_one_out=way).argmax()) for way in (True, False)]
            turned[n] += first[0] != first[1]
    assert turned[3] > turned[20] >= 0
    assert turned[3] >= 10


def test_affinity_to_the_opposite_of_the_batch_reverses_similarity():
    torch.manual_seed(1)
    g = torch.randn(12, 5).double()
    s, v = parts(g)
    past = -g.mean(0)[:, None]
    torch.testing.assert_close(affinity(g, one(12), past), -s)
    torch.testing.assert_close(scores(g, one(12), past, 1000), s + v - 1000 * s)
    assert int(scores(g, one(12), past, 1000).argmax()) == int(s.argmin())


def test_lengths_matter_only_through_the_mean():
    torch.manual_seed(2)
    g, past = torch.randn(9, 4).double(), torch.randn(4, 1).double()
    longer = g.clone()
    longer[3] *= 10
    (s, v), (s2, v2) = parts(g), parts(longer)
    torch.testing.assert_close(v, v2)
    torch.testing.assert_close(affinity(g, one(9), past), affinity(longer, one(9), past))
    torch.testing.assert_close(s2, torch.tensor([cos(x, longer.mean(0)) for x in g]).double())
    assert (s - s2).abs().max() > 0.01
    torch.testing.assert_close(scores(7 * g, one(9), 3 * past), scores(g, one(9), past))


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("block", [4, 1024])
def test_the_gram_path_is_the_explicit_path(leave_one_out, block):
    torch.manual_seed(3)
    n, classes = 13, 4
    h, theta, y = with_one(torch.randn(n, 6)).double(), torch.randn(classes, 7).double(), torch.randint(classes, (n,))
    memory, old = with_one(torch.randn(5, 6)).double(), torch.randint(classes, (5,))
    g = torch.func.jacrev(lambda t: F.cross_entropy(h @ t.T, y, reduction="none"))(theta).flatten(1)
    past = torch.func.grad(lambda t: F.cross_entropy(memory @ t.T, old))(theta)
    r = residuals(h @ theta.T, y)
    found = scores(r, h, past, 1000, leave_one_out=leave_one_out, block=block)
    np.testing.assert_allclose(found, slow_scores(g, past.flatten(), 1000, leave_one_out), atol=1e-9)
    found = scores(r, h, leave_one_out=leave_one_out, block=block)
    np.testing.assert_allclose(found, slow_scores(g, leave_one_out=leave_one_out), atol=1e-12)
    torch.testing.assert_close(parts(g)[0], F.cosine_similarity(g, g.mean(0)[None]))


def test_one_sample_alone_and_gradients_of_zero_have_scores():
    assert scores(torch.tensor([[3.0, 4.0]]), torch.ones(1, 1)).tolist() == pytest.approx([1.0])
    g = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(scores(g, torch.ones(3, 1)), [0, 0.5, 0.5], atol=1e-6)


# -- a step ----------------------------------------------------------------------------------------------------


def task_of(labels, seed: int = 0) -> tuple[Task, np.ndarray]:
    images = marked(labels, seed, SHAPE)
    return plain_task(labels, images=images), images


learner = partial(small_learner, "ocs", SHAPE, batch=8)


def picking(mine: Learner) -> Picking:
    assert isinstance(mine.method, Picking)
    return mine.method


def batch_of(labels: list[int], first_pass: bool, seed: int = 9) -> Batch:
    _, images = task_of(labels, seed)
    x = torch.from_numpy(images)
    return Batch(x, to_float(x), torch.tensor(labels), torch.arange(len(labels)), first_pass)


def head_gradients(net, x, y, reduction="none") -> torch.Tensor:
    """Explicit gradients with respect to the head's weight and bias, one backward pass a sample."""
    rows = [(x[i : i + 1], y[i : i + 1]) for i in range(len(y))] if reduction == "none" else [(x, y)]
    found = []
    for a, b in rows:
        grads = torch.autograd.grad(F.cross_entropy(net(a), b), [net.head.weight, net.head.bias])
        found.append(torch.cat([t.flatten() for t in grads]))
    return torch.stack(found).double()


def test_the_first_task_picks_by_similarity_and_diversity_and_learns_from_the_picks_only():
    mine = learner()
    begin(mine, task_of([0, 1, 2] * 6)[0])
    batch = batch_of([0, 1, 2, 0, 1, 2, 0, 1], first_pass=False)
    expected = torch.tensor(slow_scores(head_gradients(mine.net, batch.x, batch.labels))).topk(4).indices
    loss = mine.method.loss(batch)
    assert batch.notes["picked"].tolist() == expected.tolist()
    wanted = F.cross_entropy(mine.net(batch.x[expected]), batch.labels[expected])
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_later_tasks_add_the_affinity_to_the_whole_memory_and_a_replay_loss():
    mine = learner(ref=0.25, tau=7.0)
    mine.learn(task_of([0, 1] * 9)[0])
    begin(mine, task_of([2, 3] * 9, seed=1)[0])
    store = picking(mine).store
    batch = batch_of([2, 3, 2, 3, 3, 2, 2, 3], first_pass=False)
    memory = to_float(store.images)
    mine.net.eval()
    past = head_gradients(mine.net, memory, store.labels, "mean")[0]
    mine.net.train()
    own = head_gradients(mine.net, batch.x, batch.labels)
    expected = torch.tensor(slow_scores(own, past, 7.0)).topk(4).indices
    assert set(expected.tolist()) != set(torch.tensor(slow_scores(own)).topk(4).indices.tolist())
    torch.manual_seed(5)
    loss = mine.method.loss(batch)
    assert batch.notes["picked"].tolist() == expected.tolist()
    torch.manual_seed(5)
    drawn = store.draw(5)
    current = F.cross_entropy(mine.net(batch.x[expected]), batch.labels[expected])
    wanted = current + 0.25 * F.cross_entropy(mine.net(to_float(drawn.images)), drawn.labels)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize(("reference", "drawn"), [(3, 3), (0, 12), (200, 12)])
def test_the_exemplars_that_stand_for_the_memory_are_drawn_anew_in_each_step(reference, drawn, monkeypatch):
    mine = learner(spc=6, reference=reference)
    mine.learn(task_of([0, 1] * 9)[0])
    begin(mine, task_of([2, 3] * 9, seed=1)[0])
    method, asked = picking(mine), []
    of_memory = method.of_memory
    monkeypatch.setattr(method, "of_memory", lambda slots: asked.append(slots.tolist()) or of_memory(slots))
    torch.manual_seed(5)
    for _ in range(20):
        method.loss(batch_of([2, 3, 2, 3, 3, 2, 2, 3], first_pass=False))
    assert [len(set(slots)) for slots in asked] == [drawn] * 20
    assert {slot for slots in asked for slot in slots} == set(range(12))


@pytest.mark.parametrize("diversity", ["others", "all"])
def test_the_diversity_that_is_asked_for_is_in_the_scores(diversity):
    mine = learner(diversity=diversity)
    begin(mine, task_of([0, 1, 2] * 6)[0])
    batch = batch_of([0, 1, 2, 0, 1, 2, 0, 1], first_pass=False)
    expected = slow_scores(head_gradients(mine.net, batch.x, batch.labels), leave_one_out=diversity == "others")
    method, nothing = picking(mine), torch.empty(0, dtype=torch.int64)
    with torch.no_grad():
        h, theta = method.last_layer(batch.x)
        found = method.score(h, batch.labels, theta, nothing)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_warm_up_is_the_first_steps_of_the_first_pass():
    mine = learner(warmup=2)
    method = picking(mine)
    begin(mine, task_of([0, 1] * 16)[0])
    states = []
    for step in range(4):
        method.steps = step
        states += [method.warming_up(batch_of([0, 1], first_pass=p)) for p in (True, False)]
    assert states == [True, False, True, False, False, False, False, False]
    online = learner(warmup=2, online=True)
    begin(online, task_of([0, 1] * 8)[0])
    assert picking(online).warming_up(batch_of([0, 1], first_pass=True))
    online.learn_window(task_of([0, 1] * 8)[0])
    begin(online, task_of([0, 1] * 8)[0], keep_optimizer=True)
    assert not picking(online).warming_up(batch_of([0, 1], first_pass=True))


@pytest.mark.parametrize(("kappa", "batch", "picked"), [(0.5, 8, 4), (0.25, 8, 2), (0.1, 8, 2), (1, 8, 8), (0.5, 1, 1)])
def test_how_many_are_picked(kappa, batch, picked):
    mine = learner(kappa=kappa, warmup=0)
    begin(mine, task_of([0, 1] * 9)[0])
    shown = batch_of([0, 1, 0, 0, 1, 1, 0, 1][:batch], first_pass=True)
    mine.method.loss(shown)
    assert len(set(shown.notes["picked"].tolist())) == picked


@pytest.mark.parametrize("flags", [{"kappa": 0}, {"kappa": 1.5}, {"ref": -1}, {"tau": -1}, {"candidates": -3},
                                   {"warmup": -1}, {"reference": -1}])
def test_what_makes_no_sense_is_refused_by_name(flags):
    with pytest.raises(UserError, match=f"--{next(iter(flags))}"):
        learner(**flags)


def test_cflat_evaluates_one_step_on_the_same_picks():
    mine = learner(cflat=True, cflat_first=True, cflat_rho=5.0, epochs=2, warmup=0)
    seen = []
    mine.net.backbone.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].detach().clone()) if module.training else None)
    mine.learn(task_of([0, 1] * 8)[0])
    assert len(seen) == 4 * 4
    for step in range(4):
        assert all(torch.equal(seen[4 * step], x) for x in seen[4 * step : 4 * step + 4])


# -- what is kept ----------------------------------------------------------------------------------------------


def test_candidates_are_the_picks_of_the_last_pass():
    mine = learner(epochs=3, spc=2)
    notes: dict[int, list[bool]] = {}
    task, images = task_of([0, 1, 2] * 10)
    after, select = mine.method.after_step, picking(mine).select

    def watch_step(batch):
        after(batch)
        mask = torch.zeros(len(batch.rows), dtype=torch.bool)
        mask[batch.notes["picked"]] = True
        for row, was in zip(batch.rows.tolist(), mask.tolist(), strict=True):
            notes.setdefault(row, []).append(was)

    def watch_select(pool, per_class):
        picked = picking(mine).picked
        assert all(len(visits) == 3 for visits in notes.values())
        assert [notes[row][-1] for row in range(30)] == picked.tolist()
        return select(pool, per_class)

    mine.method.after_step, mine.method.select = watch_step, watch_select  # type: ignore[method-assign]
    mine.learn(task)
    kept = mine.memory()
    chosen = {image.tobytes() for image in images[[row for row in range(30) if notes[row][-1]]]}
    picks = np.bincount(np.arange(30) % 3, [notes[row][-1] for row in range(30)])
    assert 2 <= picks.min() < picks.max() < 10
    assert all(image.tobytes() in chosen for image in kept["exemplars/bytes"].numpy())
    assert kept["exemplars/labels"].bincount().tolist() == [2, 2, 2]


@pytest.mark.parametrize("rank", ["score", "random"])
def test_the_memory_is_the_best_of_each_class(rank):
    mine = learner(kappa=1.0, spc=3, rank=rank, candidates=0)
    task, images = task_of([0, 1, 2] * 7)
    mine.learn(task)
    x, y = to_float(torch.from_numpy(images)), torch.arange(21) % 3
    mine.net.eval()
    score = torch.tensor(slow_scores(head_gradients(mine.net, x, y)))
    expected = [images[i].tobytes() for c in range(3) for i in score.argsort(descending=True).tolist() if y[i] == c]
    best = {c: expected[7 * c : 7 * c + 3] for c in range(3)}
    kept = mine.memory()
    found = {c: [im.tobytes() for im, k in zip(kept["exemplars/bytes"].numpy(), kept["exemplars/labels"], strict=True)
                 if k == c] for c in range(3)}
    assert all(len(rows) == 3 for rows in found.values())
    assert (found == best) == (rank == "score")


def test_an_older_memory_shrinks_by_similarity_and_diversity():
    mine = learner(capacity=12, kappa=1.0, epochs=1)
    mine.learn(task_of([0, 1] * 9)[0])
    before = mine.memory()
    assert before["exemplars/labels"].bincount().tolist() == [6, 6]
    mine.learn(task_of([2, 3] * 9, seed=1)[0])
    x, y = to_float(before["exemplars/bytes"]), before["exemplars/labels"].long()
    mine.net.eval()
    score = torch.tensor(slow_scores(head_gradients(mine.net, x, y)))
    best = [i for c in (0, 1) for i in score.argsort(descending=True).tolist() if y[i] == c]
    best = sorted(best[:3] + best[6:9])
    kept = mine.memory()
    assert kept["exemplars/labels"].bincount().tolist() == [3] * 4
    assert torch.equal(kept["exemplars/bytes"][:6], before["exemplars/bytes"][best])


def test_few_candidates_are_completed_by_chance():
    mine = learner(candidates=2, spc=4, epochs=1)
    mine.learn(task_of([0] * 12 + [1] * 3)[0])
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [4, 3]


@pytest.mark.parametrize("flags", [
    {"budget": 900}, {"capacity": 9}, {"codec": "webp", "budget": 2500}, {"head": "cosine"},
    {"norm": "batch", "backbone": "convnet", "width": 6}, {"replay_batch": 0},
    {"codec": "webp", "replay_space": "codec"}, {"reference": 3}, {"batch": 1}], ids=str)
def test_settings_that_it_must_live_with(flags):
    mine = learner(**{"epochs": 2} | flags)
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(21) % 2 + first, seed=first)[0])
        if "budget" in flags:
            assert mine.ledger().total <= flags["budget"]
    assert set(mine.memory()["exemplars/labels"].tolist()) == set(range(6))


def test_tasks_of_one_class_and_of_very_few_images():
    mine = learner(epochs=2)
    mine.learn(task_of([0] * 10)[0])
    mine.learn(task_of([1] * 2, seed=1)[0])
    mine.learn(task_of([2, 2, 3, 3], seed=2)[0])
    mine.learn(task_of([1, 3, 0, 0, 3], seed=3)[0])  # classes come back: their stored exemplars compete too
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [4, 3, 2, 4]


# -- on real digits ---------------------------------------------------------------------------------------------

SMALL = {"method": "ocs", "benchmark": "digits", "backbone": "mlp", "threads": 1, "images_per_class": 60}


def test_it_forgets_far_less_than_finetuning(tmp_path):
    result = run(configure(SMALL | {"epochs": 5, "tasks": 4, "batch": 16, "replay_batch": 16}), tmp_path)
    assert result.class_incremental.A_T >= 60  # fine-tuning: 25 for four tasks


def test_an_online_stream(tmp_path):
    result = run(configure(SMALL | {"online": True, "online_window": 60, "tasks": 2, "spc": 10}), tmp_path)
    assert result.class_incremental.A_T >= 60
    assert result.bytes_kept > 0
