"""iCaRL: its loss and targets, herded exemplars, means of exemplars with the network of the moment."""


import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import begin, learner
from helpers import task_of as plain_task
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.learn.learner import Learner
from protocore.learn.loop import plan_for
from protocore.methods.base import Batch
from protocore.methods.icarl import ICaRL
from protocore.methods.parts.losses import icarl_loss, icarl_targets
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 4, 6)


def images_of(labels, seed: int = 0) -> np.ndarray:
    """Noise, lighter in columns of its own for every class."""
    labels = np.asarray(labels)
    images = np.random.default_rng(seed).integers(0, 120, (len(labels), *SHAPE))
    images[np.arange(len(labels)), 0, :, labels % 6] += 120
    return images.astype(np.uint8)


def task_of(labels, seed: int = 0) -> Task:
    return plain_task(labels, images=images_of(labels, seed))


def make(**flags) -> Learner:
    return learner("icarl", SHAPE, **{"width": 10, "batch": 8, "replay_batch": 6, "lr": 0.01} | flags)


def icarl(learner: Learner) -> ICaRL:
    assert isinstance(learner.method, ICaRL)
    return learner.method


def batch_of(learner: Learner, labels: list[int], seed: int = 5) -> Batch:
    images = torch.from_numpy(images_of(labels, seed))
    return Batch(images, learner.tools.view(images), torch.tensor(labels), torch.arange(len(labels)), first_pass=True)


def watch(learner: Learner) -> list[int]:
    """How many images go through the feature extractor in each forward pass."""
    seen: list[int] = []
    learner.net.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    return seen


def exemplars(learner: Learner, label: int) -> list[bytes]:
    store = icarl(learner).store
    return [image.tobytes() for image in store.images[store.slots_of(label)].numpy()]


# -- the loss ------------------------------------------------------------------------------------------------------


def test_the_worked_value():
    logits, targets = torch.tensor([[0.0, 1, -1, 2]]), torch.tensor([[0.7, 0.2, 0, 1]])
    assert icarl_loss(logits, targets).item() == pytest.approx(0.56165, abs=1e-5)
    each = [icarl_loss(logits[:, [i]], targets[:, [i]]).item() for i in range(4)]
    assert each == pytest.approx([0.69315, 1.11326, 0.31326, 0.12693], abs=1e-5)


def test_the_loss_is_a_mean_over_the_batch_and_all_outputs():
    logits, targets = torch.randn(5, 7), torch.rand(5, 7)
    p = logits.double().sigmoid()
    slow = -(targets * p.log() + (1 - targets) * (1 - p).log()).sum() / 35
    assert icarl_loss(logits, targets).item() == pytest.approx(slow.item(), rel=1e-6)


def test_targets_are_labels_for_new_classes_and_the_teacher_for_old_ones_exemplars_included():
    teacher = torch.tensor([[0.0, 2, 9, 9], [-1, 1, 9, 9]])
    targets = icarl_targets(torch.tensor([3, 1]), 4, torch.tensor([0, 1]), teacher)
    s = torch.sigmoid
    expected = torch.tensor([[0.5, s(torch.tensor(2.0)), 0, 1], [s(torch.tensor(-1.0)), s(torch.tensor(1.0)), 0, 0]])
    assert torch.allclose(targets, expected)
    assert icarl_targets(torch.tensor([1, 0]), 3, torch.tensor([]), None).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_the_gradient_of_old_logits_is_the_difference_of_sigmoids():
    logits, teacher = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5)
    icarl_loss(logits, icarl_targets(torch.tensor([4, 3, 4]), 5, torch.tensor([0, 1, 2]), teacher)).backward()
    assert logits.grad is not None
    expected = (logits.detach().sigmoid() - teacher.sigmoid()) / (3 * 5)
    assert torch.allclose(logits.grad[:, :3], expected[:, :3], atol=1e-7)


