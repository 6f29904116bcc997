"""OnPro: losses against closed forms and slow references, its expansion, its feedback, and runs on digits."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin
from helpers import learner as small_learner
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods import onpro
from protocore.methods.base import Batch
from protocore.methods.onpro import OnPro
from protocore.methods.onpro_losses import (
    Mixed,
    base_shares,
    distort,
    equilibrium,
    expand,
    expand_labels,
    grey,
    instance_memory,
    instance_new,
    mix,
    mixed_cross_entropy,
    pair_counts,
    pair_probabilities,
    pair_shares,
    prototypes_of,
    random_slots,
    similarity,
)
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)
EPS = 1e-8

# -- slow references -------------------------------------------------------------------------------------------


def slow_unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in vector))
    return [v / length for v in vector]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_equilibrium(first: list[list[float]], second: list[list[float]], labels: list[int],
                     temperature: float) -> float:
    """OPE from raw projections of two views, sample by sample."""
    prototypes = []
    for view in (first, second):
        for c in sorted(set(labels)):
            rows = [slow_unit(row) for row, label in zip(view, labels, strict=True) if label == c]
            prototypes.append(slow_unit([sum(column) / len(rows) for column in zip(*rows, strict=True)]))
    classes, total = len(prototypes) // 2, 0.0
    for i, anchor in enumerate(prototypes):
        twin = prototypes[(i + classes) % (2 * classes)]
        others = sum(math.exp(dot(anchor, p) / temperature) for j, p in enumerate(prototypes) if j != i)
        total -= math.log(math.exp(dot(anchor, twin) / temperature) / others)
    return total / (2 * classes)


def slow_instances(sim: list[list[float]], labels: list[int], temperature: float) -> tuple[float, float, float]:
    """The two terms of the form for new images, and the form for replayed ones."""
    rows, half, both = len(sim), len(sim) // 2, labels * 2
    twins = same = memory = 0.0
    for i in range(rows):
        weight = [math.exp((s - max(sim[i])) / temperature) for s in sim[i]]
        alone = [0.0 if j == i else w for j, w in enumerate(weight)]
        new = [-math.log(w / (sum(alone) + EPS) + EPS) for w in alone]
        old = [-math.log(w / (sum(weight) + EPS) + EPS) for w in weight]
        positives = [j for j in range(rows) if both[j] == both[i]]
        twins += new[(i + half) % rows] / rows
        same += 2 * sum(new[j] for j in positives) / len(positives) / rows
        memory += sum(old[j] for j in positives) / len(positives) / rows
    return twins, same, memory


# -- OPE ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "expected"), [(1, 0.0), (2, 0.239545), (5, 0.733657), (10, 1.234318),
                                                   (100, 3.324906)])
def test_equilibrium_of_orthonormal_prototypes(classes, expected):
    p = torch.eye(classes)
    assert equilibrium(p, p, 0.5).item() == pytest.approx(expected, abs=1e-6)
    assert equilibrium(p, p, 0.5).item() == pytest.approx(math.log(1 + 2 * (classes - 1) * math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 0.2])
def test_equilibrium_as_the_slow_way(temperature):
    torch.manual_seed(1)
    first, second = torch.randn(11, 6), torch.randn(11, 6)
    labels = torch.tensor([4, 1, 1, 7, 4, 4, 1, 7, 0, 4, 1])

    def fast(a: Tensor, b: Tensor, y: Tensor) -> float:
        p, q, _ = prototypes_of(F.normalize(a, dim=1), F.normalize(b, dim=1), y)
        return equilibrium(p, q, temperature).item()

    expected = slow_equilibrium(first.tolist(), second.tolist(), labels.tolist(), temperature)
    assert fast(first, second, labels) == pytest.approx(expected, rel=1e-5)
    scale = torch.rand(11, 1) + 0.5
    assert fast(first * scale, second * 3, labels) == pytest.approx(expected, rel=1e-5)
    order = torch.randperm(11)
    assert fast(first[order], second[order], labels[order]) == pytest.approx(expected, rel=1e-5)


def test_prototypes_are_class_means_that_are_not_normalised_again():
    first = torch.tensor([[1.0, 0], [0, 1], [0, 1]])
    p, q, classes = prototypes_of(first, first.flip(1), torch.tensor([5, 5, 2]))
    assert classes.tolist() == [2, 5]
    assert p.tolist() == [[0, 1], [0.5, 0.5]]
    assert q.tolist() == [[1, 0], [0.5, 0.5]]


def test_equilibrium_with_one_class_moves_nothing():
    p = torch.randn(1, 4, requires_grad=True)
    loss = equilibrium(p, torch.randn(1, 4), 0.5)
    loss.backward()
    assert loss.item() == 0
    assert p.grad is not None
    assert not p.grad.any()


# -- INS ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("labels", "temperature", "twins", "same", "memory"), [
    ([0, 1], 0.5, 0.239545, 18.660225, 0.820075),
    ([0, 1], 0.07, 1.25e-6, 18.420682, 0.693148),
    ([0, 0], 0.5, 0.239545, 11.569657, 1.820075),
])
def test_instances_of_two_orthonormal_images(labels, temperature, twins, same, memory):
    z = torch.eye(2, dtype=torch.float64).repeat(2, 1)
    one, two = instance_new(z @ z.T, torch.tensor(labels), temperature)
    assert one.item() == pytest.approx(twins, abs=1e-6, rel=1e-2 if twins < 1e-3 else 1e-6)
    assert two.item() == pytest.approx(same, abs=1e-6)
    assert instance_memory(z @ z.T, torch.tensor(labels), temperature).item() == pytest.approx(memory, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_instances_as_the_slow_way(temperature):
    torch.manual_seed(2)
    sim = torch.randn(10, 10, dtype=torch.float64) / 3
    labels = [3, 0, 3, 3, 1]
    twins, same, memory = slow_instances(sim.tolist(), labels, temperature)
    one, two = instance_new(sim, torch.tensor(labels), temperature)
    assert (one.item(), two.item()) == pytest.approx((twins, same), rel=1e-9)
    assert instance_memory(sim, torch.tensor(labels), temperature).item() == pytest.approx(memory, rel=1e-9)


def test_a_row_itself_is_a_constant_among_the_positives_of_new_images():
    torch.manual_seed(3)
    sim = torch.randn(6, 6, requires_grad=True)
    twins, same = instance_new(sim, torch.tensor([0, 1, 2]), 0.5)
    (twins + same).backward()
    assert sim.grad is not None
    assert not sim.grad.diagonal().any()
    assert sim.grad.abs().sum() > 0
    # Two positives of each row: itself, -log(1e-8), and its twin.
    assert same.item() == pytest.approx(twins.item() + 18.420681, abs=1e-4)


def test_similarity_adds_a_slice_of_the_features():
    torch.manual_seed(4)
    z, f = torch.randn(4, 3), torch.randn(4, 8)
    slow = [[0.5 * (dot(a, b) + dot(a, g[2:5])) for b, g in zip(z.tolist(), f.tolist(), strict=True)]
            for a in z.tolist()]
    assert torch.allclose(similarity(z, f, 2, 0.5), torch.tensor(slow), atol=1e-6)


# -- expansion and distortion ------------------------------------------------------------------------------------


def test_the_left_half_variant_of_a_counting_image():
    image = torch.arange(16.0).view(1, 1, 4, 4)
    variants = expand(image)[:, 0]
    assert variants[0].tolist() == image[0, 0].tolist()
    assert variants[1].tolist() == [[13, 12, 2, 3], [9, 8, 6, 7], [5, 4, 10, 11], [1, 0, 14, 15]]
    assert variants[2].tolist() == [[13, 12, 15, 14], [9, 8, 11, 10], [5, 4, 7, 6], [1, 0, 3, 2]]
    assert variants[3].tolist() == [[0, 1, 15, 14], [4, 5, 11, 10], [8, 9, 7, 6], [12, 13, 3, 2]]
    for block, turns in enumerate((0, 2, 1, 3)):
        for inner in range(4):
            assert variants[4 * block + inner].tolist() == np.rot90(variants[inner].numpy(), turns).tolist()


@pytest.mark.parametrize("side", [4, 5])
def test_all_sixteen_variants_are_different_permutations_of_the_pixels(side):
    images = torch.arange(2.0 * 3 * side * side).view(2, 3, side, side)
    variants = expand(images).view(16, 2, 3, side, side)
    for k in range(16):
        assert torch.equal(variants[k].flatten(2).sort(2).values, images.flatten(2))
    assert len({v.numpy().tobytes() for v in variants}) == 16


@pytest.mark.parametrize("variants", [1, 2, 4, 7, 16])
def test_fewer_variants_are_the_first_ones_and_labels_follow(variants):
    images = torch.rand(3, 1, 4, 4)
    assert torch.equal(expand(images, variants), expand(images)[: 3 * variants])
    labels = expand_labels(torch.tensor([2, 0, 9]), 10, variants)
    assert labels.tolist() == [y + 10 * k for k in range(variants) for y in (2, 0, 9)]


def test_images_that_are_not_square_have_eight_variants():
    images = torch.rand(2, 1, 4, 6)
    assert expand(images, 8).shape == (16, 1, 4, 6)
    flags = {"method": "onpro", "benchmark": "digits", "backbone": "mlp"}
    with pytest.raises(UserError, match="--variants 8"):
        Learner.of(configure(flags | {"variants": 16}), (1, 4, 6))
    Learner.of(configure(flags | {"variants": 8}), (1, 4, 6))
    Learner.of(configure(flags | {"instance": False}), (1, 4, 6))


def test_grey_takes_the_colours_of_a_quarter():
    torch.manual_seed(5)
    images = torch.rand(4000, 3, 2, 2)
    out = grey(images)
    changed = (out != images).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.25, abs=0.03)
    light = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    for channel in range(3):
        assert torch.allclose(out[changed, channel], light[changed], atol=1e-6)
    mono = torch.rand(5, 1, 2, 2)
    assert torch.equal(grey(mono, 1.0), mono)


def test_distort_gives_other_images_of_the_same_kind():
    torch.manual_seed(6)
    images = torch.rand(50, 3, 8, 8)
    out = distort(images)
    assert out.shape == images.shape
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1
    assert bool((out - images).flatten(1).abs().amax(1).gt(0.01).all())


# -- mixup and feedback --------------------------------------------------------------------------------------------


def test_mixed_cross_entropy_weighs_labels_as_mix_weighs_images():
    torch.manual_seed(7)
    logits, y1, y2 = torch.randn(4, 5), torch.tensor([0, 1, 2, 3]), torch.tensor([4, 4, 0, 3])
    assert mixed_cross_entropy(logits, y1, y2, torch.zeros(4)).item() == pytest.approx(
        F.cross_entropy(logits, y1).item(), rel=1e-6)
    share = torch.tensor([0.25, 0.0, 1.0, 0.6])
    by_hand = sum((1 - w) * float(F.cross_entropy(logits[i : i + 1], y1[i : i + 1]))
                  + w * float(F.cross_entropy(logits[i : i + 1], y2[i : i + 1]))
                  for i, w in enumerate(share.tolist())) / 4
    assert mixed_cross_entropy(logits, y1, y2, share).item() == pytest.approx(by_hand, rel=1e-5)
    one, other = torch.zeros(4, 1, 2, 2), torch.ones(4, 1, 2, 2)
    assert mix(one, other, share)[:, 0, 0, 0].tolist() == pytest.approx(share.tolist())


def test_every_mixed_image_is_a_class_of_its_own():
    share = torch.tensor([0.0, 0.3, 0.3, 0.1, 0.0, 0.5])
    first, second = torch.tensor([3, 3, 0, 2, 2, 1]), torch.tensor([1, 3, 3, 4, 9, 3])
    # Values 3, 3, 0.9, 2.2, 2, 2: equal ones share a number, also where classes meet by accident.
    numbers = Mixed(torch.empty(6, 1, 2, 2), first, second, share).numbers().tolist()
    assert numbers == [3, 3, 0, 2, 1, 1]


@pytest.mark.parametrize(("gate", "rate"), [("twice", 0.36), ("once", 0.6)])
def test_base_mixup_is_gated_twice_or_once(gate, rate):
    torch.manual_seed(8)
    draws = torch.stack([base_shares(20, 0.6, gate) for _ in range(2000)])
    mixed = draws > 0
    assert mixed.float().mean().item() == pytest.approx(rate, abs=0.03)
    untouched = float((~mixed).all(1).float().mean())
    assert untouched == pytest.approx(0.4 if gate == "twice" else 0.0, abs=0.04)
    assert float(draws.max()) < 0.6
    assert draws[mixed].mean().item() == pytest.approx(0.3, abs=0.01)


def test_a_pair_is_mixed_as_a_whole_and_its_images_each_by_their_own_share():
    torch.manual_seed(9)
    counts = torch.tensor([3, 0, 2])
    draws = torch.stack([pair_shares(counts, 0.3) for _ in range(2000)])
    mixed = draws > 0
    assert torch.equal(mixed[:, 0], mixed[:, 2])
    assert torch.equal(mixed[:, 3], mixed[:, 4])
    assert mixed[:, 0].float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert (mixed[:, 0] & mixed[:, 3]).float().mean().item() == pytest.approx(0.09, abs=0.02)
    assert draws[mixed].mean().item() == pytest.approx(0.5, abs=0.02)
    assert draws[mixed].var().item() == pytest.approx(1 / (4 * 1.8), abs=0.01)  # of Beta(0.4, 0.4)
    assert not torch.equal(draws[mixed[:, 0], 0], draws[mixed[:, 0], 1])


@pytest.mark.parametrize("rule", ["inverse", "exponential"])
def test_close_prototypes_are_likelier_pairs(rule):
    torch.manual_seed(10)
    prototypes = torch.randn(5, 3)
    distances = [math.dist(a, b) for a, b in combinations(prototypes.tolist(), 2)]
    weight = [math.exp(1 / d) if rule == "inverse" else math.exp(-d) for d in distances]
    expected = [w / sum(weight) for w in weight]
    assert pair_probabilities(prototypes, rule).tolist() == pytest.approx(expected, rel=1e-4)
    assert list(combinations(range(5), 2)) == [tuple(p) for p in torch.triu_indices(5, 5, 1).T.tolist()]


def test_prototypes_in_one_place_take_everything():
    p = pair_probabilities(torch.tensor([[1.0, 0], [1, 0], [0, 1]]), "inverse")
    assert p.tolist() == pytest.approx([1, 0, 0])


def test_pair_counts_add_up_and_stay_near_their_shares():
    torch.manual_seed(11)
    corrected = 0
    for _ in range(300):
        pairs, total = int(torch.randint(1, 40, ())), int(torch.randint(1, 30, ()))
        p = torch.randn(pairs).mul(2).softmax(0)
        counts = pair_counts(p, total)
        assert int(counts.sum()) == total
        assert int(counts.min()) >= 0
        away = counts - (p * total).round().long()
        assert int(away.abs().max()) <= 1
        assert len(set(away[away != 0].tolist())) <= 1  # only up or only down
        corrected += int(away.any())
    assert corrected > 50
    assert pair_counts(torch.tensor([0.7, 0.3]), 10).tolist() == [7, 3]


def test_random_slots_are_uniform_within_the_wanted_class():
    torch.manual_seed(12)
    labels = torch.tensor([5, 2, 5, 9, 2, 5])
    slots = random_slots(labels, torch.tensor([5, 9, 2]).repeat(3000))
    assert torch.equal(labels[slots], torch.tensor([5, 9, 2]).repeat(3000))
    counts = Counter(slots.tolist())
    assert {s: round(counts[s] / 3000, 1) for s in range(6)} == {0: 0.3, 2: 0.3, 5: 0.3, 3: 1.0, 1: 0.5, 4: 0.5}


# -- a step ----------------------------------------------------------------------------------------------------------


def images_of(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Noise whose first pixel is 20 times the label, so that an image tells its class, mixed or not."""
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), *SHAPE), dtype=np.uint8)
    images[:, 0, 0, 0] = 20 * labels
    return images


