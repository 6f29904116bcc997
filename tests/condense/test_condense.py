"""What exemplars should match, and the loop that makes them match it."""

import math

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import nn

from protocore.codecs.pixels import Pixels
from protocore.condense.loop import Goals, Weights, condensation_loss, condense
from protocore.condense.targets import believed, k_means, layer_goals, make_targets

NAN = float("nan")
SHAPE = (1, 6, 6)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# -- targets -----------------------------------------------------------------------------------------------


def test_believed_are_the_correct_rows_or_all_of_a_class_without_any():
    labels = torch.tensor([0, 0, 1, 1, 3, 3, 3])
    correct = torch.tensor([True, False, False, False, True, True, False])
    # Class 1 has no correct row, so both of its rows count; class 2 does not occur at all.
    assert believed(labels, correct).tolist() == [True, False, True, True, True, True, False]
    assert believed(labels, torch.zeros(7, dtype=torch.bool)).all()
    assert believed(labels, torch.ones(7, dtype=torch.bool)).all()


def test_a_class_with_fewer_correct_rows_than_are_wanted_counts_whole():
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    correct = torch.tensor([True, True, False, True, False, False])
    assert believed(labels, correct, 2).tolist() == [True, True, False, True, True, True]
    assert believed(labels, correct, 3).all()


def inertia(points: torch.Tensor, group: torch.Tensor) -> float:
    return sum((points[group == g] - points[group == g].mean(0)).square().sum().item() for g in group.unique())


@pytest.mark.parametrize("k", [2, 5, 12])
def test_k_means_is_about_as_good_as_scikit_learn(k):
    digits = load_digits()
    data = nn.functional.normalize(torch.from_numpy(digits.data[digits.target == 3]).float(), dim=1)
    best = KMeans(k, n_init=10, random_state=0).fit(data.numpy()).inertia_
    found = sorted(inertia(data, k_means(data, k)) for _ in range(9))
    assert found[4] < 1.05 * best
    assert found[-1] < 1.15 * best  # one start only, so now and then a poorer optimum


def test_k_means_finds_separate_groups_and_numbers_them_by_size():
    centres = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    truth = torch.tensor([1] * 5 + [0] * 30 + [2] * 12)
    for seed in range(5):
        torch.manual_seed(seed)
        group = k_means(centres[truth] + torch.randn(47, 2), 3)
        assert group.bincount().tolist() == [30, 12, 5]
        for g in range(3):
            assert truth[group == g].unique().numel() == 1


def test_k_means_of_equal_points_leaves_the_last_groups_empty():
    group = k_means(torch.ones(6, 3), 4)
    assert group.tolist() == [0] * 6
    assert len(k_means(torch.randn(3, 2), 3).unique()) == 3


@pytest.mark.parametrize(("n", "k"), [(60, 36), (40, 20), (100, 10), (9, 9)])
def test_no_group_is_left_empty_while_points_differ(n, k):
    for seed in range(10):
        torch.manual_seed(seed)
        assert k_means(nn.functional.normalize(torch.rand(n, 6), dim=1), k).unique().tolist() == list(range(k))


def some_features(n: int = 60, d: int = 8, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, d, dtype=torch.float64).abs(), torch.arange(n) % classes


def test_one_target_a_class_is_the_mean_of_its_kept_rows():
    z, labels = some_features()
    keep = torch.rand(60) < 0.7
    targets = make_targets(z, labels, [2, 0], 1, keep)
    assert targets.labels.tolist() == [2, 0]
    for row, label in enumerate((2, 0)):
        rows = [n for n in range(60) if labels[n] == label and keep[n]]
        mean = sum(z[n] for n in rows) / len(rows)
        assert torch.allclose(targets.features[row], mean)
        assert targets.members[row].nonzero().flatten().tolist() == rows
        unit = mean / mean.norm()
        gaps = {n: (z[n] / z[n].norm() - unit).square().sum().item() for n in rows}
        assert int(targets.nearest[row]) == min(gaps, key=lambda n: gaps[n])


