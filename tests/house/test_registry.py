"""Things of one's own under a name: by `register`, and by entry points of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore import backbones, codecs, methods, registry
from protocore.backbones.base import Backbone
from protocore.codecs.pixels import Pixels
from protocore.errors import UserError
from protocore.methods.base import Batch, Method
from protocore.registry import Registry, near


@pytest.fixture(autouse=True)
def tables_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (methods.METHODS, backbones.BACKBONES, codecs.CODECS):
        monkeypatch.setattr(table, "_things", dict(table._things))


class Plain(Method):
    """Cross entropy."""

    name = "plain"

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.x), batch.labels)


def flat(shape: tuple[int, int, int], width: int | None, norm: str | None) -> Backbone:
    size = shape[0] * shape[1] * shape[2]
    return Backbone(nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU())), 16)


def test_a_method_a_backbone_and_a_codec_of_ones_own_run_together() -> None:
    from protocore.learn.learner import Learner
    from protocore.runs.job import configure, open_stream

    methods.register(Plain)
    backbones.register("flat", flat, "one linear layer")
    codecs.register("grey", lambda shape, wish: Pixels(shape), "pixels by another name")
    config = configure({"method": "plain", "benchmark": "digits", "backbone": "flat", "codec": "grey", "tasks": 2})
    stream = open_stream(config.settings)
    learner = Learner(config, stream.image_shape)
    for task in stream:
        learner.learn(task)
    right = learner.predict(stream.tests[1].take(0, 60)) == torch.from_numpy(stream.tests[1].labels[:60])
    assert right.float().mean() > 0.9


def test_a_name_is_given_once() -> None:
    table: Registry[int] = Registry("number", [("one", 1)])
    table.register("one", 1)
    with pytest.raises(UserError, match="there is a number named 'one' already"):
        table.register("one", 11)
    table.register("one", 11, replace=True)
    assert table["one"] == 11
    with pytest.raises(UserError, match="no name for a number"):
        table.register("../one", 1)
    with pytest.raises(UserError, match="no method"):
        methods.register(object)  # type: ignore[arg-type]


def test_an_unknown_name_says_what_is_near_and_what_is_known() -> None:
    table = Registry("number", [("one", 1), ("two", 2)])
    with pytest.raises(UserError, match=r"unknown number 'onne'; did you mean one\? \(known: one, two\)"):
        table.named("onne")
    assert near("cifar100", ["cifar10", "cifar100-10", "cifar100-50"]) == "cifar100-10"
    assert near("zzz", ["one"]) is None


def test_entry_points_of_other_packages_are_loaded_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("pi", "math:pi", group)]

    monkeypatch.setattr(registry, "entry_points", points)
    table: Registry[float] = Registry("number", [("one", 1.0)])
    assert table["one"] == 1
    assert not asked
    assert 3.14 < table["pi"] < 3.15
    assert list(table) == ["one", "pi"]
    assert asked == ["protocore.numbers"]


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("broken", "no_such_module:x", group)])
    with pytest.raises(UserError, match="the number 'broken' of an installed package cannot be imported"):
        list(Registry("number", [("one", 1)]))
