"""BCSR: hypergradient, top-K regulariser and weights of its formulation, what is learned from and what is kept."""

import math
from dataclasses import replace
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
from protocore.methods.bcsr import (
    BCSROptions,
    coreset_weights,
    hypergradient,
    neumann,
    noisy_top,
    top_k_regulariser,
    weighted_order,
)
from protocore.methods.parts.gradients import curvature, with_one
from protocore.methods.parts.picking import Picking
from protocore.methods.parts.simplex import project_simplex
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)


def hvp(loss, theta, v):
    """Hv of any scalar loss, forward over reverse: one jvp of the gradient, and no Hessian."""
    return torch.func.jvp(torch.func.grad(loss), (theta,), (v,))[1]


def slopes(losses, theta, v):
    """⟨∇l_i(θ), v⟩ of a vector of losses."""
    return torch.func.jvp(losses, (theta,), (v,))[1]


def problem(n=12, d=3, classes=3, seed=0):
    """Candidates whose labels are chance, so that no last layer fits them all."""
    torch.manual_seed(seed)
    return with_one(torch.randn(n, d).double()), torch.arange(n) % classes, torch.randn(classes, d + 1).double() / 2


# -- the formulas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("v", "w"), [([0.5, 0.4, 0.3, -0.1], [0.433333, 0.333333, 0.233333, 0]),
                                      ([2, 0, 0], [1, 0, 0]), ([0.25] * 4, [0.25] * 4)])
def test_projection(v, w):
    found = project_simplex(torch.tensor(v).double())
    np.testing.assert_allclose(found, w, atol=1e-6)
    np.testing.assert_allclose(project_simplex(found), found, atol=1e-12)


def test_hypergradient_of_a_quadratic():
    """l_i = (θ - a_i)²/2, outer (θ - 2)²/2, θ* = 4/3, H = Σ w = 1."""
    a, theta = torch.tensor([0.0, 1.0, 3.0]).double(), torch.tensor(4 / 3).double()
    exact = torch.tensor([0.888889, 0.222222, -1.111111]).double()

    def found(eta, terms):
        return -(theta - a) * neumann(lambda v: v, theta - 2, eta, terms)

    np.testing.assert_allclose(found(0.5, 3), 0.9375 * exact, atol=1e-6)
    np.testing.assert_allclose(found(0.5, 3), [0.833333, 0.208333, -1.041667], atol=1e-6)
    np.testing.assert_allclose(found(0.5, 10), [0.888455, 0.222114, -1.110569], atol=1e-6)
    np.testing.assert_allclose(found(0.5, 200), exact, atol=1e-6)
    np.testing.assert_allclose(found(0.5, 3) / 0.5, [1.666667, 0.416667, -2.083333], atol=1e-6)
    # The sample at 3 pulls θ from 4/3 towards 2: it gains weight.
    assert project_simplex(torch.full((3,), 1 / 3).double() - 0.1 * found(0.5, 3)).argmax() == 2


def test_neumann_series_by_explicit_powers():
    torch.manual_seed(0)
    a = torch.randn(4, 4).double()
    h, g, eta = a @ a.T, torch.randn(4).double(), 0.05
    step = torch.eye(4).double() - eta * h
    for terms in (0, 1, 3):
        wanted = eta * sum((torch.linalg.matrix_power(step, q) @ g for q in range(terms + 1)), torch.zeros(4).double())
        torch.testing.assert_close(neumann(lambda v: h @ v, g, eta, terms), wanted)


def test_hypergradient_is_the_one_of_forward_over_reverse_derivatives():
    h, y, theta = problem()
    w, outer, eta = torch.rand(12).double(), problem(8, seed=5)[:2], 0.07

    def losses(t):
        return F.cross_entropy(h @ t.T, y, reduction="none")

    def aim(t):
        return F.cross_entropy(outer[0] @ t.T, outer[1])

    for terms in (0, 3):
        v = total = torch.func.grad(aim)(theta)
        for _ in range(terms):
            v = v - eta * hvp(lambda t: (w * losses(t)).sum(), theta, v)
            total = total + v
        expected = -slopes(losses, theta, eta * total)
        torch.testing.assert_close(hypergradient(h, y, theta, w, eta, terms, outer), expected, rtol=1e-10, atol=1e-12)
    own = hypergradient(h, y, theta, w, eta, 3)
    torch.testing.assert_close(own, hypergradient(h, y, theta, w, eta, 3, (h, y)))


