"""A frozen network in front of a learner: features made once, learned as bytes, kept in the learner's file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import protocore
from protocore import backbones
from protocore.backbones import BackboneInfo
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Task
from protocore.errors import DataError, SealError, UserError
from protocore.learn.evaluate import evaluate
from protocore.learn.features_kept import KeptFeatures
from protocore.learn.files import read_checkpoint
from protocore.learn.front import HEADROOM, Front
from protocore.learn.learner import Learner
from protocore.methods import METHODS
from protocore.runs.configure import configure
from protocore.runs.job import Interrupted, learner_for
from protocore.runs.job import run as run_config

DIM = 24
SMALL: dict[str, Any] = {"backbone": "trained", "threads": 1, "epochs": 2, "batch": 16, "seed": 3}


def filters(shape: tuple[int, int, int], width: int | None, norm: str | None) -> nn.Module:
    """What stands for a trained network: filters that are the same at every start."""
    generator = torch.Generator().manual_seed(5)
    conv = nn.Conv2d(shape[0], DIM, 3, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=generator))
    return nn.Sequential(conv, nn.BatchNorm2d(DIM), nn.ReLU())


def blank(shape: tuple[int, int, int], width: int | None, norm: str | None) -> nn.Module:
    net = filters(shape, width, norm)
    for p in net.parameters():
        p.data.zero_()
    return net


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones.BACKBONES, "_things", dict(backbones.BACKBONES._things))
    backbones.BACKBONES.register("trained", BackboneInfo(blank, "of these tests", filters))


def digits(classes: tuple[int, ...], each: int = 20, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    rows = np.concatenate([np.flatnonzero(data.target == c)[start : start + each] for c in classes])
    return (data.images[rows, None] * 15).astype(np.uint8), data.target[rows]


def learner(method: str = "fecam", **settings: Any) -> Learner:
    return Learner(method, (1, 8, 8), **(SMALL | settings))


def seen(one: Learner, images: np.ndarray) -> Tensor:
    """Features of pictures, by the network as it was given."""
    net = filters((1, 8, 8), None, None).eval()
    with torch.no_grad():
        return net(torch.from_numpy(images).float() / 255).mean((2, 3))


# -- the module --------------------------------------------------------------------------------------------------------


def test_features_become_roots_between_0_and_1_by_one_scale() -> None:
    one = learner()
    images, labels = digits((0, 1))
    one.partial_fit(images, labels)
    front, z = one.front, seen(one, images)
    assert isinstance(front, Front)
    assert front.shape == (DIM, 1, 1)
    top = float(z.max()) ** 0.5 * HEADROOM
    assert float(front.high) == pytest.approx(top, rel=1e-5)
    assert float(front.low) == 0
    with torch.no_grad():
        made = front(torch.from_numpy(images).float() / 255)
    assert made.shape == (40, DIM, 1, 1)
    torch.testing.assert_close(made.flatten(1), z.sqrt() / top, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one.net.features(made), z.sqrt(), atol=1e-4, rtol=1e-4)  # the scale undone
    later, _ = digits((2, 3))
    one.partial_fit(later, ["a"] * 20 + ["b"] * 20)
    assert float(front.high) == pytest.approx(top, rel=1e-5)  # for good


def test_signed_features_lie_around_a_half() -> None:
    front = Front(backbones.build_network(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), (1, 8, 8)))
    assert not front.fixed
    front.fix(torch.tensor([[-4.0, 1.0], [2.0, 0.5]]))
    low, high = float(front.low), float(front.high)
    assert (low, high) == (-4 * HEADROOM, 4 * HEADROOM)
    assert front.scaled(torch.tensor([[0.0, 100.0, -100.0]])).flatten().tolist() == [0.5, 1.0, 0.0]
    x = torch.rand(3, 1, 8, 8)
    z = front.net.features(x)
    with torch.no_grad():
        torch.testing.assert_close(front(x).flatten(1) * (high - low) + low, z.sign() * z.abs().sqrt())
    front.train()
    assert not front.net.training


# -- in a learner ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_features(method: str, tmp_path: Path) -> None:
    flags = SMALL | {"method": method, "benchmark": "digits", "tasks": 2, "images_per_class": 12}
    if METHODS[method].replays:
        flags["spc"] = 3
    if method == "pbcs":
        flags |= {"outer_steps": 5, "inner_steps": 3, "draws": 2}
    config = configure(flags)
    result = run_config(config, tmp_path / "run")
    rows = {e.name: e for e in result.ledger.entries}
    assert rows["network"].kind == rows["head"].kind == "network"
    assert rows["network"].shared
    assert rows["network"].bytes > 4 * 9 * DIM
    assert result.ledger.total == (tmp_path / "run" / "memory.safetensors").stat().st_size
    exemplars = [e for e in result.ledger.entries if e.name.endswith("/bytes")]
    assert all(e.bytes == e.rows * DIM for e in exemplars)
    assert len(exemplars) == METHODS[method].replays or method == "protocore"


def test_features_are_kept_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = SMALL | {"benchmark": "digits", "tasks": 2, "images_per_class": 12}
    plain = run_config(configure(flags | {"method": "ncm"}), tmp_path / "plain")
    monkeypatch.setenv("PROTOCORE_FEATURES", str(tmp_path / "features"))
    roots = Front.roots
    monkeypatch.setattr(Front, "roots", lambda front, x: time.sleep(0.2) or roots(front, x))
    first = run_config(configure(flags | {"method": "ncm"}), tmp_path / "first")
    files = sorted((tmp_path / "features").iterdir())
    assert files
    passed: list[int] = []
    monkeypatch.setattr(Front, "roots", lambda front, x: passed.append(len(x)) or roots(front, x))
    again = run_config(configure(flags | {"method": "ncm"}), tmp_path / "again")
    run_config(configure(flags | {"method": "slda"}), tmp_path / "slda")
    assert not passed
    assert plain.class_incremental == first.class_incremental == again.class_incremental
    memories = {(tmp_path / name / "memory.safetensors").read_bytes() for name in ("plain", "first", "again")}
    assert len(memories) == 1
    assert again.seconds["features"] > 0.4  # those of two tasks, when they were made

    files[0].write_bytes(files[0].read_bytes()[:-1] + b"\xff")  # damaged: made anew
    files[1].unlink()
    run_config(configure(flags | {"method": "ncm"}), tmp_path / "damaged")
    assert len(passed) == 2
    assert (tmp_path / "damaged" / "memory.safetensors").read_bytes() in memories
    passed.clear()
    run_config(configure(flags | {"method": "ncm", "seed": 4}), tmp_path / "other")
    assert not passed  # the network is the same whatever the seed


def test_the_seconds_of_kept_features_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    of = KeptFeatures.of

    def slow(self: KeptFeatures, images: Tensor, make: Any) -> Tensor:
        calls.append(len(images))
        self.spared += 1000
        return of(self, images, make)

    monkeypatch.setattr(KeptFeatures, "of", slow)
    one = learner("ncm")
    one.keep_features(tmp_path)
    for classes in ((0, 1), (2, 3), (4, 5)):
        one.partial_fit(*digits(classes))
    assert sum(calls) == 120
    assert 0 < one.seconds["features"] - 1000 * len(calls) < 500


def test_a_picture_goes_through_the_front_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(SMALL | {"method": "er", "spc": 3, "tasks": 3, "epochs": 4})
    stream = open_stream(config.settings)
    one = learner_for(config, stream)
    assert one.front is not None
    passed: list[int] = []
    roots = one.front.roots
    monkeypatch.setattr(one.front, "roots", lambda x: passed.append(len(x)) or roots(x))
    kept: dict[int, Tensor] = {}
    for index in range(3):
        one.learn(stream.open(index))
        evaluate(one, stream, index + 1, kept)
    assert sum(passed) == sum(stream.task_size(i) + len(stream.tests[i].labels) for i in range(3))


def test_predictions_are_of_features_that_are_not_rounded_and_of_kept_ones_alike() -> None:
    one = learner("er", spc=4)
    images, labels = digits((0, 1, 2))
    one.partial_fit(images, labels)
    assert one.front is not None
    ready = one.ready(images)
    assert ready.dtype == torch.float32
    assert float((ready * 255 - (ready * 255).round()).abs().max()) > 0.1
    assert torch.equal(one.scores(ready, ready=True), one.scores(images))
    with torch.no_grad():
        whole = nn.Sequential(one.front, one.predictor())(torch.from_numpy(images).float() / 255)
    torch.testing.assert_close(whole, one.scores(images), atol=1e-4, rtol=1e-4)
    assert torch.allclose(one.scores(torch.from_numpy(images).float() / 255), one.scores(images), atol=1e-4)
    assert one.predict(images[:0]).shape == (0,)


def test_what_is_learned_are_the_features_as_bytes() -> None:
    one = learner("er", spc=20)
    images, labels = digits((0, 1), each=6)
    one.partial_fit(images, labels)
    (store,) = one.method.stores()
    wanted = (one.ready(images) * 255).round().to(torch.uint8).flatten(1)
    assert sorted(store.images.flatten(1).tolist()) == sorted(wanted.tolist())


def test_pictures_are_let_go_before_the_training() -> None:
    one = learner("er", spc=2)
    images, labels = digits((0, 1))
    task = Task.from_arrays(images, labels)
    closed: list[bool] = []
    one.learn(task, on_step=lambda done, of, loss: closed.append(task.closed))
    assert all(closed)
    assert closed
    with pytest.raises(SealError):
        task.take(torch.arange(2))


def test_only_the_head_is_trained_and_the_front_never_changes() -> None:
    one = learner("finetune")
    assert one.front is not None
    before = {k: v.clone() for k, v in one.front.net.state_dict().items()}
    images, labels = digits((0, 1))
    one.partial_fit(images, labels)
    assert all(torch.equal(v, before[k]) for k, v in one.front.net.state_dict().items())
    assert [name for name, p in one.net.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


def test_nothing_learned_yet_is_told() -> None:
    with pytest.raises(UserError, match="learned nothing yet"):
        learner().predict(digits((0,))[0])


def test_it_tells_how_far_the_features_are() -> None:
    told: list[tuple[str, int, int]] = []
    images, labels = digits((0, 1))
    learner("fecam").learn(Task.from_arrays(images, labels), progress=lambda *what: told.append(what))
    assert ("features", 40, 40) in told


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_needs_nothing_of_where_the_weights_came_from(tmp_path: Path) -> None:
    images, labels = digits((0, 1, 2))
    one = learner("protocore", budget="2KB", seed=1)
    one.partial_fit(images, labels).save(tmp_path / "mine.learner")

    def gone(*_: object) -> nn.Module:
        raise UserError("the package is not installed")

    backbones.BACKBONES.register("trained", BackboneInfo(blank, "of these tests", gone), replace=True)
    with pytest.raises(UserError, match="not installed"):
        learner()
    again = Learner.load(tmp_path / "mine.learner")
    assert torch.equal(again.scores(images), one.scores(images))
    one.restore(tmp_path / "mine.learner")  # with the generator of that moment
    more, names = digits((3, 4))
    wanted = one.partial_fit(more, names).scores(images)
    again = Learner.load(tmp_path / "mine.learner")
    assert torch.equal(again.partial_fit(more, names).scores(images), wanted)


def test_a_damaged_front_is_refused(tmp_path: Path) -> None:
    one = learner("fecam")
    one.partial_fit(*digits((0, 1))).save(tmp_path / "mine.learner")
    parts = read_checkpoint(tmp_path / "mine.learner")
    assert parts.part("front").keys() == one.front.state_dict().keys()  # type: ignore[union-attr]
    other = learner("fecam", freeze="none")
    other.partial_fit(*digits((0, 1))).save(tmp_path / "other.learner")
    with pytest.raises(DataError, match="freeze"):
        one.restore(tmp_path / "other.learner")


@pytest.mark.parametrize("more", [{"method": "er", "spc": 3}, {"method": "er", "spc": 3, "online": True},
                                  {"method": "joint"}, {"method": "protocore", "spc": 1}], ids=str)
def test_a_killed_run_goes_on_bit_for_bit(more: dict[str, Any], tmp_path: Path) -> None:
    config = configure(SMALL | {"tasks": 2, "images_per_class": 20, "epochs": 2, "online_window": 48} | more)
    whole = run_config(config, tmp_path / "whole")
    times = 0
    while True:  # stopped again and again, a step further each time
        times, asked = times + 1, iter(range(times + 1))
        try:
            broken = run_config(config, tmp_path / "broken", stop=lambda asked=asked: next(asked, None) is None)
            break
        except Interrupted:
            pass
    assert times > 2
    assert broken.class_incremental == whole.class_incremental
    assert broken.files["memory.safetensors"] == whole.files["memory.safetensors"]
    ends = [read_checkpoint(tmp_path / run / "learner.safetensors").tensors for run in ("broken", "whole")]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


# -- freeze ------------------------------------------------------------------------------------------------------------


def test_auto_freezes_what_was_trained_before_and_nothing_else() -> None:
    assert learner().front is not None
    assert learner(freeze="none").front is None
    plain = Learner("er", (1, 8, 8), spc=2, threads=1)
    assert plain.front is None
    own = Learner("fecam", (1, 8, 8), backbone=filters((1, 8, 8), None, None), freeze="all", threads=1)
    assert own.front is not None
    assert Learner("er", (1, 8, 8), spc=2, backbone=filters((1, 8, 8), None, None), threads=1).front is None


def test_the_first_stages_stay_and_the_rest_is_trained() -> None:
    one = Learner("er", (1, 8, 8), backbone="convnet", norm="batch", width=8, freeze="2", spc=3, epochs=2, threads=1)
    assert one.front is None
    before = {k: v.clone() for k, v in one.net.state_dict().items()}
    one.partial_fit(*digits((0, 1)))
    moved = {k.split(".")[2] for k, v in one.net.state_dict().items()
             if k.startswith("backbone") and not torch.equal(v, before[k])}
    assert moved == {"2", "3"}  # running statistics of frozen stages stay too
    assert all(p.grad is None for p in one.net.backbone.stages[:2].parameters())  # type: ignore[union-attr]
    one.net.train()
    assert [stage.training for stage in one.net.backbone.stages] == [False, False, True, True]  # type: ignore[union-attr]


def test_weights_that_were_trained_before_may_be_trained_on() -> None:
    one = learner("finetune", freeze="none", lr=0.01)
    first = filters((1, 8, 8), None, None)[0]
    assert isinstance(first, nn.Conv2d)
    weight = one.net.backbone.module[0].weight  # type: ignore[union-attr, index]
    assert torch.equal(weight, first.weight)
    one.partial_fit(*digits((0, 1)))
    assert not torch.equal(weight, first.weight)


@pytest.mark.parametrize(("settings", "told"), [
    ({"freeze": "some"}, "freeze='some': give auto, all, none"),
    ({"freeze": "9", "backbone": "convnet"}, "has 4 stages"),
    ({"freeze": "1"}, "nothing is known of the stages"),
    ({"augment": "flip"}, "augment='flip': behind a frozen network"),
    ({"mirror": True}, "behind a frozen network"),
    ({"codec": "webp"}, "codec='webp' takes pictures, but behind a frozen network exemplars are features"),
    ({"codec": "vqgan:2"}, "takes pictures, but behind a frozen network"),
])
def test_what_does_not_go_together_is_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        learner("er", spc=2, **settings)


def test_what_a_recipe_brings_for_pictures_is_left_out() -> None:
    config = configure({"benchmark": "cifar100-10", "preset": "fast", "backbone": "efficientnet-lite0",
                        "method": "er", "spc": 1})
    s = config.settings
    assert (s.augment, s.mirror, s.codec, s.image_size) == ("none", False, "pixels", 160)
    assert config.sources["augment"] == "backbone efficientnet-lite0"
    folder = configure({"benchmark": "folder:x", "budget": "9KB", "backbone": "efficientnet-lite0", "image_size": 96})
    assert (folder.settings.codec, folder.settings.image_size) == ("pixels", 96)
    partly = configure({"benchmark": "cifar100-10", "backbone": "efficientnet-lite0", "freeze": "3"}).settings
    assert (partly.augment, partly.image_size) == ("crop4,flip", 160)
    assert configure({"backbone": "convnet"}).settings.image_size is None


def test_a_run_by_its_name(tmp_path: Path) -> None:
    result = protocore.run("fecam", "digits", backbone="trained", tasks=2, quiet=True, runs=tmp_path)
    assert result.class_incremental.A_T > 60
    assert "--backbone trained" in result.command
