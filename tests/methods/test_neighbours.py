"""Prediction by head and exemplars together, and by a picture together with its mirror image."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import protocore
from protocore.methods.base import Batch
from protocore.methods.parts.neighbours import LEAST, vote


def test_the_vote_is_a_soft_nearest_neighbour():
    torch.manual_seed(0)
    z, features, labels = torch.randn(5, 6), torch.randn(7, 6), torch.tensor([0, 2, 2, 3, 0, 3, 3])
    shares = vote(z, features, labels, 4, 0.3)
    for i in range(5):
        weights = [math.exp(float(torch.cosine_similarity(z[i], f, dim=0)) / 0.3) for f in features]
        slow = [sum(w for w, y in zip(weights, labels.tolist(), strict=True) if y == c) / sum(weights)
                for c in range(4)]
        assert shares[i].tolist() == pytest.approx(slow, abs=1e-5)
    assert vote(3 * z, features, labels, 4, 1e-3).argmax(1).tolist() == [
        int(labels[torch.cosine_similarity(row[None], features).argmax()]) for row in z]


def learned(**settings):
    rng = np.random.default_rng(0)
    learner = protocore.Learner("protocore", (1, 8, 8), spc=4, steps=12, width=8, norm="batch", codec="pixels",
                                replay_batch=16, batch=16, threads=1, **settings)
    centres = rng.integers(60, 200, (6, 1, 8, 8))
    for pair in ([0, 1], [2, 3], [4, 5]):
        noise = rng.normal(0, 40, (2, 20, 1, 8, 8))
        pictures = np.concatenate([centres[c] + noise[k] for k, c in enumerate(pair)]).clip(0, 255).astype(np.uint8)
        learner.partial_fit(pictures, np.repeat(pair, 20))
    return learner


@pytest.mark.parametrize("real", [0, 3])
def test_scores_are_those_of_the_head_and_of_every_exemplar_as_the_network_sees_it_now(real, tmp_path):
    learner = learned(neighbours=0.2, real=real)
    x = torch.rand(9, 1, 8, 8)
    net, method = learner.net.eval(), learner.method
    with torch.no_grad():
        stores = method.stores()
        assert len(stores) == 1 + bool(real)
        drawn = [store.at(torch.arange(len(store))) for store in stores]
        features = net.features(torch.cat([d.images for d in drawn]).float() / 255)
        share = vote(net.features(x), features, torch.cat([d.labels for d in drawn]).long(), 6, 0.2)
        wanted = net(x) / method.options.task_temperature + (share + LEAST).log()
    torch.testing.assert_close(learner.scores(x), wanted, atol=1e-4, rtol=1e-4)
    learner.save(tmp_path / "a.learner")
    torch.testing.assert_close(protocore.Learner.load(tmp_path / "a.learner").scores(x), learner.scores(x))


def test_what_was_learned_since_changes_the_vote():
    learner = learned(neighbours=0.2)
    before = learner.method.predictor()
    assert before.exemplars is learner.method.predictor().exemplars  # made once
    more = np.random.default_rng(1).integers(0, 90, (8, 1, 8, 8)).astype(np.uint8)
    learner.partial_fit(more, [6] * 8)
    after = learner.method.predictor()
    assert len(after.labels) > len(before.labels)
    assert not torch.allclose(after.exemplars[: len(before.labels)], before.exemplars, atol=1e-3)


def test_inside_a_task_exemplars_vote_as_the_network_sees_them_after_each_step():
    learner = learned(neighbours=0.2)
    before = learner.method.predictor()
    with torch.no_grad():
        for p in learner.net.backbone.parameters():
            p.add_(0.3 * torch.randn_like(p))
    nothing = torch.empty(0)
    learner.method.after_step(Batch(nothing, nothing, nothing, nothing, first_pass=True))
    assert not torch.allclose(learner.method.predictor().exemplars, before.exemplars, atol=1e-3)


def test_mirrored_pictures_have_the_same_scores_and_they_are_the_mean_of_both():
    plain, mirrored = learned(), learned(mirror=True)
    x = torch.rand(6, 1, 8, 8)
    torch.testing.assert_close(mirrored.scores(x), mirrored.scores(x.flip(3)))
    torch.testing.assert_close(mirrored.scores(x), (plain.scores(x) + plain.scores(x.flip(3))) / 2)
    assert not torch.allclose(plain.scores(x), plain.scores(x.flip(3)), atol=1e-3)


def test_a_forgotten_class_votes_no_more():
    learner = learned(neighbours=0.2)
    before = learner.method.predictor()
    learner.forget(2)
    after = learner.method.predictor()
    assert torch.equal(after.labels, torch.tensor([c - (c > 2) for c in before.labels.tolist() if c != 2]))
    torch.testing.assert_close(after.exemplars, before.exemplars[before.labels != 2])
