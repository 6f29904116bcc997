"""Whether pictures were learned, told from scores: every number against a slow reference, and an overfitted network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from protocore.learn.learner import Learner
from protocore.learn.membership import auc, caught, chance, evidence, membership


def test_a_perfect_attack_is_1_a_reversed_one_0_and_equal_evidence_a_half() -> None:
    low, high = torch.arange(5.0), torch.arange(5.0) + 10
    assert auc(high, low) == 1.0
    assert auc(low, high) == 0.0
    assert auc(torch.ones(3), torch.ones(7)) == 0.5
    assert auc(torch.tensor([2.0, 1.0]), torch.tensor([1.0])) == 0.75
    assert auc(torch.tensor([math.inf, 0.0]), torch.tensor([math.inf, -math.inf])) == 0.625


@pytest.mark.parametrize("seed", range(5))
def test_the_area_is_the_share_of_pairs_in_the_right_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    members, strangers = rng.integers(0, 6, 23) + 1.0, rng.integers(0, 6, 17) * 1.0
    slow = np.mean([(a > b) + (a == b) / 2 for a in members for b in strangers])
    assert auc(torch.tensor(members), torch.tensor(strangers)) == pytest.approx(slow, abs=1e-12)


def test_by_chance_the_area_lies_in_the_band_19_times_of_20() -> None:
    rng, m, n = np.random.default_rng(0), 40, 70
    far = np.array([abs(auc(torch.tensor(a[:m]), torch.tensor(a[m:])) - 0.5) for a in rng.random((2000, m + n))])
    assert np.mean(far <= chance(m, n)) == pytest.approx(0.95, abs=0.015)
    worst = far.reshape(200, 10).max(1)
    assert np.mean(worst <= chance(m, n, tests=10)) == pytest.approx(0.95, abs=0.04)
    assert chance(1, 1) == 0.5
    assert chance(40, 70) == pytest.approx(0.1127, abs=1e-4)


def test_how_many_are_caught_at_few_false_alarms() -> None:
    strangers = torch.arange(200.0)
    assert caught(torch.tensor([197.5, 198.0, 250.0, 3.0]), strangers) == 0.75  # two of 200 lie above 197
    assert caught(torch.tensor([197.0, 197.1]), strangers) == 0.5
    assert caught(torch.tensor([198.5, 199.5]), strangers, alarms=0.0) == 0.5
    found = membership(torch.arange(10.0), torch.arange(99.0))
    assert found is not None
    assert found.caught is None  # one of 99 is more than 1 %
    assert membership(torch.zeros(0), torch.zeros(4)) is None


def test_less_evidence_than_for_others_gives_members_away_too() -> None:
    for members, strangers in ((torch.arange(50.0), torch.arange(50.0) + 100),
                               (torch.arange(50.0) + 100, torch.arange(50.0))):
        found = membership(members, strangers)
        assert found is not None
        assert found.told
    same = membership(torch.arange(50.0), torch.arange(50.0))
    assert same is not None
    assert not same.told
    lone = membership(torch.ones(1), torch.zeros(1))  # as far as can be, which of one and one is often so
    assert lone is not None
    assert lone.auc == 1
    assert not lone.told


def test_evidence_is_the_logit_of_the_probability_and_goes_on_where_that_is_1() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(20, 6), torch.randint(6, (20,))
    p = scores.double().softmax(1)
    of_label = p[torch.arange(20), labels]
    torch.testing.assert_close(evidence(scores, labels), of_label.log() - (1 - of_label).log())
    best = p.max(1).values
    torch.testing.assert_close(evidence(scores), best.log() - (1 - best).log())
    labels[0] = -1
    assert evidence(scores, labels)[0] == evidence(scores)[0]
    sure = torch.tensor([[100.0, 0, 0], [200.0, 0, 0]])
    assert float(evidence(sure)[0]) < float(evidence(sure)[1]) < math.inf
    unseen = torch.tensor([[1.0, -math.inf, 0.0]])
    assert float(evidence(unseen)) == pytest.approx(1.0)
    assert evidence(torch.ones(3, 1)).tolist() == [math.inf] * 3  # a single class says nothing


def test_a_network_that_learned_by_heart_tells_and_one_that_learned_nothing_does_not() -> None:
    data = load_digits()
    images, labels = (data.images * 15.9).astype(np.uint8)[:, None], data.target
    learned = np.zeros(len(labels), bool)
    for c in range(10):
        learned[np.flatnonzero(labels == c)[:3]] = True

    def attack(**settings: int) -> float:
        mine = Learner("finetune", (1, 8, 8), backbone="mlp", width=64, lr=0.01, batch=30, threads=1, **settings)
        mine.partial_fit(images[learned], labels[learned])
        sides = [evidence(mine.scores(images[side]), torch.from_numpy(labels[side])) for side in (learned, ~learned)]
        found = membership(*sides)
        assert found is not None
        return found.auc

    assert attack(steps=300) > 0.8
    assert attack(steps=1) < 0.7
