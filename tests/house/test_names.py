"""Classes keep their names: from folders through a stream, a task and a learner into errors; and counts are words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protocore
from protocore.config import plural
from protocore.data.stream import Task
from protocore.errors import UserError

SMALL = {"backbone": "mlp", "width": 16, "threads": 1, "epochs": 1}


def signs(folder: Path, pictures: int = 12) -> str:
    rng = np.random.default_rng(0)
    for name in ("give way", "no entry", "stop", "yield"):
        (folder / name).mkdir(parents=True)
        for i in range(pictures):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(folder / name / f"{i}.png")
    return f"folder:{folder}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))


def test_a_learner_takes_the_names_of_a_folders_classes_from_its_tasks(tmp_path: Path) -> None:
    stream = protocore.stream(signs(tmp_path / "signs"), image_size=16)
    learner = protocore.learner("finetune", stream, **SMALL)
    for task in stream:
        learner.learn(task)
    assert learner.classes_ == ["give way", "no entry", "stop", "yield"]


def test_names_of_ones_own_arrays() -> None:
    images = np.zeros((4, 1, 8, 8), np.uint8)
    learner = protocore.Learner("finetune", (1, 8, 8), **SMALL)
    learner.learn(Task.from_arrays(images, [0, 0, 1, 1], class_names=["cat", "dog"]))
    assert learner.classes_ == ["cat", "dog"]
    with pytest.raises(UserError, match="label 2 has no name: class_names holds 1 name"):
        Task.from_arrays(images, [0, 0, 1, 2], class_names=["cat"])


def test_an_error_says_the_name_of_the_class(tmp_path: Path) -> None:
    stream = protocore.stream(signs(tmp_path / "signs"), image_size=16, images_per_class=3)
    learner = protocore.learner("protocore", stream, codec="vqgan:1", exemplars="synthetic", spc=1, **SMALL)
    with pytest.raises(UserError, match="class 'give way' comes with 3 samples"):
        learner.learn(stream.open(0))


def test_one_of_a_thing_is_not_a_plural() -> None:
    assert [plural(n, "class") for n in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
    assert [plural(n, "picture") for n in (1, 1000)] == ["1 picture", "1,000 pictures"]
