"""`--weights FILE`: a network that was trained before, from a learner's file or from a state by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import protocore
from protocore.backbones import build_network
from protocore.errors import DataError, UserError
from protocore.files import serialise, write_atomic
from protocore.learn.learner import Learner
from protocore.learn.weights import read_weights
from protocore.runs.configure import configure

SMALL: dict[str, Any] = {"threads": 1, "epochs": 3, "batch": 16}


def digits(classes: tuple[int, ...], each: int = 20) -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    rows = np.concatenate([np.flatnonzero(data.target == c)[:each] for c in classes])
    return (data.images[rows, None] * 15).astype(np.uint8), data.target[rows]


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The file of a learner with a network of its own settings."""
    one = Learner("finetune", (1, 8, 8), backbone="convnet", width=12, norm="batch", mean=[0.3], std=[0.4], **SMALL)
    one.partial_fit(*digits((0, 1, 2, 3))).save(tmp_path / "first.learner")
    return tmp_path / "first.learner"


def test_a_learners_network_is_the_front_of_another(trained: Path) -> None:
    first = Learner.load(trained)
    second = Learner("fecam", (1, 8, 8), weights=str(trained), **SMALL)
    assert second.front is not None
    assert (second.settings.backbone, second.settings.width, second.settings.norm) == ("convnet", 12, "batch")
    x = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        wanted = first.net.eval().features(x)
        torch.testing.assert_close(second.front.net.features(x), wanted, atol=1e-4, rtol=1e-4)  # its mean and std too
    assert second.weights == read_weights(trained).digest
    images, labels = digits((4, 5))
    second.partial_fit(images, labels)
    assert second.score(images, labels) > 0.8


def test_they_may_be_trained_on(trained: Path) -> None:
    first, second = Learner.load(trained), Learner("er", (1, 8, 8), weights=str(trained), freeze="none", spc=2, **SMALL)
    assert second.front is None
    state = second.net.backbone.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.net.backbone.state_dict().items())
    assert second.net.classes == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_state_by_itself(whole: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = build_network("convnet", (1, 8, 8), width=12, mean=[0.2], std=[0.5])
    net.grow(3)
    write_atomic(tmp_path / "x.safetensors", serialise((net if whole else net.backbone).state_dict()))
    one = Learner("fecam", (1, 8, 8), backbone="convnet", width=12, weights=str(tmp_path / "x.safetensors"), **SMALL)
    assert one.front is not None
    taken = one.front.net.backbone.state_dict()
    assert all(torch.equal(value, taken[name]) for name, value in net.backbone.state_dict().items())
    assert float(one.front.net.mean) == pytest.approx(0.2 if whole else 0.0)


def test_a_loaded_learner_does_not_look_for_them(trained: Path, tmp_path: Path) -> None:
    images, labels = digits((4, 5))
    one = Learner("fecam", (1, 8, 8), weights=str(trained), **SMALL).partial_fit(images, labels)
    one.save(tmp_path / "second.learner")
    trained.unlink()
    again = Learner.load(tmp_path / "second.learner")
    assert torch.equal(again.scores(images), one.scores(images))
    assert again.weights == one.weights
    with pytest.raises(DataError, match="no such file"):
        Learner("fecam", (1, 8, 8), weights=str(trained), **SMALL)
    with pytest.raises(DataError, match=r"was frozen, .*backbone=convnet in its place|was frozen, .*backbone convnet"):
        Learner("fecam", (1, 8, 8), weights=str(tmp_path / "second.learner"), **SMALL)


def test_other_networks_and_pictures_are_told(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"first.learner: not weights of this network \(.*size mismatch"):
        Learner("fecam", (3, 8, 8), weights=str(trained), **SMALL)
    with pytest.raises(DataError, match="not weights of this network"):
        Learner("fecam", (1, 8, 8), backbone="resnet18", weights=str(trained), **SMALL)
    (tmp_path / "damaged.safetensors").write_bytes(trained.read_bytes()[:1000])
    with pytest.raises(DataError, match="not a readable safetensors file"):
        Learner("fecam", (1, 8, 8), weights=str(tmp_path / "damaged.safetensors"), **SMALL)


def test_a_run_says_which_weights_and_does_not_take_the_result_of_others(trained: Path, tmp_path: Path) -> None:
    flags = {"weights": str(trained), "tasks": 2, "images_per_class": 10, "quiet": True, "runs": tmp_path / "runs"}
    result = protocore.run("fecam", "digits", **flags)
    assert result.weights == read_weights(trained).digest
    assert "--weights" in result.command
    assert protocore.run("fecam", "digits", **flags) == result
    other = Learner("finetune", (1, 8, 8), backbone="convnet", width=12, norm="batch", seed=1, **SMALL)
    other.partial_fit(*digits((0, 1))).save(trained)
    with pytest.raises(UserError, match="the result of other weights"):
        protocore.run("fecam", "digits", **flags)
    assert protocore.run("fecam", "digits", **flags, again=True).weights != result.weights


def test_flags_win_over_what_the_file_says(trained: Path) -> None:
    config = configure({"weights": str(trained), "width": 20})
    assert (config.settings.width, config.settings.norm, config.settings.augment) == (20, "batch", "none")
    assert config.sources["norm"] == f"weights {trained}"
    assert configure({"weights": str(trained), "freeze": "none"}).settings.augment == "crop1"
