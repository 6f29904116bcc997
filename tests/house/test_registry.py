"""Things of one's own under a name: by `register`, and by entry points of other packages."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

import protocore
from protocore import backbones, codecs, methods, registry
from protocore.backbones.base import Backbone
from protocore.codecs.pixels import Pixels
from protocore.errors import DataError, UserError
from protocore.memory.pack import read_pack, verify
from protocore.methods.base import Batch, Method
from protocore.registry import Registry, near

DOCS = Path(__file__).parents[2] / "docs"


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


def test_a_method_a_backbone_and_a_codec_of_ones_own_run_together(tmp_path: Path) -> None:
    methods.register(Plain)
    backbones.register("flat", flat, "one linear layer")
    codecs.register("grey", lambda shape, wish: Pixels(shape), "pixels by another name")
    result = protocore.run("plain", "digits", runs=tmp_path, backbone="flat", codec="grey", tasks=2,
                           epochs=5, quiet=True)
    assert result.class_incremental.R[0][0] > 80
    assert result.settings["codec"] == "grey"


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_codec_of_the_docs_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = examples("codecs.md")
    made: dict[str, Any] = {}
    exec(compile(code, "codecs.md", "exec"), made)
    (folder,) = (tmp_path / "runs").iterdir()
    pack = read_pack(folder / "memory.pack")
    (group,) = pack.info.groups.values()
    assert (group.codec, group.origin, group.bytes) == ("levels:8", "coded", 64)
    codec = codecs.codec_named("levels:8", pack.info.image_shape)
    assert all(found.ok for found in verify(folder / "memory.pack", codec))
    stored = pack.tensors["exemplars/bytes"]
    assert 4 < int(stored.max()) <= 7  # 8 levels, not 4
    assert made["result"].bytes_kept == (folder / "memory.safetensors").stat().st_size
    with pytest.raises(DataError, match="give the one that wrote them with --codec levels:8"):
        codecs.codec_told("levels:8", pack.info.image_shape)  # a file chooses among what ships, and nothing else
    with pytest.raises(UserError, match="'slow' is no option of levels, which takes none"):
        codecs.codec_named("levels:8,slow", pack.info.image_shape)


def test_the_backbones_of_the_docs_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    module, named = examples("backbones.md")
    made: dict[str, Any] = {}
    exec(compile(module, "backbones.md", "exec"), made)
    assert capsys.readouterr().out == "[0, 1, 2, 3, 4, 5]\n"
    assert made["learner"].net.dim == 32
    now = made["labels"] < 6
    assert made["learner"].score(made["pictures"][now], made["labels"][now]) > 0.5  # a sixth by chance
    exec(compile(named, "backbones.md", "exec"), made)
    assert made["result"].class_incremental.A_L > 60  # of two classes, just learned


def test_an_entry_point_may_name_a_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its docstring is what `protocore list` says of it."""
    (code,) = examples("codecs.md")
    module = ModuleType("mypackage_levels")
    exec(compile(code.partition("codecs.register")[0], "codecs.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(codecs.CODECS, "_asked", False)
    point = EntryPoint("levels", f"{module.__name__}:levels", "protocore.codecs")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert codecs.codec_named("levels:8", (1, 4, 4)).spec == "levels:8"
    assert codecs.CODECS["levels"].description == "A few levels of grey; levels:N for N of them."


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
