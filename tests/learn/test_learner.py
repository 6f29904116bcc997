"""One's own loop in ten lines, what goes wrong in it, and evaluation against a slow reference."""

import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import protocore
from protocore.data.benchmarks import open_stream
from protocore.data.images import ArrayImages, ImageSet
from protocore.data.stream import Stream, Task
from protocore.errors import SealError, UserError
from protocore.learn.evaluate import evaluate
from protocore.learn.learner import Learner
from protocore.runs.configure import configure

SMALL = {"backbone": "mlp", "width": 32, "threads": 1, "augment": "none"}


def make(shape=(1, 8, 8), **flags) -> Learner:
    return Learner.of(configure(SMALL | flags), shape)


def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return (data.images * 15.9).astype(np.uint8)[:, None], data.target


# -- use -------------------------------------------------------------------------------------------------------


def test_ten_lines():
    images, labels = digits()
    learner = Learner.of(configure(SMALL | {"method": "er", "spc": 20, "lr": 0.01, "epochs": 6}), (1, 8, 8))
    for classes in ([0, 1], [2, 3], [4, 5]):
        mine = np.isin(labels, classes)
        learner.learn(Task.from_arrays(images[mine][::2], labels[mine][::2]))
    test = np.isin(labels, range(6))
    found = learner.predict(images[test][1::2])
    assert (found == labels[test][1::2]).mean() > 0.85
    assert learner.classes_ == [0, 1, 2, 3, 4, 5]
    assert learner.tasks_ == 3


def test_learning_closes_the_task():
    images, labels = digits()
    task = Task.from_arrays(images[:40], labels[:40])
    learner = make(method="finetune", epochs=1)
    assert learner.learn(task) is learner
    assert task.closed
    with pytest.raises(SealError):
        learner.learn(task)


def test_predictions_are_the_best_scores_of_seen_classes_in_any_batch_size():
    images, labels = digits()
    learner = make(method="finetune", epochs=2)
    seen = np.isin(labels, [1, 4])
    learner.learn(Task.from_arrays(images[seen], labels[seen]))
    scores = learner.scores(images[:700])
    assert scores.shape == (700, 2)
    assert set(learner.predict(images).tolist()) == {1, 4}
    assert learner.predict(images[:700]).tolist() == [learner.classes_[k] for k in scores.argmax(1).tolist()]
    one_by_one = torch.cat([learner.scores(image[None]) for image in images[:20]])
    assert torch.allclose(one_by_one, scores[:20], atol=1e-5)
    few = learner.scores(images[:5])
    assert torch.equal(learner.scores(torch.from_numpy(images[:5])), few)
    assert torch.allclose(learner.scores(images[:5].astype(np.float32) / 255), few, atol=1e-5)
    assert learner.predict(images[:0]).shape == (0,)


def test_class_names_in_order_of_arrival():
    images, labels = digits()
    names = ["zero", "one", "two", "three"]
    learner = make(method="finetune", epochs=1)
    for classes in ([0, 1], [2, 3]):
        mine = np.isin(labels, classes)
        learner.learn(Task.from_arrays(images[mine], labels[mine], names))
        assert learner.classes_ == names[: classes[-1] + 1]


def test_the_same_seed_gives_the_same_learner_and_another_seed_another():
    images, labels = digits()

    def scores(seed):
        learner = make(method="er", spc=3, epochs=1, seed=seed, augment="crop1")
        learner.learn(Task.from_arrays(images[:100], labels[:100]))
        return learner.scores(images[:10]), learner.memory()

    (a, kept_a), (b, kept_b), (c, _) = scores(0), scores(0), scores(1)
    assert torch.equal(a, b)
    assert all(torch.equal(kept_a[k], kept_b[k]) for k in kept_a)
    assert not torch.equal(a, c)


# -- mistakes --------------------------------------------------------------------------------------------------


def test_wrong_shapes_are_named():
    images, labels = digits()
    learner = make(method="finetune", epochs=1)
    with pytest.raises(UserError, match="learned nothing"):
        learner.predict(images[:2])
    with pytest.raises(UserError, match=r"\(1, 4, 8\).*\(1, 8, 8\)"):
        learner.learn(Task.from_arrays(images[:10, :, :4].copy(), labels[:10]))
    assert learner.method.seen == []
    learner.learn(Task.from_arrays(images[:10], labels[:10]))
    for wrong in (images[0], images[:3, 0], images[:3, :, :4], np.repeat(images[:3], 3, axis=1)):
        with pytest.raises(UserError, match="images must have shape"):
            learner.predict(wrong)
    with pytest.raises(UserError, match="float"):
        learner.predict(images[:3].astype(np.int64))


@pytest.mark.parametrize(("images", "labels", "says"), [
    (np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], "images must be uint8"),
    (np.zeros((4, 1, 8, 8), np.float32), [0, 1, 0, 1], "images must be uint8"),
    (np.zeros((4, 1, 8, 8), np.uint8), [0, 1, 0], "4 labels"),
    (np.zeros((4, 1, 8, 8), np.uint8), [0, 1, [2], 1], r"\[2\]"),
    (np.zeros((0, 1, 8, 8), np.uint8), np.zeros(0, np.int64), "no images"),
])
def test_a_task_of_wrong_arrays_is_refused(images, labels, says):
    with pytest.raises(UserError, match=says):
        make(method="finetune", epochs=1).learn(Task.from_arrays(images, labels))


