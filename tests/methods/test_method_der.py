"""Dark experience replay: logits of the moment a sample came, distances by the book, two draws that know no other."""

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
from protocore.methods.der import logit_distance, padded
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 4)
NAN = float("nan")


def learner(method: str = "der", **flags) -> Learner:
    if method.startswith("der"):
        flags = {"logit_dtype": "float32"} | flags
        if not flags.keys() & {"spc", "capacity", "budget"}:
            flags["capacity"] = 40
    return small_learner(method, **flags)


def weights(mine: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in mine.net.parameters()])


def step(mine: Learner, labels: list[int]) -> tuple[Batch, torch.Tensor]:
    images = torch.from_numpy(images_of(np.array(labels), seed=9))
    batch = Batch(images, to_float(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=True)
    return batch, mine.method.loss(batch)


# -- the distance --------------------------------------------------------------------------------------------


def test_known_distances():
    logits = torch.tensor([[1.0, 2, 0], [0, 1, -1]])
    stored = torch.tensor([[1.0, 0, 0], [1, 1, 1]])
    assert logit_distance(logits, stored).item() == pytest.approx(1.5)
    assert logit_distance(logits, stored, "norm").item() == pytest.approx(4.5)
    assert logit_distance(logits, logits, "norm").item() == 0


def test_outputs_that_did_not_exist_count_neither_above_nor_below_the_line():
    logits = torch.tensor([[1.0, 2, 9, 7], [0, 1, -1, 7]], requires_grad=True)
    stored = torch.tensor([[1.0, 0, NAN], [1, 1, 1]])  # short by one, and one missing
    loss = logit_distance(logits, stored)
    assert loss.item() == pytest.approx((0 + 4 + 1 + 0 + 4) / 5)
    loss.backward()
    assert logits.grad is not None
    expected = torch.tensor([[0, 4, 0, 0], [-2, 0, -4, 0]]) / 5
    assert torch.allclose(logits.grad, expected)
    assert logit_distance(logits, stored, "norm").item() == pytest.approx(9 / 2)
    assert logit_distance(logits, torch.full((2, 4), NAN)).item() == 0


def test_stored_half_precision_meets_logits_of_their_own_type():
    stored = torch.tensor([[1.0, 2.5]]).half()
    logits = torch.tensor([[0.0, 2.5]])
    assert logit_distance(logits, stored).dtype == torch.float32
    assert logit_distance(logits, stored).item() == 0.5
    assert padded(stored, 3).shape == (1, 3)
    assert padded(stored, 3)[0, 2].isnan()


# -- a step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["der", "derpp"])
def test_stored_logits_are_those_of_the_augmented_view_before_the_step(method):
    mine = learner(method, capacity=100, epochs=1, lr=0.1, optimizer="sgd", alpha=0.5)

    def augment(images):
        return to_float(images) * 0.5

    mine.tools.augment = augment
    before: dict[bytes, torch.Tensor] = {}
    real = mine.method.loss

    def loss(batch):
        with torch.no_grad():
            logits = mine.net(augment(batch.images))
        before.update({i.numpy().tobytes(): row for i, row in zip(batch.images, logits, strict=True)})
        return real(batch)

    mine.method.loss = loss
    mine.learn(task_of(np.arange(30) % 2))
    kept = mine.memory()
    assert len(kept["exemplars/bytes"]) == 30
    stored = kept["exemplars/logits"]
    expected = torch.stack([before[image.tobytes()] for image in kept["exemplars/bytes"].numpy()])
    assert torch.allclose(stored, expected, atol=1e-6)
    now = mine.net(augment(kept["exemplars/bytes"])).detach()
    assert (now - stored).abs().max() > 0.05
    assert {i.numpy().tobytes() for i in kept["exemplars/bytes"]} == set(before)  # un-augmented


def remembered(mine: Learner) -> dict[bytes, tuple[torch.Tensor, int]]:
    kept = mine.memory()
    return {image.tobytes(): (row, int(label)) for image, row, label in
            zip(kept["exemplars/bytes"].numpy(), kept["exemplars/logits"], kept["exemplars/labels"], strict=True)}


@pytest.mark.parametrize(("method", "distance"), [("der", "mean"), ("der", "norm"), ("derpp", "mean")])
def test_the_loss_is_that_of_the_paper_in_separate_passes(method, distance):
    flags = {"alpha": 0.7, "distance": distance, "offer": "first", "classes": 4, "full_head": True}
    mine = learner(method, **flags | ({"beta": 0.3} if method == "derpp" else {}))
    mine.learn(task_of([0, 1] * 9))
    begin(mine, task_of([2, 3] * 9, seed=1))
    seen: list[torch.Tensor] = []
    handle = mine.net.backbone.register_forward_pre_hook(lambda module, x: seen.append(x[0].detach().clone()))
    batch, loss = step(mine, [2, 3, 2])
    handle.remove()
    assert [len(x) for x in seen] == [3, 5] + [5] * (method == "derpp")
    memory = remembered(mine)
    found = [[memory[(image * 255).round().to(torch.uint8).numpy().tobytes()] for image in x] for x in seen[1:]]
    squares = (mine.net(seen[1]) - torch.stack([row for row, _ in found[0]])).square()
    expected = F.cross_entropy(mine.net(batch.x), batch.labels)
    expected = expected + 0.7 * (squares.mean() if distance == "mean" else squares.sum(1).mean())
    if method == "derpp":
        expected = expected + 0.3 * F.cross_entropy(mine.net(seen[2]), torch.tensor([y for _, y in found[1]]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("method", ["der", "derpp"])
def test_without_weights_it_is_fine_tuning(method):
    # All outputs from the start: the reservoir's draws would make other rows of a head that grows.
    flags = {"alpha": 0.0, "capacity": 8} | ({"beta": 0.0} if method == "derpp" else {})
    ends = []
    for name, own in ((method, flags), ("finetune", {})):
        mine = learner(name, steps=10, full_head=True, classes=4, **own)
        mine.learn(task_of([0, 1] * 9))
        mine.learn(task_of([2, 3] * 9, seed=1))
        ends.append(weights(mine))
    assert torch.equal(*ends)


def test_without_labels_der_plus_plus_is_der():
    ends = []
    for method, flags in (("derpp", {"beta": 0.0}), ("der", {})):
        mine = learner(method, alpha=0.4, capacity=9, **flags)
        mine.learn(task_of([0, 1] * 9))
        mine.learn(task_of([2, 3] * 9, seed=1))
        ends.append(weights(mine))
        assert mine.memory()["exemplars/seen"].tolist() == [72]
    assert torch.equal(*ends)


def test_the_two_draws_are_independent():
    mine = learner("derpp", capacity=50, replay_batch=5, epochs=1)
    mine.learn(task_of(np.arange(50) % 2))
    drawn: list[frozenset[int]] = []
    store, real = mine.method.memory.store, mine.method.memory.store.draw

    def draw(n):
        result = real(n)
        drawn.append(frozenset(result.slots.tolist()))
        return result

    store.draw = draw
    with torch.no_grad():
        for _ in range(2000):
            step(mine, [0, 1])
    assert len(drawn) == 4000
    assert sum(a == b for a, b in zip(drawn[::2], drawn[1::2], strict=True)) <= 1


def test_logits_change_only_with_their_slot():
    """Written once; what a later head adds is filled in beside it, and never written again."""
    mine = learner("der", capacity=12, epochs=3, lr=0.05)
    store = mine.method.memory.store
    written: set[int] = set()
    real = store.put

    def put(slots, *args, **columns):
        written.update(slots.tolist())
        real(slots, *args, **columns)

    store.put = put
    last: list[torch.Tensor] = []

    def after(done, of, loss):
        now = store.column("logits").clone()
        if last:
            for slot in set(range(len(last[0]))) - written:
                assert torch.equal(now[slot, : last[0].shape[1]], last[0][slot])
        last[:] = [now]
        written.clear()

    for number in range(3):
        mine.learn(task_of(np.arange(40) % 2 + 2 * number, seed=number), on_step=after)
    assert last[0].shape == (12, 6)
    assert not last[0].isnan().any()


# -- a head that grows ---------------------------------------------------------------------------------------


def test_new_outputs_are_masked_or_filled_with_what_they_give_untrained():
    for unseen in ("mask", "fill"):
        mine = learner("der", capacity=20, unseen=unseen)
        mine.learn(task_of([0, 1] * 20))
        old = mine.memory()["exemplars/logits"].clone()
        begin(mine, task_of([2, 3] * 20, seed=1))
        kept = mine.memory()
        if unseen == "mask":
            assert torch.equal(kept["exemplars/logits"], old)
            assert len(old[0]) == 2
        else:
            assert torch.equal(kept["exemplars/logits"][:, :2], old)
            fresh = mine.net(to_float(kept["exemplars/bytes"])).detach()
            assert torch.allclose(kept["exemplars/logits"][:, 2:], fresh[:, 2:], atol=1e-6)
        _, loss = step(mine, [2, 3])
        loss.backward()
        assert all(bool(p.grad.isfinite().all()) for p in mine.net.parameters() if p.grad is not None)


def test_what_fills_new_outputs_is_said_by_the_network_as_it_predicts():
    """With statistics of its own batch it would say something else, and move the running ones."""
    shape = (1, 8, 8)
    mine = small_learner("der", shape, capacity=8, logit_dtype="float32", backbone="convnet", width=3, norm="batch")
    mine.learn(task_of([0, 1] * 8, shape=shape))
    for name, statistic in mine.net.backbone.named_buffers():
        if name.endswith("running_mean"):
            statistic.add_(0.5)  # those of a batch are others
    running = [b.clone() for b in mine.net.backbone.buffers()]
    begin(mine, task_of([2, 3] * 8, seed=1, shape=shape))
    assert all(map(torch.equal, running, mine.net.backbone.buffers()))
    store = mine.method.memory.store
    with torch.no_grad():
        fresh, by_batch = mine.net.eval()(to_float(store.images)), mine.net.train()(to_float(store.images))
    assert torch.allclose(store.column("logits")[:, 2:], fresh[:, 2:], atol=1e-5)
    assert not torch.allclose(by_batch[:, 2:], fresh[:, 2:], atol=1e-2)  # or the mode would not matter


def test_a_masked_memory_holds_rows_of_every_length():
    mine = learner("derpp", capacity=30, unseen="mask", epochs=1)
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(20) % 2 + first, seed=first))
    kept = mine.memory()
    logits, labels = kept["exemplars/logits"], kept["exemplars/labels"].long()
    width = (~logits.isnan()).sum(1)
    assert width.tolist() == (labels // 2 * 2 + 2).tolist()
    assert set(width.tolist()) == {2, 4, 6}


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offer", "seen"), [("first", 20), ("every", 60)])
def test_offers_in_every_pass_or_in_the_first(offer, seen):
    mine = learner("der", capacity=8, epochs=3, offer=offer)
    mine.learn(task_of(np.arange(20) % 2))
    assert mine.memory()["exemplars/seen"].tolist() == [seen]


def test_with_a_number_a_class_the_memory_is_balanced():
    mine = learner("derpp", spc=4, epochs=2)
    for first in (0, 2):
        mine.learn(task_of(np.arange(30) % 2 + first, seed=first))
    assert mine.memory()["exemplars/labels"].bincount().tolist() == [4] * 4
    assert mine.memory()["exemplars/logits"].shape == (16, 4)


def test_half_precision_by_default_and_finite_whatever_the_logits_are():
    mine = learner("der", logit_dtype="float16", spc=4)
    assert configure({"method": "der"}).options.logit_dtype == "float16"
    mine.learn(task_of([0, 1] * 9))
    assert mine.memory()["exemplars/logits"].dtype == torch.float16
    entry = {e.name: e for e in mine.ledger().entries}["exemplars/logits"]
    assert entry.bytes == 8 * 2 * 2
    assert mine.method.rounded(torch.tensor([1e6, -1e6, 1.0])).tolist() == [65504, -65504, 1]


@pytest.mark.parametrize("flags", [{}, {"fill": "class"}, {"codec": "webp:10"}, {"full_head": True, "classes": 6}])
def test_a_budget_counts_the_logits_that_are_still_to_come(flags):
    mine = learner("derpp", budget=2000, epochs=1, **flags)
    for first in (0, 2, 4):
        mine.learn(task_of(np.arange(120) % 2 + first, seed=first))
        assert mine.ledger().total <= 2000
    counts = mine.memory()["exemplars/labels"].bincount()
    row = 4 * 6 + 1 + (16 if "codec" not in flags else 60)
    assert len(counts) == 6
    assert mine.ledger().total > 2000 - 5 * 96 - 6 * row - 24
    with pytest.raises(UserError, match="--budget"):
        learner("derpp", budget=500, **flags).learn(task_of(np.arange(12) % 6))


@pytest.mark.parametrize(("name", "method"), [("alpha", "der"), ("beta", "derpp")])
def test_negative_weights_are_refused(name, method):
    with pytest.raises(UserError, match=f"--{name} -1"):
        learner(method, **{name: -1.0})


# -- end to end ------------------------------------------------------------------------------------------------

DIGITS = {"backbone": "mlp", "epochs": 5, "lr": 0.01, "spc": 20, "images_per_class": 80, "threads": 1}


@pytest.mark.parametrize(("flags", "least"), [
    ({"method": "derpp"}, 55),
    ({"method": "der", "alpha": 1.0}, 30),
    ({"method": "der", "alpha": 1.0, "full_head": True}, 30),
])
def test_digits(flags, least, tmp_path):
    """Fine-tuning: 19."""
    result = run(configure(DIGITS | flags), tmp_path)
    assert least <= result.class_incremental.A_T
    assert result.task_incremental.A_T >= 85


SMALL = {"benchmark": "digits", "images_per_class": 16, "epochs": 2, "batch": 8, "replay_batch": 8, "threads": 1,
         "width": 12}


def test_one_class_a_task_of_two_images(tmp_path):
    flags = {"method": "derpp", "backbone": "mlp", "classes_per_task": 1, "images_per_class": 2, "spc": 1}
    result = run(configure(SMALL | flags), tmp_path)
    assert result.tasks == 10