def test_a_long_series_is_the_derivative_of_the_outer_loss():
    """Against finite differences, the inner problem solved anew for each shifted w."""
    h, y, _ = problem(n=40, d=2)
    outer = problem(9, d=2, seed=7)[:2]
    w = F.softmax(torch.randn(40).double() / 2, 0)

    def solved(w):
        theta = torch.zeros(3, 3).double()
        for _ in range(12):  # Newton; the Hessian has no inverse along shifts of all classes together
            def loss(t):
                return (w * F.cross_entropy(h @ t.T, y, reduction="none")).sum()
            gradient, hessian = torch.func.grad(loss)(theta), torch.func.hessian(loss)(theta).reshape(9, 9)
            theta = theta - (torch.linalg.pinv(hessian, rtol=1e-9) @ gradient.flatten()).view(3, 3)
        assert float(torch.func.grad(loss)(theta).abs().max()) < 1e-12
        return theta

    def phi(w):
        return float(F.cross_entropy(outer[0] @ solved(w).T, outer[1]))

    found = hypergradient(h, y, solved(w), w, 1 / float(curvature(h, w)), 400, outer)
    for i in (0, 4, 7):
        shift = torch.zeros(40).double()
        shift[i] = 1e-4
        assert float(found[i]) == pytest.approx((phi(w + shift) - phi(w - shift)) / 2e-4, rel=1e-3, abs=1e-6)


def test_top_k_without_noise_is_the_sum_of_the_largest():
    w, none = torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.zeros(1, 4)
    assert noisy_top(w, 2, 1e-3, none).tolist() == [0, 1, 0, 1]
    assert float(top_k_regulariser(w, 2, 1e-3, none)) == pytest.approx(-0.7)
    assert noisy_top(w, 4, 1e-3, none).tolist() == [1] * 4
    assert noisy_top(w, 9, 1e-3, none).tolist() == [1] * 4  # K of more than there are


def test_top_k_gradient_is_the_regularisers_derivative():
    torch.manual_seed(0)
    w, noise = torch.rand(7).double(), torch.randn(200, 7).double()
    for k in (1, 3):
        found = -noisy_top(w, k, 0.3, noise)
        assert float(found.sum()) == pytest.approx(-k)
        for i in range(7):
            shift = torch.zeros(7).double()
            shift[i] = 1e-7
            slope = (top_k_regulariser(w + shift, k, 0.3, noise) - top_k_regulariser(w - shift, k, 0.3, noise)) / 2e-7
            assert float(found[i]) == pytest.approx(float(slope), abs=1e-5)


def test_top_k_gradient_is_a_probability():
    """Of two entries the larger is first with Φ((w1 - w2) / (δ√2)); of equal ones each is among the first K of n."""
    torch.manual_seed(1)
    noise = torch.randn(40000, 2).double()
    found = noisy_top(torch.tensor([0.6, 0.4]).double(), 1, 0.2, noise)
    assert float(found[0]) == pytest.approx(0.5 * (1 + math.erf(0.2 / (0.2 * math.sqrt(2)) / math.sqrt(2))), abs=0.01)
    np.testing.assert_allclose(noisy_top(torch.full((5,), 0.2), 2, 1e-3, torch.randn(20000, 5)), 0.4, atol=0.015)


