"""Small changes of the code that no other test would see."""

import torch

from helpers import begin, learner, marked, task_of
from protocore.memory.fill import Reservoir
from protocore.methods import onpro, protocore_condensing
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.replay import ReplayMethod
from protocore.methods.protocore_condensing import Condensing


def test_stored_candidates_of_a_class_are_its_own_pictures_wherever_they_lie():
    """Others stand before them in the store: a candidate's number is no slot."""
    mine = learner("icarl", spc=3)
    mine.learn(task_of([0, 1] * 6, images=marked([0, 1] * 6)))
    method = mine.method
    assert isinstance(method, Coreset)
    assert method.store.labels.tolist() == [0, 0, 0, 1, 1, 1]
    task = task_of([1] * 4, images=marked([1] * 4, seed=1))
    pool = Pool(task, method.store, mine.tools)
    assert pool.slots.tolist() == [3, 4, 5]
    rows = torch.tensor([6, 1, 4])  # the last stored one, a new one, the first stored one
    assert torch.equal(pool.images(rows), torch.stack([method.store.images[5], task.take(torch.tensor([1]))[0],
                                                       method.store.images[3]]))
    assert pool.labels[rows].tolist() == [1, 1, 1]


def test_a_reservoir_that_was_over_its_budget_keeps_no_more_than_fitted():
    mine = learner("er", (3, 16, 16), budget=3000, codec="webp:90", fill="stream")
    task = task_of([0, 1] * 30, shape=(3, 16, 16))
    begin(mine, task)
    method = mine.method
    assert isinstance(method, ReplayMethod)
    memory, rows = method.memory, torch.arange(60)
    assert isinstance(memory.filler, Reservoir)
    memory.filler.capacity = 60  # as planned from smaller pictures
    memory.filler.offer(task.take(rows), task.labels_of(rows))
    memory.settle()
    assert 2 < len(memory.store) < 60
    assert memory.filler.capacity == len(memory.store)


def test_a_class_that_only_visits_keeps_the_prototype_of_the_task_that_was_about_it():
    mine = learner("protocore", spc=2, condense_steps=0, exemplars="coded", prototype_dtype="float32")
    mine.learn(task_of([0, 1] * 8, images=marked([0, 1] * 8)))
    method = mine.method
    assert isinstance(method, Condensing)
    before = method.prototypes.get([0, 1])
    mine.learn(task_of([2] * 12 + [1] * 10 + [0], seed=1))  # class 0 has one image, class 1 almost an equal share
    after = method.prototypes.get([0, 1])
    assert torch.equal(after[0], before[0])
    assert not torch.allclose(after[1], before[1], atol=1e-4)
    assert method.prototypes.classes == [0, 1, 2]


def test_samples_are_believed_unless_too_few_are_right_for_every_exemplar_to_blend(monkeypatch):
    mine = learner("protocore", spc=2, condense_steps=1, exemplars="synthetic", blend=3)
    asked, real = [], protocore_condensing.believed
    monkeypatch.setattr(protocore_condensing, "believed",
                        lambda labels, correct, least=1: asked.append(least) or real(labels, correct, least))
    mine.learn(task_of([0, 1] * 8))
    assert asked[0].tolist() == [6, 6]  # two exemplars, each the mean of three samples or more
    assert asked[1] == 1  # the prototype is one mean


def test_onpro_weighs_similarities_from_the_second_task_on(monkeypatch):
    mine = learner("onpro", (3, 8, 8), spc=3, similarity=2.5, variants=2)
    weights, real = [], onpro.similarity
    monkeypatch.setattr(onpro, "similarity", lambda z, f, begin, weight: weights.append(weight) or real(z, f, begin,
                                                                                                        weight))
    mine.learn(task_of([0, 1] * 6, shape=(3, 8, 8)))
    assert set(weights) == {1.0}
    weights.clear()
    mine.learn(task_of([2, 3] * 6, seed=1, shape=(3, 8, 8)))
    assert set(weights) == {2.5}


def test_real_exemplars_are_planned_for_every_class():
    mine = learner("protocore", spc=1, real=2, condense_steps=0)
    mine.learn(task_of([0, 1] * 6))
    task = task_of([2, 3] * 6, seed=1)
    begin(mine, task)
    plan = mine.method.planned(mine.method.horizon(task), 4)
    assert plan["real exemplars/labels"][1] == (8,)
    assert [plan[name][1] for name in plan if name.endswith("exemplars/labels") and "real" not in name] == [(4,)]