def test_at_the_beginning_of_a_task_old_outputs_have_no_gradient():
    """The network and its copy agree, on the same augmented views: were they other views, they would not."""
    learner = make(spc=3, augment="crop2,flip")
    learner.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8)
    begin(learner, task)
    method = icarl(learner)
    seen = watch(learner)
    method.loss(batch_of(learner, [2, 3, 2])).backward()
    bias = learner.net.head.bias
    assert bias is not None
    assert bias.grad is not None
    assert seen == [3 + 6]
    assert bias.grad[:2].tolist() == pytest.approx([0, 0], abs=1e-7)  # the two passes may round differently
    assert bool((bias.grad[2:].abs() > 1e-3).all())


def test_a_step_of_the_second_task_against_the_formula():
    learner = make(spc=3, replay_batch=0)
    learner.learn(task_of([0, 1] * 8))
    task = task_of([2, 3] * 8)
    begin(learner, task)
    old = learner.net.frozen_copy()
    with torch.no_grad():
        for p in learner.net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    batch = batch_of(learner, [2, 3, 3])
    z, g = learner.net(batch.x).detach().double(), old(batch.x).double()
    total = 0.0
    for row, label in enumerate([2, 3, 3]):
        for c in range(4):
            target = torch.sigmoid(g[row, c]) if c < 2 else torch.tensor(float(c == label))
            p = torch.sigmoid(z[row, c])
            total -= float(target * p.log() + (1 - target) * (1 - p).log())
    assert learner.method.loss(batch).item() == pytest.approx(total / 12, rel=1e-5)


def test_the_first_task_has_no_teacher_and_outputs_not_yet_seen_are_told_zero():
    learner = make(spc=2)
    learner.outputs = 6  # as with --full-head
    begin(learner, task_of([0, 1] * 4))
    batch = batch_of(learner, [1, 0])
    logits = learner.net(batch.x)
    expected = F.binary_cross_entropy_with_logits(logits, F.one_hot(torch.tensor([1, 0]), 6).float())
    assert learner.method.loss(batch).item() == pytest.approx(expected.item(), rel=1e-6)
    assert icarl(learner).previous.net is None


def test_the_copy_is_dropped_after_the_task_and_its_bytes_are_told():
    learner = make(spc=2)
    learner.learn(task_of([0] * 8))
    assert learner.method.held() == {}
    learner.learn(task_of([1] * 8))
    assert icarl(learner).previous.net is None
    assert list(learner.method.held().values()) == [sum(t.nbytes for t in learner.net.state_dict().values())]


@pytest.mark.parametrize(("mix", "expected"), [("batch", 6.0), ("share", 8 * 10 / 40)])
def test_how_many_exemplars_stand_beside_a_batch(mix, expected):
    learner = make(spc=5, mix=mix, replay_batch=6)
    learner.learn(task_of([0, 1] * 8))
    begin(learner, task_of([2, 3] * 20))
    counts = [icarl(learner).beside(8) for _ in range(50)]
    assert float(np.mean(counts)) == expected
    counts = [icarl(learner).beside(5) for _ in range(2000)]
    assert float(np.mean(counts)) == pytest.approx(6 if mix == "batch" else 5 * 10 / 40, abs=0.05)


# -- the exemplars ---------------------------------------------------------------------------------------------------


def slow_herding(features: Tensor, count: int) -> list[int]:
    phi, order = features.double().numpy(), []
    for k in range(1, count + 1):
        errors = {i: np.linalg.norm(phi.mean(0) - (phi[order].sum(0) + phi[i]) / k)
                  for i in range(len(phi)) if i not in order}
        order.append(min(errors, key=lambda i: errors[i]))
    return order