def slow_weights(h, y, theta, k, o: BCSROptions):
    """The algorithm with autograd, written out once more."""
    n = len(y)
    w = torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(o.outer):
        eta = o.proxy_lr / (0.5 * float((w * (h * h).sum(1)).sum()))

        def inner(t, w=w):
            return (w * F.cross_entropy(h @ t.T, y, reduction="none")).sum()

        for _ in range(o.inner):
            theta = theta - eta * torch.func.grad(inner)(theta)
        v = total = torch.func.grad(lambda t: F.cross_entropy(h @ t.T, y))(theta)
        for _ in range(o.terms):
            v = v - eta * hvp(inner, theta, v)
            total = total + v
        rows = torch.func.jacrev(lambda t: F.cross_entropy(h @ t.T, y, reduction="none"))(theta).flatten(1)
        noisy = w + o.delta * torch.randn(o.noise, n).double()
        first = torch.stack([(row >= row.sort(descending=True).values[k - 1]).double() for row in noisy])
        change = -(rows @ (eta * total).flatten()) - o.beta * first.mean(0)
        w = project_simplex(w - o.weight_lr / n * change)
    return w


@pytest.mark.parametrize("change", [{}, {"inner": 3, "terms": 0}, {"beta": 0.0, "outer": 8}, {"beta": 2.0, "noise": 1},
                                    {"proxy_lr": 0.5, "weight_lr": 1.0}], ids=str)
def test_weights_are_those_of_the_algorithm_written_with_autograd(change):
    h, y, theta = problem()
    options = replace(BCSROptions(), **change)
    torch.manual_seed(3)
    before = theta.clone()
    found = coreset_weights(h, y, theta, 4, options)
    torch.manual_seed(3)
    torch.testing.assert_close(found, slow_weights(h, y, theta, 4, options), rtol=0, atol=1e-10)
    assert torch.equal(theta, before)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found.min()) >= 0


def test_the_regulariser_is_really_applied_to_the_weights():
    """Without it the mass stays spread; with it about K candidates carry everything."""
    torch.manual_seed(0)
    h, y, theta = problem(n=60, d=5)
    sizes = {}
    for beta in (0.0, 0.1):
        w = coreset_weights(h, y, theta, 15, BCSROptions(outer=40, beta=beta))
        sizes[beta] = int((w > 0).sum()), float(w.topk(15).values.sum())
    assert sizes[0.0][0] >= 30
    assert sizes[0.1][0] <= 18
    assert sizes[0.1][1] >= 0.98 > sizes[0.0][1]


@pytest.mark.parametrize("seed", range(5))
def test_wrong_labels_lose_their_weight(seed):
    torch.manual_seed(seed)
    means = 2 * torch.eye(3, 5).double()
    y, clean = torch.randint(3, (60,)), torch.randint(3, (200,))
    x, outer = means[y] + torch.randn(60, 5).double(), means[clean] + torch.randn(200, 5).double()
    flipped = torch.rand(60) < 0.2
    labels = torch.where(flipped, (y + torch.randint(1, 3, (60,))) % 3, y)
    share = flipped.double().mean()
    w = coreset_weights(with_one(x), labels, torch.zeros(3, 6).double(), 15, BCSROptions(outer=60),
                        outer=(with_one(outer), clean))
    assert share > 0.08
    assert float(w[flipped].sum()) <= 0.013


def test_the_released_form():
    """Inner weights w/n, outer softmax(w)/n, no η, no regulariser: one step by hand."""
    h, y, theta = problem()
    options = BCSROptions(form="released", outer=1, weight_lr=200.0, proxy_lr=0.8, terms=2)
    w, n = torch.full((12,), 1 / 12, dtype=torch.float64), 12
    losses = lambda t: F.cross_entropy(h @ t.T, y, reduction="none")  # noqa: E731
    inside, outside = w / n, F.softmax(w, 0) / n
    theta_1 = theta - 0.8 / float(curvature(h, inside)) * torch.func.grad(lambda t: (inside * losses(t)).sum())(theta)
    eta = 0.8 / float(curvature(h, outside))
    v = total = torch.func.grad(lambda t: losses(t).mean())(theta_1)
    for _ in range(2):
        v = v - eta * hvp(lambda t: (outside * losses(t)).sum(), theta_1, v)
        total = total + v
    # d/dw of Σ softmax(w)_i/n · l_i along the series, by autograd
    slope = torch.func.grad(lambda u: -(F.softmax(u, 0) / n * slopes(losses, theta_1, total)).sum())(w)
    expected = project_simplex(w - 200 * slope)
    assert float((expected - w).abs().max()) > 1e-3
    torch.testing.assert_close(coreset_weights(h, y, theta, 4, options), expected, rtol=0, atol=1e-10)


