"""State that registers itself: what is kept outlives the task, what is held is in a checkpoint inside it."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import begin, learner, task_of
from protocore import methods
from protocore.files import serialise
from protocore.memory.plan import Horizon, file_size, plan_of
from protocore.methods.base import Batch, Method
from protocore.methods.state import Attribute

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"


class Owner:
    """Something with attributes, as a method is."""

    def __init__(self) -> None:
        self.tools = type("Tools", (), {"device": torch.device("cpu")})
        self.count, self.on, self.rate = 0, False, 0.0
        self.numbers: list[int] = []
        self.sigma = torch.full((1,), float("nan"))
        self.sizes = torch.zeros(0, 2, dtype=torch.int64)
        self.weights: dict[str, Tensor] = {}


VALUES = {"count": 7, "on": True, "rate": 0.1, "numbers": [3, 1], "sigma": torch.tensor([2.5]),
          "sizes": torch.tensor([[300, 2], [0, 1]]), "weights": {"a": torch.ones(2), "b/c": torch.zeros(3)}}


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, Tensor) else (a == b and type(a) is type(b))


@pytest.mark.parametrize("name", VALUES)
def test_an_attribute_comes_back_as_it_was_and_without_a_word_of_it_as_it_began(name):
    mine, other = Owner(), Owner()
    kept, again = Attribute(mine, name, f"part/{name}"), Attribute(other, name, f"part/{name}")
    assert kept.tensors() == {}  # nothing to say yet
    setattr(mine, name, VALUES[name])
    tensors = kept.tensors()
    assert tensors
    assert all(key.startswith(f"part/{name}") for key in tensors)
    again.load(tensors | {"somebody else's": torch.zeros(1)})
    assert same(getattr(other, name), VALUES[name])
    again.load({})
    assert same(getattr(other, name), getattr(Owner(), name)) or name == "sigma"
    assert name != "sigma" or bool(other.sigma.isnan())


def test_whole_numbers_are_written_in_the_narrowest_type():
    mine = Owner()
    kept = Attribute(mine, "sizes")
    for largest, dtype in ((255, torch.uint8), (256, torch.uint16), (70_000, torch.int32)):
        mine.sizes = torch.tensor([[largest, 0]])
        assert plan_of(kept.tensors()) == {"sizes": (dtype, (1, 2))}


def test_the_size_of_every_kind_of_value_is_known_before():
    mine = Owner()
    for name in ("count", "rate", "sigma", "sizes"):
        setattr(mine, name, VALUES[name])
    parts = [Attribute(mine, name) for name in ("count", "rate", "sigma", "sizes")]
    tensors = {name: value for part in parts for name, value in part.tensors().items()}
    plan = {name: shaped for part in parts for name, shaped in part.plan(Horizon((0, 1)), 3).items()}
    assert plan == plan_of(tensors)
    assert file_size(plan) == len(serialise(tensors))


def test_what_is_kept_is_a_copy():
    mine = Owner()
    kept = Attribute(mine, "sigma")
    mine.sigma = torch.tensor([1.0])
    stored = kept.tensors()
    mine.sigma += 1
    assert stored["sigma"].item() == 1.0
    kept.load(stored)
    mine.sigma += 1
    assert stored["sigma"].item() == 1.0


def test_a_task_is_opened_and_begun_once_and_opened_again_at_a_checkpoint(tmp_path, monkeypatch):
    calls: list[str] = []

    class Watched(Method):
        """Tells which of its hooks are called."""

        name = "watched"

        def __init__(self, tools, options) -> None:
            super().__init__(tools, options)
            self.steps = 0
            self.hold("steps")

        def open_task(self, task) -> None:
            calls.append(f"open {self.known} {self.seen}")

        def begin_task(self, task) -> None:
            calls.append("begin")

        def loss(self, batch: Batch) -> Tensor:
            return self.net(batch.x).square().mean()

        def load_scratch(self, scratch) -> None:
            calls.append("held")
            super().load_scratch(scratch)

    monkeypatch.setattr(methods.METHODS, "_things", dict(methods.METHODS._things))
    methods.register(Watched)
    mine = learner("watched")
    mine.learn(task_of([0, 1] * 4))
    assert calls == ["open [] [0, 1]", "begin"]
    calls.clear()
    begin(mine, task_of([1, 2] * 4))
    mine.method.steps = 5
    assert calls == ["open [0, 1] [0, 1, 2]", "begin"]
    mine.save(tmp_path / "checkpoint.safetensors")
    calls.clear()
    other = learner("watched")
    other.restore(tmp_path / "checkpoint.safetensors", task_of([1, 2] * 4))
    assert calls == ["open [] [0, 1, 2]", "held"]
    assert (other.method.steps, other.method.known) == (5, [0, 1])


@pytest.mark.parametrize(("name", "flags", "kinds"), [
    ("er", {}, {"exemplars/bytes": ("exemplars", "real"), "exemplars/seen": ("exemplars", "real")}),
    ("er", {"codec": "webp"}, {"exemplars/bytes": ("exemplars", "coded")}),
    ("protocore", {"exemplars": "coded", "real": 1}, {
        "coded exemplars/labels": ("exemplars", "coded"), "real exemplars/labels": ("exemplars", "real"),
        "prototypes/features": ("prototypes", None), "statistics/sigma": ("statistics", None)}),
    ("protocore", {"exemplars": "synthetic"}, {"synthetic exemplars/bytes": ("exemplars", "synthetic")}),
    ("fecam", {}, {"prototypes/features": ("prototypes", None), "prototypes/triangles": ("statistics", None)}),
    ("ewc", {}, {"fisher/head.weight": ("parameters", None)}),
    ("lwf", {}, {"previous network, during a task": ("network", None)}),
], ids=str)
def test_the_ledger_says_what_each_row_is(name, flags, kinds):
    mine = learner(name, (1, 8, 8), **flags)
    for number, classes in enumerate(([0, 1], [2, 3])):
        mine.learn(task_of(classes * 8, seed=number, shape=(1, 8, 8)))
    told = {entry.name: (entry.kind, entry.origin) for entry in mine.ledger().entries}
    assert told["file header"] == ("header", None)
    assert {row: told[row] for row in kinds} == kinds
    assert all(kind for kind, _ in told.values())
    for store in mine.method.stores():
        assert store.origin == told[f"{store.name}/bytes"][1]


def test_the_method_of_the_docs_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods.METHODS, "_things", dict(methods.METHODS._things))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made: dict = {}
    exec(compile(code, PAGE.name, "exec"), made)
    assert "'statistics/gap'" in capsys.readouterr().out
    assert made["result"].class_incremental.A_T > 20
