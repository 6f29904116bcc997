"""What every method must do: run in every setting that it says it fits, keep to its budget, count its bytes."""

import pytest
import torch

from helpers import begin, task_of
from helpers import learner as small_learner
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import BudgetError
from protocore.learn.learner import Learner
from protocore.methods import METHODS, bytes_a_class
from protocore.methods.base import Batch
from protocore.runs.configure import configure
from protocore.runs.job import run

# Options that make a method's selection short; what they mean is tested with each method.
SHORT = {
    "csrel": {"ref_epochs": 1, "selection_steps": 2, "proxy_steps": 2},
    "pbcs": {"outer_steps": 3, "inner_steps": 3},
    "onpro": {"variants": 1},
}
SMALL = {"benchmark": "digits", "images_per_class": 10, "epochs": 1, "tasks": 2, "threads": 1, "backbone": "mlp",
         "width": 12, "batch": 8, "replay_batch": 8}
NAMES = sorted(METHODS)


def config_of(name: str, **flags):
    return configure(SMALL | {"method": name} | SHORT.get(name, {}) | flags)


@pytest.mark.parametrize("name", NAMES)
def test_its_memory_file_is_as_long_as_its_ledger_says(name, tmp_path):
    result = run(config_of(name), tmp_path)
    assert (tmp_path / "memory.safetensors").stat().st_size == result.bytes_kept
    assert (tmp_path / "memory.pack").stat().st_size > 0
    for row, free in zip(result.task_incremental.R, result.class_incremental.R, strict=True):
        assert all(a >= b for a, b in zip(row, free, strict=True))


@pytest.mark.parametrize("name", [n for n in NAMES if "online" in METHODS[n].fits and not METHODS[n].sees_everything])
def test_it_learns_online_from_a_blurry_stream(name, tmp_path):
    flags = {"online": True, "online_window": 24, "epochs": None, "blurry": 20 if "blurry" in METHODS[name].fits else 0}
    if METHODS[name].replays:
        flags["spc"] = 2
    result = run(config_of(name, **{k: v for k, v in flags.items() if v is not None}), tmp_path)
    assert len(result.class_incremental.R) == 2


@pytest.mark.parametrize("name", [n for n in NAMES if METHODS[n].replays])
@pytest.mark.parametrize("codec", ["pixels", "vqgan:1", "webp:10"])
def test_a_budget_holds_and_one_that_is_too_small_is_an_error_before_training(name, codec, tmp_path):
    result = run(config_of(name, budget=3000, codec=codec, spc=None), tmp_path / "enough")
    assert result.bytes_kept <= 3000
    assert max(result.bytes_after_each_task) <= 3000
    steps = []
    learner = Learner.of(config_of(name, budget=150, codec=codec, spc=None), (1, 8, 8))
    task = Task.from_arrays(torch.randint(0, 255, (8, 1, 8, 8), dtype=torch.uint8), torch.arange(8) % 2)
    with pytest.raises(BudgetError, match="--budget"):
        learner.learn(task, on_step=lambda *_: steps.append(1))
    assert not steps


@pytest.mark.parametrize("name", [n for n in NAMES if n != "joint"])
def test_tasks_of_one_class_and_two_images_and_a_class_that_returns(name):
    flags = {"spc": 3} if METHODS[name].replays else {}
    learner = Learner.of(config_of(name, **flags), (1, 8, 8))
    for labels in ([0, 0], [2, 2, 1, 1], [0, 2, 3, 3]):
        images = torch.randint(0, 255, (len(labels), 1, 8, 8), dtype=torch.uint8)
        learner.learn(Task.from_arrays(images, torch.tensor(labels)))
    scores = learner.scores(torch.randint(0, 255, (5, 1, 8, 8), dtype=torch.uint8))
    assert scores.shape == (5, 4)
    assert not scores.isnan().any()
    for store in learner.method.stores():
        assert all(count <= 3 for count in store.counts().values())


@pytest.mark.parametrize(("name", "flags"), [
    ("protocore", {"codec": "vqgan:4"}), ("protocore", {"codec": "webp"}), ("protocore", {"codec": "webp", "real": 2}),
    ("derpp", {"codec": "webp"}), ("derpp", {"codec": "webp", "replay_space": "raw"}), ("icarl", {"codec": "vqgan:2"}),
    ("er", {"codec": "webp", "budget": 3000, "spc": None, "replay_space": "codec"}),
])
def test_a_picture_is_coded_once(name, flags, monkeypatch):
    learner = Learner.of(config_of(name, **{"epochs": 2, "spc": 2} | flags), (1, 8, 8))
    codec, coded = learner.tools.codec, []
    encode = codec.encode
    monkeypatch.setattr(codec, "encode", lambda images: coded.append(len(images)) or encode(images))
    for first in (0, 2):
        coded.clear()
        images = torch.randint(0, 255, (40, 1, 8, 8), dtype=torch.uint8)
        learner.learn(task_of(torch.arange(40) % 2 + first, images=images.numpy()))
        assert sum(coded) <= 40
        assert learner.tools.space == "raw" or sum(coded) == 40


@pytest.mark.parametrize(("name", "flags", "count"), [
    ("bcsr", {}, 5), ("csrel", {}, 5), ("csrel", {"online": True}, 10), ("der", {}, 5), ("derpp", {}, 10),
    ("er", {}, 5), ("er", {"current": "masked"}, 5), ("icarl", {}, 5), ("ocs", {}, 5), ("onpro", {}, 5),
    ("pbcs", {}, 5), ("rm", {}, 5),
    ("protocore", {"real": 2}, 3),  # beside two condensed ones, which have transforms of their own
])
def test_what_is_replayed_is_augmented_as_current_pictures_are(name, flags, count, monkeypatch):
    mine = small_learner(name, **SHORT.get(name, {}) | flags)
    mine.learn(task_of([0, 1] * 6))
    task, rows = task_of([2, 3] * 6, seed=1), torch.arange(6)
    begin(mine, task)
    images, losses = task.take(rows), []
    for light in (1.0, 0.0):
        seen = []
        monkeypatch.setattr(mine.tools, "augment",
                            lambda x, light=light, seen=seen: seen.append(len(x)) or light * to_float(x))
        torch.manual_seed(3)
        batch = Batch(images, to_float(images), task.labels_of(rows), rows, first_pass=True)
        losses.append(mine.method.loss(batch).item())
        assert sum(seen) == count
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_list_says_of_it(name):
    method = METHODS[name]
    assert method.paper
    assert (method.__doc__ or "").strip()
    assert method.checks
    assert set(method.fits) <= {"offline", "online", "blurry"}


@pytest.mark.parametrize("name", ["er", "derpp", "icarl", "ewc", "fecam", "pass", "ldc", "protocore"])
def test_the_bytes_a_class_that_list_shows_are_those_of_cifar100(name):
    """One task of all hundred classes, so short that only what is kept is right; 1 % for headers."""
    flags = {"method": name, "benchmark": "cifar100-10", "preset": "cpu", "threads": 1, "steps": 8, "batch": 250,
             "replay_batch": 0, "memory_format": "contiguous"}
    flags |= SHORT.get(name, {}) | ({"spc": 20} if name in ("er", "derpp", "icarl") else {})
    learner = Learner.of(configure(flags), (3, 32, 32), classes=100)
    labels = torch.arange(100).repeat_interleave(20)
    learner.learn(Task.from_arrays(torch.randint(0, 255, (2000, 3, 32, 32), dtype=torch.uint8), labels))
    assert learner.ledger().total / 100 == pytest.approx(bytes_a_class(METHODS[name]), rel=0.01)