def test_an_order_drawn_by_weight():
    torch.manual_seed(0)
    w = torch.tensor([0.5, 0.3, 0.2, 0.0])
    orders = torch.stack([weighted_order(w) for _ in range(4000)])
    assert bool((orders[:, 3] == 3).all())
    np.testing.assert_allclose(orders[:, 0].bincount(minlength=4) / 4000, w, atol=0.03)
    second = orders[orders[:, 0] == 0][:, 1].bincount(minlength=4).float()
    np.testing.assert_allclose(second / second.sum(), [0, 0.6, 0.4, 0], atol=0.04)
    # Fewer positive weights than are wanted is no error, and those of no weight come in any order.
    rest = {tuple(weighted_order(torch.tensor([0.0, 1.0, 0.0])).tolist()) for _ in range(50)}
    assert rest == {(1, 0, 2), (1, 2, 0)}


# -- a step and the memory ---------------------------------------------------------------------------------------


def task_of(labels, seed: int = 0) -> tuple[Task, np.ndarray]:
    images = marked(labels, seed, SHAPE)
    return plain_task(labels, images=images), images


learner = partial(small_learner, "bcsr", SHAPE, batch=8)


def picking(mine: Learner) -> Picking:
    assert isinstance(mine.method, Picking)
    return mine.method


def batch_of(labels: list[int], first_pass: bool) -> Batch:
    x = torch.from_numpy(task_of(labels, 9)[1])
    return Batch(x, to_float(x), torch.tensor(labels), torch.arange(len(labels)), first_pass)


def test_a_batch_is_thinned_out_by_weight():
    mine = learner(draw="top", kappa=0.5)
    begin(mine, task_of([0, 1, 2] * 6)[0])
    picking(mine).steps = 3  # the last pass of the first task
    batch = batch_of([0, 1, 2, 0, 1, 2, 0, 1], first_pass=False)
    with torch.no_grad():
        h = with_one(mine.net.features(batch.x))
    theta = torch.cat([mine.net.head.weight, mine.net.head.bias[:, None]], 1).detach()
    torch.manual_seed(2)
    w = coreset_weights(h, batch.labels, theta, 4, mine.method.options)
    torch.manual_seed(2)
    loss = mine.method.loss(batch)
    picked = batch.notes["picked"]
    assert set(picked.tolist()) == set(w.topk(4).indices.tolist())
    assert loss.item() == pytest.approx(F.cross_entropy(mine.net(batch.x[picked]), batch.labels[picked]).item())


def test_when_chance_picks():
    def states(mine: Learner) -> list[bool]:
        found = []
        for step in range(6):  # three passes of two steps
            picking(mine).steps = step
            found.append(picking(mine).warming_up(batch_of([0, 1], first_pass=step < 2)))
        return found

    mine = learner(epochs=3)
    begin(mine, task_of([0, 1] * 8)[0])
    assert states(mine) == [True] * 4 + [False] * 2
    mine.learn(task_of([0, 1] * 8)[0])
    begin(mine, task_of([2, 3] * 8)[0])
    assert states(mine) == [True] * 2 + [False] * 4
    online = learner(online=True)
    begin(online, task_of([0, 1] * 8)[0])
    assert not any(states(online)[:2])


def test_in_a_later_window_of_an_online_stream_chance_picks_nothing_either():
    mine = learner(online=True)
    mine.learn_window(task_of([0, 1] * 8)[0])
    begin(mine, task_of([2, 3] * 8)[0], keep_optimizer=True)
    assert len(picking(mine).store)
    assert not picking(mine).warming_up(batch_of([0, 1], first_pass=True))


