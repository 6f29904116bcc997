"""Small changes of the code that no other test would see."""

import torch

from helpers import begin, learner, marked, task_of
from protocore.memory.fill import Reservoir
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.replay import ReplayMethod


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