def test_several_targets_a_class_are_the_centres_of_its_clusters():
    z, labels = some_features()
    keep = torch.rand(60) < 0.8
    targets = make_targets(z, labels, [0, 1, 2], 4, keep)
    assert targets.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for label in range(3):
        mine = targets.members[targets.labels == label]
        # The clusters share no sample and cover every kept sample of the class.
        assert torch.equal(mine.sum(0), ((labels == label) & keep).long())
        assert bool((mine.sum(1) > 0).all())
    for feature, nearest, member in zip(targets.features, targets.nearest, targets.members, strict=True):
        inside = member.nonzero().flatten().tolist()
        centre = sum(z[n] for n in inside) / len(inside)
        assert torch.allclose(feature, centre)
        gaps = {n: (z[n] / z[n].norm() - centre / centre.norm()).square().sum().item() for n in inside}
        assert int(nearest) == min(gaps, key=lambda n: gaps[n])


def test_well_separated_modes_of_a_class_get_a_target_each():
    modes = 10 * torch.eye(3, dtype=torch.float64)
    truth = torch.arange(30) % 3
    z = modes[truth] + 0.1 * torch.randn(30, 3, dtype=torch.float64)
    targets = make_targets(z, torch.zeros(30, dtype=torch.int64), [0], 3, torch.ones(30, dtype=torch.bool))
    assert sorted(targets.features.argmax(1).tolist()) == [0, 1, 2]
    for feature, member in zip(targets.features, targets.members, strict=True):
        assert truth[member].unique().tolist() == [int(feature.argmax())]


@pytest.mark.parametrize(("wanted", "blend", "made"), [(3, 5, 3), (50, 5, 4), (50, 20, 1), (50, 30, 0)])
def test_a_blended_target_is_the_mean_of_enough_samples(wanted, blend, made):
    z, labels = some_features(60)  # 20 rows a class
    targets = make_targets(z, labels, [0, 1, 2], wanted, torch.ones(60, dtype=torch.bool), blend)
    assert targets.labels.bincount(minlength=3).tolist() == [made] * 3
    assert targets.members.shape == (3 * made, 60)
    for feature, label, member in zip(targets.features, targets.labels, targets.members, strict=True):
        inside = member.nonzero().flatten()
        assert len(inside) >= blend
        assert bool((labels[inside] == label).all())
        assert torch.allclose(feature, z[inside].mean(0))


def test_goals_of_the_layers_are_means_over_the_samples_of_each_centre():
    n = 700  # more than one batch of reading
    images, labels = torch.rand(n, 1, 4, 4), torch.arange(n) % 3
    targets = make_targets(torch.randn(n, 5), labels, [0, 1, 2], 2, torch.ones(n, dtype=torch.bool))

    def maps(x):
        return torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1)

    goals = layer_goals(maps, images.__getitem__, targets, of_sample=False)
    for goal, members in zip(goals, targets.members, strict=True):
        slow = torch.stack([maps(images[i : i + 1])[0] for i in members.nonzero().flatten().tolist()]).mean(0)
        torch.testing.assert_close(goal, slow)
    of_sample = layer_goals(maps, images.__getitem__, targets, of_sample=True)
    assert torch.equal(of_sample, maps(images[targets.nearest]))


def test_no_more_targets_than_samples():
    z, labels = some_features(7, 4, 3)  # three rows of class 0, two of each other
    targets = make_targets(z, labels, [0, 1, 2], 5, torch.ones(7, dtype=torch.bool))
    assert targets.labels.bincount().tolist() == [3, 2, 2]
    assert sorted(targets.nearest.tolist()) == list(range(7))


# -- the loss ----------------------------------------------------------------------------------------------


def slow_loss(features, goals: Goals, weights: Weights) -> float:
    """Per exemplar: each goal that it has, at its weight; then the mean over all exemplars."""

    def d(a, b) -> float:
        a, b = a.tolist(), b.tolist()
        la, lb = (math.sqrt(sum(v * v for v in x)) for x in (a, b))
        return sum((x / la - y / lb) ** 2 for x, y in zip(a, b, strict=True))

    total = 0.0
    for row in range(len(features)):
        same = [n for n in range(len(features)) if goals.labels[n] == goals.labels[row]]
        mean = sum(features[n] for n in same) / len(same)
        for weight, found, goal in ((weights.cur_syn, features[row], goals.target[row]),
                                    (weights.pre_syn, features[row], goals.previous[row]),
                                    (weights.shift, mean, goals.anchor[row])):
            if not any(math.isnan(v) for v in goal.tolist()):
                total += weight * d(found, goal)
    return total / len(features)


