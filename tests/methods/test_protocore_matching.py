"""ProtoCore with --match distribution, through its hooks and as runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import learner
from protocore.codecs import codec_named
from protocore.condense import matching
from protocore.condense.matching import Distribution
from protocore.data.images import ArrayImages
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.learner import Learner
from protocore.memory.pack import read_pack
from protocore.methods.protocore_options import ProtoCoreOptions, recipe_of
from protocore.runs.configure import configure
from protocore.runs.job import run

SHAPE = (1, 8, 8)
MATCH = {"exemplars": "synthetic", "match": "distribution", "condense_steps": 3, "match_samples": 6, "spc": 2,
         "noise": "0", "filter": False, "prototype_dtype": "float32"}


def make(**flags: Any) -> Learner:
    return learner("protocore", SHAPE, **(MATCH | flags))


def task_of(labels: Any, seed: int = 0) -> Task:
    """Noise, lighter in a row of its own for every class."""
    labels = np.asarray(labels)
    images = np.random.default_rng(seed).integers(0, 150, (len(labels), *SHAPE))
    images[np.arange(len(labels)), 0, labels % 8] += 100
    return Task(ArrayImages(images.astype(np.uint8)), labels)


def kept(mine: Learner) -> tuple[Tensor, Tensor]:
    state = mine.method.state()
    return state["synthetic exemplars/bytes"], state["synthetic exemplars/labels"].long()


@pytest.fixture
def shown() -> list[Tensor]:
    """The real pictures of each distribution: copies, as the task is closed afterwards."""
    return []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, shown: list[Tensor]) -> list[Distribution]:
    """The distributions that are matched, one a task."""
    found: list[Distribution] = []
    original = Distribution.__init__

    def init(self: Distribution, *args: Any) -> None:
        original(self, *args)
        found.append(self)
        shown.append(self.reals.images(torch.arange(len(self.reals.labels))))
        back = torch.arange(len(self.reals.labels)).flip(0)[:-1]  # any rows in any order, of both kinds
        assert torch.equal(self.reals.images(back), shown[-1][back])

    monkeypatch.setattr(Distribution, "__init__", init)
    return found


def test_exemplars_match_the_samples_that_their_centres_stand_for(made: list[Distribution]) -> None:
    mine = make(match_networks="both", match_every=2, match_second=0.5, match_label=0.25, cur_syn=0.8)
    labels = [0] * 14 + [1] * 11 + [2] * 3  # too few for a blend: class 2 has no exemplar, and none of it is shown
    mine.settings = mine.method.tools.settings = configure(
        {"method": "protocore", "benchmark": "digits", "online": True, "spc": 2}).settings
    task = task_of(labels)
    mine.learn(task)
    (d,) = made
    assert d.how == matching.Matching("both", 6, 2, 0.5, 0.25)
    assert d.weights.cur_syn == 0.8
    assert d.classes.tolist() == [0, 1]
    assert d.goals.labels.tolist() == [0, 0, 1, 1]
    assert d.reals.labels.bincount().tolist() == [14, 11]
    assert not d.returning
    assert kept(mine)[1].tolist() == [0, 0, 1, 1]


@pytest.mark.usefixtures("made")
def test_misclassified_samples_are_not_matched(shown: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    mine = make(filter=True, spc=1, blend=2, match_samples=2)
    task = task_of([0, 1] * 12)
    wrong = torch.arange(24) >= 16

    def logits(z: Tensor) -> Tensor:
        truth = torch.nn.functional.one_hot(torch.arange(24) % 2, 2)
        return torch.where(wrong[:, None], 1 - truth, truth).float()

    original = mine.net.logits
    monkeypatch.setattr(mine.net, "logits", lambda z: logits(z) if len(z) == 24 else original(z))
    mine.learn(task)
    expected = task_of([0, 1] * 12).take(torch.arange(16)).float()
    assert torch.allclose(shown[0] * 255, expected, atol=1e-3)


def test_a_class_that_returns_holds_on_to_its_exemplars_and_its_prototype(made: list[Distribution]) -> None:
    mine = make(pre_syn=0.3, shift=0.2, follow=False)
    mine.learn(task_of([0, 1] * 12))
    images, labels = kept(mine)
    prototype = mine.method.state()["prototypes/features"][1]
    mine.learn(task_of([1, 2] * 12, seed=1))
    first, second = made
    assert not first.returning
    assert second.returning
    assert (second.weights.pre_syn, second.weights.shift) == (0.3, 0.2)
    with torch.no_grad():
        old = mine.net.features(images[labels == 1].float() / 255)
    assert torch.allclose(second.goals.previous[:2], old, atol=1e-5)
    assert torch.allclose(second.goals.anchor[:2], prototype.expand(2, -1))
    assert second.reals.labels.unique().tolist() == [1, 2]
    after, new = kept(mine)
    assert new.bincount().tolist() == [2, 2, 2]
    assert torch.equal(after[new == 0], images[labels == 0])


@pytest.mark.parametrize("refresh", [False, True])
def test_refresh_lets_stored_exemplars_stand_for_samples_that_are_gone(made: list[Distribution], shown: list[Tensor],
                                                                      refresh: bool) -> None:
    mine = make(refresh=refresh)
    mine.learn(task_of([0, 1] * 12))
    images, _ = kept(mine)
    mine.learn(task_of([2, 3] * 12, seed=1))
    d = made[1]
    assert d.classes.tolist() == ([0, 1, 2, 3] if refresh else [2, 3])
    assert d.reals.labels.bincount().tolist() == [2 * refresh, 2 * refresh, 12, 12]
    old = torch.isin(d.reals.labels, torch.tensor([0, 1]))
    assert torch.allclose(shown[1][old] * 255, images.float()[: 4 * refresh], atol=1e-3)
    new = task_of([2, 3] * 12, seed=1).take(torch.arange(24)).float()
    assert torch.allclose(shown[1][~old] * 255, new, atol=1e-3)
    assert kept(mine)[1].bincount().tolist() == [2] * 4


def test_stored_exemplars_of_a_class_that_returns_are_none_of_its_samples(made: list[Distribution],
                                                                          shown: list[Tensor]) -> None:
    mine = make(refresh=True)
    mine.learn(task_of([0, 1] * 12))
    mine.learn(task_of([1, 2] * 12, seed=1))
    new = {picture.numpy().tobytes() for picture in task_of([1, 2] * 12, seed=1).take(torch.arange(24))}
    labels = made[1].reals.labels
    real = [picture.numpy().tobytes() in new for picture in (shown[1] * 255).round().to(torch.uint8)]
    assert real == (labels != 0).tolist()
    assert labels.bincount()[0] == 2


def test_the_label_loss_is_that_of_the_network_over_seen_classes(made: list[Distribution]) -> None:
    mine = make(task_temperature=2.0)
    mine.learn(task_of([0, 1] * 12))
    x, y = torch.rand(4, *SHAPE), torch.tensor([0, 1, 1, 0])
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(mine.net(x) / 2, y)
        assert torch.allclose(made[0].learned.label_loss(x, y), wanted)


def test_steps_and_rate_have_defaults_of_their_own() -> None:
    plain, spread = (make(condense_steps=None, **flags).method.condensed.recipe
                     for flags in ({"match": "features", "match_samples": 32}, {}))
    assert (plain.steps, plain.lr, plain.matching) == (50, 0.02, None)
    assert (spread.steps, spread.lr) == (200, 0.06)
    assert spread.matching == matching.Matching("fresh", 6, 4)
    assert make(condense_lr=0.1).method.condensed.recipe.lr == 0.1


@pytest.mark.parametrize(("flags", "words"), [
    ({"exemplars": "coded"}, "--match distribution needs --exemplars synthetic"),
    ({"exemplars": "auto"}, "--match distribution needs --exemplars synthetic"),
    ({"codec": "webp"}, "--codec webp has no gradients, so --match distribution"),
    ({"condense_steps": 0}, "--match is about the steps .* --condense-steps N"),
    ({"match_layers": 1.0}, "--match-layers is about --match features"),
    ({"condense_perturb": True}, "--condense-perturb is about --match features"),
    ({"match_samples": 4}, "--match-samples 4 is fewer than --blend 5"),
    ({"match": "features"}, "--match-samples 6 is about --match distribution"),
    ({"match": "features", "match_samples": 32, "match_every": 3}, "--match-every 3 is about --match distribution"),
    ({"match_every": 0}, "--match-every 0 must be at least 1"),
])
def test_what_does_not_go_together_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**flags)


SMALL = {"benchmark": "digits", "images_per_class": 24, "epochs": 1, "batch": 24, "threads": 1, "backbone": "mlp",
         "width": 12, "tasks": 3, "method": "protocore", "exemplars": "synthetic", "match": "distribution",
         "condense_steps": 2, "match_samples": 8, "match_every": 2}


@pytest.mark.parametrize("flags", [{"codec": "vqgan:2", "budget": 2500, "refresh": True, "record": True},
                                   {"start": "random", "codec": "vqgan:4,entropy", "spc": 2, "real": 1},
                                   {"online": True, "online_window": 60, "spc": 2, "batch": 20}])
def test_whole_runs(flags: dict[str, Any], tmp_path: Path) -> None:
    if flags.get("online"):
        flags = flags | {"epochs": None}
    given = {k: v for k, v in (SMALL | flags).items() if v is not None}
    first, again, other = (run(configure(given | {"seed": seed}), tmp_path / name)
                           for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first.bytes_kept == (tmp_path / "a" / "memory.safetensors").stat().st_size
    if "budget" in flags:
        assert max(first.bytes_after_each_task) <= 2500
    origins = {group.origin for group in read_pack(tmp_path / "a" / "memory.pack").info.groups.values()}
    assert origins == {"synthetic", *(["coded"] if "real" in flags else [])}
    packs = [(tmp_path / name / "memory.pack").read_bytes() for name in "abc"]
    assert packs[0] == packs[1] != packs[2]
    assert first.class_incremental.R == again.class_incremental.R
    assert (tmp_path / "a" / "records.safetensors").exists() == ("record" in flags)
    assert other.options["match"] == "distribution"


def test_the_paper_and_the_defaults_match_features() -> None:
    assert ProtoCoreOptions().match == "features"


@pytest.mark.parametrize(("flags", "matched"), [
    ({}, False), ({"exemplars": "coded"}, False), ({"exemplars": "synthetic"}, True),
    ({"exemplars": "synthetic", "codec": "pixels"}, True), ({"exemplars": "synthetic", "codec": "webp"}, False),
    ({"exemplars": "synthetic", "condense_steps": 0}, False), ({"exemplars": "synthetic", "match_layers": 1.0}, False),
    ({"exemplars": "synthetic", "match": "features"}, False)])
def test_fast_matches_distributions_where_there_is_one_and_a_way_to_it(flags: dict[str, Any], matched: bool) -> None:
    config = configure({"method": "protocore", "benchmark": "cifar100-10", "preset": "fast", "spc": 2, **flags})
    assert isinstance(config.options, ProtoCoreOptions)
    codec = codec_named(config.settings.codec, (3, 32, 32))
    recipe = recipe_of(config.options, lambda x: x, codec)
    assert (recipe.matching is not None) == matched