def test_a_learner_for_a_benchmark_by_its_name():
    learner = protocore.learner("er", "digits", spc=3, epochs=1, tasks=2, threads=1)
    stream = protocore.stream("digits", tasks=2)
    for task in stream:
        learner.learn(task)
    assert learner.classes_ == list("0123")
    assert learner.settings.benchmark == "digits"


# -- seconds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["mix", "codec"])
def test_a_picture_of_a_task_is_coded_once_and_not_remembered(space, monkeypatch):
    images, labels = digits()
    learner = make(method="er", spc=3, codec="vqgan:1", replay_space=space)
    decoder, coded = learner.tools.codec, []
    encode = decoder.encode
    monkeypatch.setattr(decoder, "encode", lambda x: coded.append(len(x)) or encode(x))
    for classes in ((0, 1), (2, 3)):
        rows = np.isin(labels, classes)
        learner.learn(Task.from_arrays(images[rows], labels[rows]))
    assert learner.predict(images[:0]).shape == (0,)
    # Equal pictures would be coded once, too: the digits have none.
    assert sum(coded) == int(np.isin(labels, (0, 1, 2, 3)).sum())
    assert learner.tools.codings._known == {}


def test_seconds_of_learning_leave_out_condensing_and_the_callers_own_work():
    images, labels = digits()
    learner = make(method="protocore", epochs=1, batch=50, condense_steps=5)
    task = Task.from_arrays(images[:100], labels[:100])

    def slow(what, done, of):
        time.sleep(0.05)

    begin = time.perf_counter()
    learner.learn(task, progress=slow, on_step=lambda done, of, loss: time.sleep(0.2))
    wall = time.perf_counter() - begin
    learn, condensing = learner.seconds["learn"], learner.tools.seconds["condense"]
    assert condensing > 0.25  # five steps, each told to `slow`
    assert 0 < learn < wall - 0.25 - 0.4
    assert learner.images_learned == 100


def test_images_learned_are_those_that_were_trained_on():
    images, labels = digits()
    learner = make(method="finetune", epochs=3, batch=32)
    learner.learn(Task.from_arrays(images[:70], labels[:70]))
    assert learner.images_learned == 210


# -- evaluation ------------------------------------------------------------------------------------------------


class Fixed:
    """A learner whose scores are a table looked up by the image's first two pixels."""

    makes_ready = False

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def scores(self, images: torch.Tensor, ready: bool = False) -> torch.Tensor:
        return self.table[images[:, 0, 0, 0].long() * 256 + images[:, 0, 0, 1].long()]


def numbered_stream(n: int, classes: int, per_task: int, order: str = "natural") -> Stream:
    images = np.zeros((n, 1, 2, 2), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(n) // 256, np.arange(n) % 256
    labels = np.random.default_rng(0).integers(0, classes, n)
    part = ImageSet(ArrayImages(images), labels, tuple(map(str, range(classes))), "none")
    return Stream(part, part, classes_per_task=per_task, order=order)


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("order", ["natural", "1993"])
def test_accuracies_against_a_loop_over_the_test_images(tasks, order):
    n, stream = 1500, numbered_stream(1500, 6, 2, order)
    torch.manual_seed(tasks)
    table = torch.randn(n, 6)
    table[:, 2 * tasks :] = float("-inf")  # not seen yet
    row = evaluate(Fixed(table), stream, tasks)  # type: ignore[arg-type]
    hits: dict[int, list[bool]] = {}
    for task in range(tasks):
        part = stream.tests[task]
        told = []
        for image, label in zip(part.rows.tolist(), part.labels.tolist(), strict=True):
            scores = table[image].tolist()
            hits.setdefault(label, []).append(scores.index(max(scores)) == label)
            among = {c: scores[c] for c in part.classes}
            told.append(max(among, key=lambda c: among[c]) == label)
        mine = [hit for c in part.classes for hit in hits[c]]
        assert len(mine) == len(told) > 400
        assert row.class_incremental[task] == pytest.approx(100 * sum(mine) / len(mine))
        assert row.task_incremental[task] == pytest.approx(100 * sum(told) / len(told))
    assert len(row.class_incremental) == len(row.task_incremental) == tasks
    assert row.per_class == pytest.approx({c: 100 * sum(hit) / len(hit) for c, hit in hits.items()})


def test_evaluating_a_learner_changes_nothing_and_agrees_with_predict():
    config = configure(SMALL | {"method": "er", "spc": 5, "epochs": 3, "lr": 0.01})
    stream = open_stream(config.settings)
    learner = Learner.of(config, stream.image_shape)
    for index in range(2):
        learner.learn(stream.open(index))
    before = {k: v.clone() for k, v in learner.net.state_dict().items()}
    chance = torch.get_rng_state()
    row = evaluate(learner, stream, 2)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(v, before[k]) for k, v in learner.net.state_dict().items())
    for accuracy, part in zip(row.class_incremental, stream.tests, strict=False):
        wanted = [stream.class_names[label] for label in part.labels]
        assert accuracy == pytest.approx(100 * learner.score(part.take(0, len(part.labels)), wanted))
    assert min(row.task_incremental) >= 80