def test_exemplars_are_herded_on_normalised_features_of_images_as_they_are():
    learner = make(spc=4, augment="crop2", epochs=3)
    labels = [0, 1, 1] * 7
    learner.learn(task_of(labels))
    images = images_of(labels)
    with torch.no_grad():
        z = F.normalize(learner.net.eval().features(to_float(torch.from_numpy(images))), dim=1)
    for label in (0, 1):
        rows = np.flatnonzero(np.asarray(labels) == label)
        order = slow_herding(z[torch.from_numpy(rows)], 4)
        assert exemplars(learner, label) == [images[rows[i]].tobytes() for i in order]


def test_a_smaller_quota_keeps_the_first_of_each_list_and_the_total_stays_within_the_capacity():
    learner = make(capacity=13)
    lists: dict[int, list[bytes]] = {}
    for first, quota in ((0, 6), (2, 3), (4, 2)):
        learner.learn(task_of([first, first + 1] * 9, seed=first))
        for label in range(first + 2):
            now = exemplars(learner, label)
            assert len(now) == quota
            assert now == lists.setdefault(label, now)[:quota]
        assert len(icarl(learner).store) <= 13


def test_a_returning_class_is_herded_again_among_new_and_stored_images():
    learner = make(spc=3)
    learner.learn(task_of([0, 1] * 6))
    before = exemplars(learner, 1)
    learner.learn(task_of([0, 2] * 6, seed=1))
    assert exemplars(learner, 1) == before
    assert {len(exemplars(learner, c)) for c in range(3)} == {3}


def test_selecting_and_measuring_leave_the_network_as_it_was():
    learner = Learner.of(configure({"method": "icarl", "backbone": "convnet", "width": 8, "norm": "batch", "threads": 1,
                                 "spc": 2, "epochs": 1, "batch": 8, "augment": "none"}), (1, 8, 8))
    task = Task.from_arrays(np.random.default_rng(0).integers(0, 256, (16, 1, 8, 8), dtype=np.uint8), [0, 1] * 8)
    begin(learner, task)
    learner._fit(task, plan_for(task, learner.settings, 0), 0, None)
    before = {k: v.clone() for k, v in learner.net.state_dict().items()}
    learner.finish(task, None)
    learner.net.train()
    icarl(learner).means()
    assert learner.net.training
    assert all(torch.equal(v, before[k]) for k, v in learner.net.state_dict().items())
    task.close()


# -- prediction ------------------------------------------------------------------------------------------------------


def slow_scores(learner: Learner, x: Tensor, flip: bool) -> Tensor:
    """Minus squared distances, class by class and exemplar by exemplar."""
    store, columns = icarl(learner).store, []
    z = F.normalize(learner.net.features(x), dim=1)
    for label in store.classes.tolist():
        vectors = []
        for slot in store.slots_of(label).tolist():
            image = to_float(store.images[slot][None])
            vectors.append(F.normalize(learner.net.features(image), dim=1)[0])
            if flip:
                vectors.append(F.normalize(learner.net.features(image.flip(3)), dim=1)[0])
        mean = F.normalize(torch.stack(vectors).mean(0), dim=0)
        columns.append(-(z - mean).square().sum(1))
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize(("flip", "augment", "mirrored"), [
    ("auto", "none", False), ("auto", "crop1,flip", True), ("auto", "crop1, flip", True), ("on", "none", True),
    ("off", "flip", False)])
def test_scores_are_distances_to_the_means_of_the_exemplars(flip, augment, mirrored):
    learner = make(spc=4, flip=flip, augment=augment)
    learner.learn(task_of([0, 1] * 8))
    learner.learn(task_of([2, 3] * 8))
    x = to_float(torch.from_numpy(images_of([0, 1, 2, 3], seed=9)))
    with torch.no_grad():
        learner.net.eval()
        assert torch.allclose(learner.method.scores(x), slow_scores(learner, x, mirrored), atol=1e-5)
        assert not torch.allclose(learner.method.scores(x), slow_scores(learner, x, not mirrored), atol=1e-5)