def task_of(labels, seed: int = 0) -> Task:
    return plain_task(labels, images=images_of(np.asarray(labels), seed))


def value_of(x: Tensor) -> Tensor:
    return x[:, 0, 0, 0] * 255 / 20


def learner(**flags) -> tuple[Learner, OnPro]:
    if not flags.keys() & {"spc", "capacity", "budget"}:
        flags["spc"] = 5
    mine = small_learner("onpro", SHAPE, **{"replay_batch": 40, "epochs": 1, "variants": 2} | flags)
    assert isinstance(mine.method, OnPro)
    return mine, mine.method


def step(method: OnPro, labels: list[int]) -> tuple[Batch, Tensor]:
    images = torch.from_numpy(images_of(np.array(labels), seed=9))
    batch = Batch(images, to_float(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=False)
    return batch, method.loss(batch)


def watch(mine: Learner) -> list[Tensor]:
    """What goes through the feature extractor, a tensor a forward pass."""
    seen: list[Tensor] = []
    mine.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    return seen


def normalised(mine: Learner, x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised projections and features."""
    assert mine.method.extra is not None
    f = mine.net.features(x)
    return F.normalize(mine.method.extra(f), dim=1), F.normalize(f, dim=1)


def equilibrium_of(mine: Learner, x: Tensor, labels: Tensor) -> float:
    z = normalised(mine, x)[0].tolist()
    return slow_equilibrium(z, z, labels.tolist(), 0.5)


def instances_of(mine: Learner, x: Tensor, labels: Tensor, weight: float = 1.0) -> tuple[float, float, float]:
    """With two variants, both views the same, and features as long as their projection."""
    z, f = normalised(mine, expand(x, 2).repeat(2, 1, 1, 1))
    sim = (weight * (z @ z.T + z @ f.T)).tolist()
    return slow_instances(sim, [*labels.tolist(), *(labels + 1000).tolist()], 0.07)


@pytest.fixture
def still(monkeypatch) -> None:
    """Both views are the image itself."""
    monkeypatch.setattr(onpro, "distort", lambda x: x)


def test_the_first_task_learns_its_classes_from_current_images(still):
    mine, method = learner()
    begin(mine, task_of([0, 1] * 9))
    batch, loss = step(method, [0, 1, 1, 0])
    twins, same, _ = instances_of(mine, batch.x, batch.labels)
    new = equilibrium_of(mine, batch.x, batch.labels)
    ce = F.cross_entropy(mine.net(batch.x), batch.labels).item()
    assert loss.item() == pytest.approx(ce + twins + same + new, rel=1e-5)
    method.memory.filler.offer(torch.from_numpy(images_of(np.array([0, 0, 1]), seed=3)), torch.tensor([0, 0, 1]))
    _, loss = step(method, [0, 1, 1, 0])
    stored = method.memory.store
    old = equilibrium_of(mine, to_float(stored.images), stored.labels)
    assert old > 0
    assert loss.item() == pytest.approx(ce + twins + same + new + old, rel=1e-5)


def second_task(**flags) -> tuple[Learner, OnPro]:
    """Inside the second task: classes 0, 1 in memory, five each; 2, 3 current."""
    mine, method = learner(**flags)
    mine.learn(task_of([0, 1] * 9))
    begin(mine, task_of([2, 3] * 9, seed=1))
    return mine, method


@pytest.mark.parametrize("instance", [True, False])
def test_later_tasks_learn_them_from_memory_only(still, instance):
    mine, method = second_task(similarity=0.5, instance=instance, replay_per_class=100)
    batch, loss = step(method, [2, 3, 2])
    x, y = to_float(method.memory.store.images), method.memory.store.labels
    expected = (F.cross_entropy(mine.net(x), y).item() + equilibrium_of(mine, batch.x, batch.labels)
                + equilibrium_of(mine, x, y))
    if instance:
        expected += sum(instances_of(mine, batch.x, batch.labels, 0.5)[:2]) + instances_of(mine, x, y, 0.5)[2]
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_with_nothing_to_replay_later_tasks_learn_from_current_images(still):
    mine, method = second_task(replay_batch=0, instance=False)
    batch, loss = step(method, [2, 3, 2])
    expected = F.cross_entropy(mine.net(batch.x), batch.labels).item() + equilibrium_of(mine, batch.x, batch.labels)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_scaling_the_projection_changes_nothing():
    _, method = second_task()
    torch.manual_seed(0)
    before = step(method, [2, 3, 2])[1].item()
    with torch.no_grad():
        for p in method.projection.parameters():
            p.mul_(3)
    torch.manual_seed(0)
    assert step(method, [2, 3, 2])[1].item() == pytest.approx(before, rel=1e-5)


def test_how_many_images_a_step_takes():
    mine, method = learner(variants=16, spc=20, replay_batch=30, replay_per_class=7)
    begin(mine, task_of([0, 1] * 9))
    seen = watch(mine)
    step(method, [0, 1, 1])
    assert [len(x) for x in seen] == [2 * 16 * 3, 3]
    method.memory.filler.offer(torch.from_numpy(images_of(np.arange(40) % 2)), torch.arange(40) % 2)
    seen.clear()
    step(method, [0, 1, 1])  # the first task replays for prototypes only, and a whole batch
    assert [len(x) for x in seen] == [2 * 16 * 3, 30 + 30 + 3]
    begin(mine, task_of([2, 3] * 9))
    seen.clear()
    step(method, [2, 3, 2])  # 7 x 4 classes
    assert [len(x) for x in seen] == [2 * 16 * (3 + 28), 3 * 28]


def test_the_slice_of_the_features_is_drawn_where_there_is_a_choice(monkeypatch):
    begins = []

    def spy(z: Tensor, f: Tensor, begin: int, weight: float) -> Tensor:
        begins.append(begin)
        return similarity(z, f, begin, weight)

    monkeypatch.setattr(onpro, "similarity", spy)
    for width, size, possible in ((8, 8, {0}), (128, 128, {0}), (132, 128, {0, 1, 2, 3})):
        mine, method = learner(width=width)
        assert method.projection.weight.shape == (size, width)
        begin(mine, task_of([0, 1] * 9))
        begins.clear()
        for _ in range(60):
            step(method, [0, 1])
        assert set(begins) == possible


def test_feedback_starts_with_the_second_step_of_a_task(monkeypatch):
    monkeypatch.setattr(onpro, "distort", lambda x: 1 - x)
    mine, method = second_task(mixup_p=1.0, base_gate="once")
    assert not len(method.prototype_classes)
    drawn = method.draw()
    assert drawn is not None
    assert not method.feedback(drawn, to_float(drawn.images)).share.any()
    batch, _ = step(method, [2, 3, 2])
    assert not len(method.prototype_classes)  # the step itself takes them up, not an evaluation of the loss
    method.after_step(batch)
    stored = method.memory.store
    # The average of two views of the replay batch as it was drawn, not mixed.
    z = (normalised(mine, to_float(stored.images))[0] + normalised(mine, 1 - to_float(stored.images))[0]) / 2
    assert method.prototype_classes.tolist() == [0, 1]
    for c in (0, 1):
        assert torch.allclose(method.prototypes[c], z[stored.labels == c].mean(0), atol=1e-6)
    assert method.feedback(drawn, to_float(drawn.images)).share.any()
    begin(mine, task_of([2, 3] * 9, seed=2))
    assert not len(method.prototype_classes)


def four_classes(**flags) -> OnPro:
    """Four classes in memory, ten each; prototypes on a line, 0 and 1 closest."""
    mine, method = learner(spc=10, replay_batch=40, replay_per_class=100, **flags)
    for first in (0, 2):
        mine.learn(task_of(np.arange(40) % 2 + first, seed=first))
    begin(mine, task_of([4, 5] * 9))
    line = torch.zeros(4, 8)
    line[:, 0] = torch.tensor([0.0, 0.2, 0.7, 1.5])
    method.prototypes, method.prototype_classes = line, torch.arange(4)
    return method


@pytest.mark.parametrize("mixup_p", [0.0, 1.0])
def test_feedback_mixes_images_and_labels_alike(mixup_p):
    torch.manual_seed(13)
    method = four_classes(mixup_p=mixup_p, base_rate=0.75, base_gate="once")
    drawn = method.draw()
    assert drawn is not None
    mixed = method.feedback(drawn, to_float(drawn.images))
    assert [len(part) for part in mixed] == [40] * 4
    value = mixed.first + mixed.share * (mixed.second - mixed.first)
    assert torch.allclose(value_of(mixed.x), value.float(), atol=1e-4)
    assert bool((mixed.share > 0).all()) == bool(mixup_p)
    assert bool((mixed.share == 0).all()) != bool(mixup_p)
    # 30 of the batch itself, each once; then ten images of close pairs.
    assert not Counter(mixed.first[:30].tolist()) - Counter(drawn.labels.tolist())
    assert Counter(mixed.first[:30].tolist()) == Counter(mixed.second[:30].tolist())
    expected = pair_probabilities(method.prototypes, "inverse") * 10
    pairs = Counter(zip(mixed.first[30:].tolist(), mixed.second[30:].tolist(), strict=True))
    for pair, share in zip(combinations(range(4), 2), expected.tolist(), strict=True):
        assert abs(pairs[pair] - share) < 1.5
    assert pairs[0, 1] == max(pairs.values())


def test_only_classes_that_are_stored_and_have_a_prototype_are_paired():
    method = four_classes(base_rate=0.0)
    drawn = method.draw()
    assert drawn is not None
    x = to_float(drawn.images)
    method.prototype_classes = torch.tensor([0, 2, 3, 9])
    mixed = method.feedback(drawn, x)
    assert set(zip(mixed.first.tolist(), mixed.second.tolist(), strict=True)) <= {(0, 2), (0, 3), (2, 3)}
    assert len(mixed.x) == 40
    method.prototypes, method.prototype_classes = method.prototypes[:1], torch.tensor([2])
    # No pair: the whole batch, mixed within itself.
    mixed = method.feedback(drawn, x)
    assert Counter(mixed.first.tolist()) == Counter(drawn.labels.tolist())


def test_a_sample_is_offered_once_and_kept_as_it_is():
    mine, _ = learner(epochs=3, spc=9)
    labels = np.array([0] * 9 + [1] * 12)
    mine.learn(Task.from_arrays(images_of(labels), labels))
    kept = mine.memory()
    assert kept["exemplars/seen"].tolist() == [9, 12]
    originals = {image.tobytes(): y for image, y in zip(images_of(labels), labels, strict=True)}
    stored = [(image.tobytes(), y) for image, y in zip(kept["exemplars/bytes"].numpy(),
                                                      kept["exemplars/labels"].tolist(), strict=True)]
    assert len(set(stored)) == 18
    assert all(originals[image] == y for image, y in stored)


# -- where the first task ends ---------------------------------------------------------------------------------------


def later(flags: dict, *tasks: list[int]) -> list[bool]:
    mine, method = learner(**flags)
    found = []
    for number, labels in enumerate(tasks):
        task = task_of(labels * 6, seed=number)
        if flags.get("online"):
            mine.learn_window(task)
        else:
            mine.learn(task)
        found.append(method.later)
    return found


def test_the_first_task_offline_is_the_first():
    assert later({}, [0, 1], [2, 3], [0, 1]) == [False, True, True]


def test_the_first_task_online_lasts_until_other_classes_come():
    online = {"online": True}
    assert later(online, [0, 1], [0, 1], [2, 3], [2, 3]) == [False, False, True, True]
    assert later(online, [0, 1], [0, 1, 2], [2, 3], [0, 1]) == [False, True, True, True]
    assert later(online | {"blurry": 10}, [0, 1, 2], [0, 1, 2]) == [False, True]


# -- whole runs ------------------------------------------------------------------------------------------------------

FAST = {"method": "onpro", "benchmark": "digits", "threads": 1, "backbone": "mlp", "variants": 2, "lr": 2e-3}


def test_digits_offline(tmp_path):
    result = run(configure(FAST | {"epochs": 6, "batch": 16, "tasks": 3}), tmp_path)
    # Fine-tuning ends near 33 % with three tasks: what came last is all that is left.
    assert result.class_incremental.A_T >= 55
    assert result.task_incremental.A_T >= 80


def test_digits_online(tmp_path):
    flags = {"online": True, "online_window": 60, "batch": 2, "replay_batch": 32, "tasks": 2, "capacity": 100}
    result = run(configure(FAST | flags), tmp_path)
    # Fine-tuning: 50 % at the most.
    assert result.class_incremental.A_T >= 55


@pytest.mark.parametrize("flags", [
    {"classes_per_task": 1, "spc": 1, "images_per_class": 2, "backbone": "resnet18", "width": 4, "norm": "batch"},
    {"budget": 1400, "blurry": 30},
    {"codec": "webp:30", "capacity": 12, "online": True, "online_window": 20},
    {"cflat": True, "label_smoothing": 0.1, "head": "cosine", "instance": False},
    {"capacity": 10, "blurry": 20, "online": True, "online_window": 20, "pair_rule": "exponential", "variants": 16},
], ids=lambda flags: " ".join(flags))
def test_every_kind_of_stream_and_memory(flags, tmp_path):
    small = FAST | {"images_per_class": 8, "batch": 4, "replay_batch": 6, "epochs": 1, "width": 10} | flags
    result = run(configure(small), tmp_path)
    assert 0 <= result.class_incremental.A_T <= 100
    assert result.bytes_kept <= flags.get("budget", math.inf)


@pytest.mark.parametrize(("name", "value"), [("variants", 0), ("variants", 17), ("mixup_p", 1.5), ("base_rate", -0.1),
                                             ("proto_temperature", 0), ("instance_temperature", -1),
                                             ("replay_per_class", 0)])
def test_values_out_of_range_are_named(name, value):
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} {value}"):
        configure({"method": "onpro", name: value})
