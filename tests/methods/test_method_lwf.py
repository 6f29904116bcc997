"""Learning without Forgetting: the teacher's classes are distilled, on the same view; no other output is touched."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers import begin, task_of
from helpers import learner as small_learner
from helpers import noise as images_of
from protocore.data.augment import to_float
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.methods.base import Batch
from protocore.methods.parts.losses import distillation
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)


def learner(method: str = "lwf", **flags) -> Learner:
    return small_learner(method, **{"epochs": 3, "lr": 0.01} | flags)


def weights(mine: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in mine.net.parameters()])


def batch_of(labels: list[int]) -> Batch:
    images = torch.from_numpy(images_of(labels, seed=9))
    return Batch(images, to_float(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=True)


def in_second_task(labels=(2, 3) * 9, **flags) -> Learner:
    mine = learner(**flags)
    mine.learn(task_of([0, 1] * 9))
    begin(mine, task_of(labels, seed=1))
    return mine


def test_the_worked_value():
    """z_old = (2, 0), z = (1, 1), τ = 2: q = (0.7311, 0.2689), a cross entropy (not a KL: 0.1109) without τ²."""
    old, new = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert distillation(new, old, 2.0).item() == pytest.approx(0.6931, abs=1e-4)
    assert distillation(old, old, 2.0).item() == pytest.approx(0.6931 - 0.1109, abs=2e-4)


@pytest.mark.parametrize("current", ["new", "seen"])
def test_the_loss_by_hand(current):
    mine = in_second_task(weight=1.5, temperature=3.0, current=current)
    teacher = mine.net.frozen_copy()
    with torch.no_grad():  # away from the teacher, as after some steps
        for p in mine.net.parameters():
            p.add_(torch.randn_like(p))
    batch = batch_of([2, 3, 3])
    logits, old = mine.net(batch.x).detach(), teacher(batch.x)
    classes = [2, 3] if current == "new" else [0, 1, 2, 3]
    expected = 0.0
    for row, before, label in zip(logits, old, batch.labels.tolist(), strict=True):
        expected += float(torch.logsumexp(row[classes], 0) - row[label]) / 3
        q = [math.exp(before[c] / 3) for c in (0, 1)]
        p = [math.exp(row[c] / 3) for c in (0, 1)]
        expected -= 1.5 / 3 * sum(a / sum(q) * math.log(b / sum(p)) for a, b in zip(q, p, strict=True))
    assert mine.method.loss(batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_teacher_sees_the_same_view_and_does_not_learn():
    mine = in_second_task()
    before = [p.clone() for p in mine.method.previous.net.parameters()]
    inputs = []
    mine.method.previous.net.register_forward_pre_hook(lambda module, x: inputs.append(x[0]))
    batch = batch_of([2, 3, 3])
    batch.x = batch.x * 0.3
    mine.method.loss(batch).backward()
    assert len(inputs) == 1
    assert inputs[0] is batch.x
    assert all(torch.equal(a, b) for a, b in zip(before, mine.method.previous.net.parameters(), strict=True))
    assert all(p.grad is None and not p.requires_grad for p in mine.method.previous.net.parameters())


def test_without_weight_it_is_fine_tuning():
    ends = []
    for method, flags in (("lwf", {"weight": 0.0, "current": "seen"}), ("finetune", {})):
        mine = learner(method, **flags)
        for number in range(3):
            mine.learn(task_of(np.arange(18) % 2 + 2 * number, seed=number))
        ends.append(weights(mine))
    assert torch.equal(*ends)


def distillation_gradient(mine: Learner, labels: list[int]) -> dict[str, torch.Tensor]:
    """Of the second term alone, by parameter."""
    mine.method.task_loss = lambda logits, labels: logits.new_zeros(())
    mine.net.zero_grad()
    mine.method.loss(batch_of(labels)).backward()
    return {name: p.grad for name, p in mine.net.named_parameters() if p.grad is not None}


def test_at_the_first_step_the_distillation_has_no_gradient_and_later_none_for_new_rows():
    mine = in_second_task()
    for g in distillation_gradient(mine, [2, 3, 3]).values():
        assert g.abs().max() < 1e-6
    with torch.no_grad():
        for p in mine.net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    later = distillation_gradient(mine, [2, 3, 3])
    assert len(later) == len(list(mine.net.parameters()))
    for name, g in later.items():
        assert g.abs().max() > 1e-4, name
    for name in ("head.weight", "head.bias"):
        assert torch.equal(later[name][2:], torch.zeros_like(later[name][2:]))


def test_old_rows_are_free_of_the_cross_entropy_of_new_classes():
    mine = in_second_task(weight=0.0)
    mine.method.loss(batch_of([2, 3, 3])).backward()
    assert torch.equal(mine.net.head.weight.grad[:2], torch.zeros(2, 8))


def test_classes_that_return_are_distilled_too():
    mine = in_second_task(labels=(1, 2) * 9)
    assert mine.method.known == [0, 1]
    assert mine.method.old == [0]
    with torch.no_grad():
        mine.net.head.weight[1].add_(0.5)
    batch = batch_of([1, 2, 2])
    teacher = mine.method.previous.logits(batch.x)
    logits = mine.net(batch.x)
    expected = (F.cross_entropy(logits[:, 1:], batch.labels - 1)
                + 3 * F.cross_entropy(logits[:, :2] / 2, (teacher[:, :2] / 2).softmax(1)))
    assert mine.method.loss(batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_nothing_is_kept_and_the_copy_is_shown_beside_the_memory():
    mine = learner()
    mine.learn(task_of([0, 1] * 9))
    assert mine.method.held() == {}
    mine.learn(task_of([2, 3] * 9))
    assert mine.memory() == {}
    assert mine.method.previous.net is None
    copy = sum(v.nbytes for v in mine.net.state_dict().values())
    assert mine.ledger().shared == copy
    assert mine.ledger().total == 16


def test_what_makes_no_sense_is_refused():
    with pytest.raises(UserError, match="--weight -1"):
        learner(weight=-1.0)
    with pytest.raises(UserError, match="--temperature 0"):
        learner(temperature=0.0)


# -- end to end ------------------------------------------------------------------------------------------------


def test_digits(tmp_path):
    """Fine-tuning: 19."""
    flags = {"method": "lwf", "backbone": "mlp", "epochs": 3, "lr": 0.01, "images_per_class": 60, "threads": 1}
    result = run(configure(flags), tmp_path)
    assert result.class_incremental.A_T >= 30
    assert result.task_incremental.A_T >= 85


SMALL = {"benchmark": "digits", "method": "lwf", "images_per_class": 16, "epochs": 2, "batch": 8, "threads": 1,
         "backbone": "mlp", "width": 12}


def test_one_class_a_task_of_two_images(tmp_path):
    result = run(configure(SMALL | {"classes_per_task": 1, "images_per_class": 2}), tmp_path)
    assert result.tasks == 10