def test_the_memory_is_the_heaviest_of_each_class():
    mine = learner(kappa=1.0, spc=3, draw="top", candidates=0)
    task, images = task_of([0, 1, 2] * 7)
    asked = []
    original = picking(mine).ranked

    def watch(h, labels, theta, keep):
        order = original(h, labels, theta, keep)
        asked.append((labels.cpu()[order], keep))
        return order

    mine.method.ranked = watch  # type: ignore[attr-defined]
    mine.learn(task)
    assert [keep for _, keep in asked] == [9]
    assert sorted(asked[0][0].tolist()) == sorted([0, 1, 2] * 7)
    kept = mine.memory()
    assert kept["exemplars/labels"].bincount().tolist() == [3, 3, 3]
    originals = {image.tobytes(): i % 3 for i, image in enumerate(images)}
    assert len({im.tobytes() for im in kept["exemplars/bytes"].numpy()}) == 9
    for image, label in zip(kept["exemplars/bytes"].numpy(), kept["exemplars/labels"].tolist(), strict=True):
        assert originals[image.tobytes()] == label


def test_an_older_memory_shrinks_to_the_exemplars_of_least_loss():
    mine = learner(capacity=12, epochs=1)
    mine.learn(task_of([0, 1] * 9)[0])
    before = mine.memory()
    mine.learn(task_of([2, 3] * 9, seed=1)[0])
    x, y = to_float(before["exemplars/bytes"]), before["exemplars/labels"].long()
    mine.net.eval()
    order = F.cross_entropy(mine.net(x), y, reduction="none").argsort().tolist()
    best = [i for c in (0, 1) for i in [k for k in order if y[k] == c][:3]]
    kept = mine.memory()
    assert kept["exemplars/labels"].bincount().tolist() == [3] * 4
    assert torch.equal(kept["exemplars/bytes"][:6], before["exemplars/bytes"][sorted(best)])


@pytest.mark.parametrize("flags", [{"kappa": -1}, {"outer": 0}, {"inner": -1}, {"terms": -1}, {"noise": 0},
                                   {"beta": -1}, {"delta": -1}, {"weight_lr": -1}, {"proxy_lr": 0}, {"proxy_lr": 2}])
def test_what_makes_no_sense_is_refused_by_name(flags):
    with pytest.raises(UserError, match="--" + next(iter(flags)).replace("_", "-")):
        learner(**flags)


@pytest.mark.parametrize("flags", [
    {"budget": 900}, {"capacity": 9}, {"codec": "webp", "budget": 2500}, {"head": "cosine"}, {"form": "released"},
    {"norm": "batch", "backbone": "convnet", "width": 6}, {"batch": 1}, {"candidates": 3}], ids=str)
def test_settings_that_it_must_live_with(flags):
    mine = learner(**flags)
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(21) % 2 + first, seed=first)[0])
        if "budget" in flags:
            assert mine.ledger().total <= flags["budget"]
    assert set(mine.memory()["exemplars/labels"].tolist()) == set(range(6))


def test_tasks_of_one_class_and_of_very_few_images():
    mine = learner()
    mine.learn(task_of([0] * 10)[0])
    mine.learn(task_of([1] * 2, seed=1)[0])
    mine.learn(task_of([1, 3, 0, 0, 2], seed=3)[0])
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [4, 3, 1, 1]


# -- on real digits ---------------------------------------------------------------------------------------------

SMALL = {"method": "bcsr", "benchmark": "digits", "backbone": "mlp", "threads": 1, "images_per_class": 60}


def test_it_forgets_far_less_than_finetuning(tmp_path):
    result = run(configure(SMALL | {"epochs": 5, "tasks": 4, "batch": 16, "replay_batch": 16}), tmp_path)
    assert result.class_incremental.A_T >= 65  # fine-tuning: 25 for four tasks


def test_an_online_stream(tmp_path):
    result = run(configure(SMALL | {"online": True, "online_window": 60, "tasks": 2, "spc": 10}), tmp_path)
    assert result.class_incremental.A_T >= 60
