"""Herding against its definition, and equal shares of classes."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from protocore.methods.parts.selection import herding, rank_in_class


def unit(n: int, d: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed)), dim=1)


def error(features: np.ndarray, chosen: np.ndarray) -> float:
    return float(np.linalg.norm(features.mean(0) - features[chosen].mean(0)))


def slow_herding(features: np.ndarray, count: int) -> list[int]:
    """The definition, in numpy, a candidate after the other."""
    mean, order = features.mean(0), []
    for k in range(1, count + 1):
        best, winner = np.inf, -1
        for i in range(len(features)):
            if i not in order:
                distance = np.linalg.norm(mean - (features[order].sum(0) + features[i]) / k)
                if distance < best - 1e-12:
                    best, winner = distance, i
        order.append(winner)
    return order


@pytest.mark.parametrize("seed", range(25))
def test_every_choice_of_herding_is_the_best_one_there_is(seed):
    features = unit(8, 3, seed)
    assert herding(features, 8).tolist() == slow_herding(features.double().numpy(), 8)


@pytest.mark.parametrize("seed", range(5))
def test_herding_of_many_points_and_of_points_that_are_not_of_unit_length(seed):
    features = unit(60, 5, seed) * torch.linspace(0.5, 3, 60)[torch.randperm(60)][:, None]
    assert herding(features, 30).tolist() == slow_herding(features.double().numpy(), 30)


def test_unit_features_choose_as_the_inner_product_does():
    for seed in range(20):
        phi = unit(30, 6, seed).double()
        mean, chosen_sum, order = phi.mean(0), torch.zeros(6, dtype=torch.float64), []
        for k in range(1, 31):
            gain = phi @ (k * mean - chosen_sum)
            gain[order] = -torch.inf
            order.append(int(gain.argmax()))
            chosen_sum += phi[order[-1]]
        assert herding(phi, 30).tolist() == order


def test_herding_does_not_follow_the_script_that_may_choose_an_image_again():
    """The authors' first script updates its weight with repeated winners: another order in most cases."""
    same = 0
    for seed in range(40):
        phi = unit(20, 8, seed).double()
        mean, order = phi.mean(0), []
        w = mean.clone()
        while len(order) < 10:
            winner = int((phi @ w).argmax())
            w += mean - phi[winner]
            if winner not in order:
                order.append(winner)
        same += herding(phi, 10).tolist() == order
    assert same < 20


def test_herding_is_closer_to_the_mean_than_any_of_twenty_random_subsets():
    found, chance = [], []
    for seed in range(200):
        features = unit(40, 16, seed)
        generator = np.random.default_rng(seed)
        points = features.double().numpy()
        found.append(error(points, herding(features, 20).numpy()))
        random = [error(points, generator.permutation(40)[:20]) for _ in range(20)]
        chance.append(float(np.mean(random)))
        assert found[-1] < min(random)
    assert np.mean(found) == pytest.approx(0.05, abs=0.015)
    assert np.mean(chance) == pytest.approx(0.15, abs=0.02)


def test_all_points_leave_no_error_and_the_error_may_rise_on_the_way():
    features = unit(60, 4, 0)
    order = herding(features, 60).numpy()
    way = [error(features.double().numpy(), order[:k]) for k in range(1, 61)]
    assert way[-1] == pytest.approx(0, abs=1e-7)
    assert any(b > a for a, b in itertools.pairwise(way))


def test_herding_orders_by_priority():
    features = unit(20, 4, 3)
    whole = herding(features, 20).tolist()
    assert sorted(whole) == list(range(20))
    for count in range(21):
        assert herding(features, count).tolist() == whole[:count]
    assert herding(features, 99).tolist() == whole


def test_herding_of_few_and_of_equal_points():
    assert herding(torch.ones(1, 3), 5).tolist() == [0]
    equal = torch.eye(3)[[0] * 4]  # of length 1: every sum is exact, and ties are ties in whatever order
    assert herding(equal, 3).tolist() == [0, 1, 2]
    assert herding(torch.ones(0, 3), 3).tolist() == []
    assert herding(torch.ones(4, 3), 0).tolist() == []


def test_the_first_choice_is_the_point_nearest_to_the_mean():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.96, -0.28]])
    # μ = (0.69, 0.33), the third is nearest. Then φ·(2μ - S) = 0.58, 0.06, -, 0.54; then φ·(3μ - S) = -, 0.39, -, 0.15.
    assert herding(features, 4).tolist() == [2, 0, 1, 3]


# -- shares ------------------------------------------------------------------------------------------------------


def test_rank_counts_those_of_the_same_class_before():
    assert rank_in_class(torch.tensor([5, 5, 2, 5, 2, 9])).tolist() == [0, 1, 0, 2, 1, 0]
    assert rank_in_class(torch.empty(0, dtype=torch.int64)).tolist() == []