def test_the_means_follow_the_network():
    learner = make(spc=4)
    learner.learn(task_of([0, 1] * 8))
    x = to_float(torch.from_numpy(images_of([0, 1, 0], seed=9)))
    learner.scores(x)
    with torch.no_grad():
        for p in learner.net.parameters():
            p.add_(torch.randn_like(p))
        learner.net.eval()
        assert torch.allclose(learner.method.scores(x), slow_scores(learner, x, False), atol=1e-5)


def test_predictions_do_not_depend_on_the_scale_of_features_or_the_order_of_exemplars():
    learner = make(spc=5)
    learner.learn(task_of([0, 1, 2] * 8))
    x = torch.from_numpy(images_of([0, 1, 2] * 20, seed=9))
    before = learner.predict(x)
    store, method = icarl(learner).store, icarl(learner)
    store.keep(torch.randperm(len(store)))
    method.cached = None
    assert np.array_equal(learner.predict(x), before)
    features = learner.net.features
    for scale in (1e-3, 50.0):
        learner.net.features = lambda x, scale=scale: scale * features(x)
        method.cached = None
        assert np.array_equal(learner.predict(x), before)


def test_means_are_computed_once_for_many_chunks_of_images():
    learner = make(spc=4)
    learner.learn(task_of([0, 1] * 8))
    seen = watch(learner)
    for _ in range(3):
        learner.scores(torch.from_numpy(images_of([0, 1], seed=9)))
    assert seen == [8, 2, 2, 2]


def test_inside_a_task_a_class_without_exemplars_stands_by_its_images_seen_so_far():
    learner = make(spc=4)
    task = task_of([0] * 6 + [1] * 6)
    begin(learner, task)
    method, x = icarl(learner), to_float(torch.from_numpy(images_of([0, 1], seed=9)))
    learner.net.eval()
    assert torch.equal(method.scores(x), learner.net(x))  # nothing seen, nothing kept: the outputs
    rows = torch.tensor([0, 1, 7])
    method.after_step(Batch(task.take(rows), x, task.labels_of(rows), rows, first_pass=True))
    images = to_float(task.take(torch.arange(len(task))))
    z = F.normalize(learner.net.features(images), dim=1)
    means = F.normalize(torch.stack([z[:2].mean(0), z[7]]), dim=1)
    expected = -(F.normalize(learner.net.features(x), dim=1)[:, None] - means).square().sum(2)
    assert torch.allclose(method.scores(x), expected, atol=1e-5)
    del images
    learner.finish(task, None)
    task.close()
    assert method.task is None


# -- streams in which classes return -----------------------------------------------------------------------------


def test_visitors_with_few_images_are_held_like_old_classes():
    learner = make(spc=3)
    learner.learn(task_of([0, 1] * 8))
    begin(learner, task_of([2, 3] * 8 + [0]))
    assert icarl(learner).taught() == [0, 1]
    learner = make(spc=3)
    learner.learn(task_of([0, 1] * 8))
    begin(learner, task_of([1, 2] * 8))
    assert icarl(learner).taught() == [0]


def test_a_task_of_one_class_with_two_images():
    learner = make(spc=5)
    for label in range(3):
        learner.learn(task_of([label] * 2, seed=label))
    assert icarl(learner).store.counts() == {0: 2, 1: 2, 2: 2}
    assert learner.scores(torch.from_numpy(images_of([0, 1]))).shape == (2, 3)


# -- whole runs --------------------------------------------------------------------------------------------------

SMALL = {"method": "icarl", "images_per_class": 16, "epochs": 2, "batch": 8, "replay_batch": 8, "threads": 1,
         "backbone": "mlp", "width": 12, "spc": 3}


def test_digits_end_to_end(tmp_path):
    """Fine-tuning ends at about 19 %."""
    flags = {"method": "icarl", "spc": 20, "epochs": 5, "lr": 0.003, "backbone": "mlp", "images_per_class": 100}
    result = run(configure(flags | {"threads": 1}), tmp_path)
    assert result.class_incremental.A_T >= 70
    assert result.task_incremental.A_T >= 90