def some_goals(labels: list[int], d: int = 5, *, target=(), previous=(), anchor=()) -> Goals:
    """Random goals; the rows that are named have none."""

    def rows(without) -> torch.Tensor:
        goal = torch.randn(len(labels), d, dtype=torch.float64)
        goal[list(without)] = NAN
        return goal

    shared = torch.randn(max(labels) + 1, d, dtype=torch.float64)[labels]
    shared[list(anchor)] = NAN
    return Goals(rows(target), rows(previous), shared, torch.tensor(labels))


@pytest.mark.parametrize("weights", [Weights(1, 0, 0), Weights(0, 1, 0), Weights(0, 0, 1), Weights(0.7, 0.2, 1.3)])
@pytest.mark.parametrize("goals", [
    {"labels": [0, 1, 2]},
    {"labels": [0, 0, 0, 1, 1, 2]},
    {"labels": [0, 0, 1, 1, 2], "previous": (0, 1, 4), "anchor": (0, 1, 4)},
    {"labels": [3, 3, 1, 0], "target": (2, 3), "previous": (0, 1)},
    {"labels": [1, 0], "target": (0, 1), "previous": (0, 1), "anchor": (0, 1)},
], ids=["one-a-class", "several", "new-and-returning", "refresh", "no-goal"])
def test_condensation_loss(goals, weights):
    goals = some_goals(**goals)
    features = torch.randn(len(goals.labels), 5, dtype=torch.float64)
    assert condensation_loss(features, goals, weights).item() == pytest.approx(slow_loss(features, goals, weights))


def test_a_goal_that_is_missing_has_no_gradient():
    goals = some_goals([0, 1], target=(0,), previous=(0,), anchor=(0,))
    features = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    condensation_loss(features, goals, Weights(1, 1, 1)).backward()
    assert features.grad is not None
    assert torch.equal(features.grad[0], torch.zeros(5, dtype=torch.float64))
    assert bool(features.grad[1].isfinite().all())
    assert bool((features.grad[1] != 0).any())


def test_the_anchor_binds_the_mean_of_a_class_and_not_each_exemplar():
    anchor = torch.tensor([[1.0, 1.0]] * 2)
    features = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # each far off, their mean on it
    nothing = torch.full((2, 2), NAN)
    goals = Goals(nothing, nothing, anchor, torch.tensor([0, 0]))
    assert condensation_loss(features, goals, Weights(0, 0, 1)).item() == pytest.approx(0, abs=1e-6)
    apart = Goals(nothing, nothing, anchor, torch.tensor([0, 1]))
    assert condensation_loss(features, apart, Weights(0, 0, 1)).item() > 0.5


# -- the loop ----------------------------------------------------------------------------------------------


def network(norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 3, padding=1)]
    layers += [nn.GroupNorm(2, 6)] if norm else []
    return nn.Sequential(*layers, nn.Softplus(), nn.Flatten(), nn.Linear(216, 10)).double()


def job(rows: int = 6, classes: int = 3, **without):
    net = network(norm=True)
    with torch.no_grad():
        goals = Goals(*(net(torch.rand(rows, *SHAPE, dtype=torch.float64)) for _ in range(2)),
                      net(torch.rand(classes, *SHAPE, dtype=torch.float64))[torch.arange(rows) % classes],
                      torch.arange(rows) % classes)
    for name, row in without.items():
        getattr(goals, name)[list(row)] = NAN
    start = torch.randn(rows, *SHAPE, dtype=torch.float64)
    return net, goals, start


def shown(decoder, made) -> torch.Tensor:
    """What a replay will see: the exemplar as its bytes are read again."""
    return decoder.decode(decoder.from_bytes(made).double())


def stored_loss(net, decoder, made, goals, weights) -> float:
    return slow_loss(net(shown(decoder, made)).detach(), goals, weights)


def test_condense_lowers_the_loss_of_what_is_stored_and_reports_it():
    net, goals, start = job()
    decoder, weights = Pixels(SHAPE), Weights(1, 0.1, 0.1)
    result = condense(net, decoder, start, goals, weights=weights, steps=60, lr=0.1)
    assert result.before == pytest.approx(stored_loss(net, decoder, decoder.to_bytes(start), goals, weights), rel=1e-4)
    assert result.after == pytest.approx(stored_loss(net, decoder, result.stored, goals, weights), rel=1e-4)
    assert result.after < 0.5 * result.before


def test_condense_optimises_what_is_stored_also_where_quantising_is_coarse():
    class Coarse(Pixels):
        """Eight grey levels: without the straight-through gradient nothing would move."""

        def quantise(self, z):
            stored = self.encode((torch.sigmoid(z) * 7).round() / 7)
            return z + (stored - z).detach()

    net, goals, start = job()
    decoder = Coarse(SHAPE)
    result = condense(net, decoder, start, goals, weights=Weights(1, 0, 0), steps=60, lr=0.1)
    levels = shown(decoder, result.stored) * 7
    assert torch.allclose(levels, levels.round(), atol=0.02)  # of 8 levels, as far as bytes can say them
    seen = net(shown(decoder, result.stored)).detach()
    assert result.after == pytest.approx(slow_loss(seen, goals, Weights(1, 0, 0)), rel=1e-3)
    assert result.after < 0.8 * result.before


@pytest.mark.parametrize("weights", [Weights(1, 0, 0), Weights(1, 0.5, 0), Weights(1, 0.3, 0.7), Weights(1e-6, 0, 0)])
def test_all_classes_as_one_batch_equal_a_loop_over_classes(weights):
    """Also where only some classes have a stored exemplar: a neighbour must not change a goal's weight.

    And where gradients are as small as AdamW's ε: more exemplars must not make them smaller.
    """
    net, goals, start = job(8, 4, previous=(0, 4, 1, 5), anchor=(0, 4, 1, 5))
    decoder = Pixels(SHAPE)
    together = condense(net, decoder, start, goals, weights=weights, steps=15, lr=0.1)
    for label in range(4):
        rows = (goals.labels == label).nonzero().flatten()
        alone = Goals(*(t[rows] for t in (goals.target, goals.previous, goals.anchor, goals.labels)))
        single = condense(net, decoder, start[rows], alone, weights=weights, steps=15, lr=0.1)
        gap = (shown(decoder, [together.stored[i] for i in rows.tolist()]) - shown(decoder, single.stored)).abs()
        assert gap.max() < 1.01 / 255
        assert gap.mean() < 0.02 / 255


def test_condense_is_deterministic_and_leaves_its_inputs_alone():
    net, goals, start = job()
    weights_before = [p.clone() for p in net.parameters()]
    kept = start.clone()
    first, second = (condense(net, Pixels(SHAPE), start, goals, steps=10) for _ in range(2))
    assert first.stored == second.stored
    assert first.after == second.after
    assert torch.equal(start, kept)
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights_before, net.parameters(), strict=True))


def test_perturbations_are_drawn_anew_at_every_step():
    net, goals, start = job()
    seen = []

    def perturb(images):
        seen.append(float(torch.rand(())))
        return images.flip(3)

    steps = []
    result = condense(net, Pixels(SHAPE), start, goals, steps=7, perturb=perturb, record=True,
                      progress=lambda done, of: steps.append((done, of)))
    assert len(set(seen)) == 7
    assert steps == [(n + 1, 7) for n in range(7)]
    assert len(result.trace) == 7
    flipped = net(Pixels(SHAPE).decode(Pixels(SHAPE).quantise(start)).flip(3))
    assert torch.allclose(result.trace[0], flipped)
    # The reported loss is of the stored exemplar itself, not of a view of it.
    decoder = Pixels(SHAPE)
    assert result.after == pytest.approx(stored_loss(net, decoder, result.stored, goals, Weights()), rel=1e-4)


def test_the_learning_rate_is_annealed_by_a_cosine():
    """The first step of Adam is the learning rate itself wherever the gradient is not zero; later ones shrink."""
    net, goals, start = job()
    rates = []
    original = torch.optim.AdamW.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spy)
        condense(net, Pixels(SHAPE), start, goals, steps=8, lr=0.3)
    assert rates == pytest.approx([0.15 * (1 + math.cos(math.pi * n / 8)) for n in range(8)])


def test_no_steps_store_the_start():
    net, goals, _ = job()
    images = (torch.rand(6, *SHAPE) * 255).round() / 255
    decoder = Pixels(SHAPE)
    result = condense(net, decoder, decoder.encode(images).double(), goals, steps=0)
    assert torch.allclose(shown(decoder, result.stored), images.double(), atol=0.3 / 255)
    assert result.before == result.after
