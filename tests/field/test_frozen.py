"""A frozen network in the field: classes that come later leave the others alone, parts and files add up, trials."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from field.conftest import Paint
from protocore import backbones
from protocore.cli import main
from protocore.data.images import FileImages
from protocore.errors import UserError
from protocore.field import choice, learning
from protocore.field.asking import scored
from protocore.field.choice import Choice, configured
from protocore.field.keeper import Keeper
from protocore.field.merging import merge
from protocore.field.report import Interrupted, Report
from protocore.field.sources import Picture
from protocore.learn.front import Front
from protocore.learn.learner import Learner

FROZEN = {"backbone": "convnet", "width": 8, "freeze": "all", "image_size": 8, "budget": "16KB", "threads": 1,
          "project": "24", "method": "slda"}
ALL = ("red", "green", "blue", "yellow")


def frozen(path: Path, **more: Any) -> Keeper:
    return Keeper.new(path, **FROZEN | more)


def pictures(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


@pytest.mark.parametrize("method", ["ncm", "slda"])
def test_a_class_that_comes_later_touches_nothing_of_the_others(tmp_path: Path, paint: Paint, method: str) -> None:
    keeper = frozen(tmp_path / "mine.learner", method=method)
    keeper.learn([paint("first", "red", "green", "blue")])
    held = paint("held", "red", "green", "blue", each=6)
    before, memory = keeper.test([held]).accuracy, keeper.learner.memory()
    net = {name: tensor.clone() for name, tensor in keeper.learner.front.state_dict().items()}
    keeper.learn([paint("later", "yellow")])
    after = keeper.learner.memory()
    for name in ("prototypes/features", "prototypes/counts"):
        assert torch.equal(after[name][:3], memory[name])
    assert all(torch.equal(net[name], tensor) for name, tensor in keeper.learner.front.state_dict().items())
    assert before - keeper.test([held]).accuracy < 0.02
    assert keeper.test([paint("more", "yellow", each=4)]).accuracy == 1.0
    assert keeper.show().kept <= 16_000


def test_nothing_of_few_pictures_is_given_up(tmp_path: Path, paint: Paint) -> None:
    """Held-out pictures are asked first and learned afterwards: the order makes no difference to what adds up."""
    keeper = frozen(tmp_path / "mine.learner", prototype_dtype="float32", covariance_dtype="float32")
    learned = keeper.learn([paint("first", "red", "green")])
    assert learned.held_out == 4
    assert keeper.learner.memory()["prototypes/counts"].tolist() == [8, 8]
    assert keeper.document.calibration.pictures == 4


@pytest.mark.parametrize("method", ["ncm", "slda", "ranpac"])
@pytest.mark.parametrize("each", [1, 5])  # alone; and one of five is held out, which is then learned alone
def test_a_picture_that_is_counted_alone_counts_once(tmp_path: Path, paint: Paint, method: str, each: int) -> None:
    keeper = frozen(tmp_path / "mine.learner", method=method)
    photos = paint("photos", "red", each=each)
    learned = keeper.learn([photos / "red"], name="red")
    assert learned.held_out == each // 4
    assert keeper.learner.memory()["prototypes/counts"].tolist() == [each]
    assert keeper.learn([paint("later", "blue", each=1)]).weak == (["red", "blue"] if each == 1 else ["blue"])
    assert keeper.test([photos]).accuracy == 1.0


@pytest.mark.parametrize("method", ["ncm", "slda", "ranpac"])
def test_strangers_are_told_by_the_nearest_mean_which_a_class_more_does_not_move(tmp_path: Path, paint: Paint,
                                                                                 method: str) -> None:
    keeper = frozen(tmp_path / "mine.learner", method=method)
    keeper.learn([paint("first", "red", "green", each=24)])
    assert keeper.document.calibration.measure == "nearness"
    held = pictures(paint("held", "red", "green", each=6))

    def looked(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
        learner = keeper.learner
        (scores, near), x = scored(learner, upright(files)), learner.ready(upright(files))
        assert torch.equal(scores, learner.scores(upright(files)))
        assert near is not None
        z = learner.method.projection(learner.net.backbone(x)).numpy().astype(np.float64)  # type: ignore[attr-defined]
        means = learner.method.means.get(learner.method.means.classes).numpy()  # type: ignore[attr-defined]
        cosines = (z @ means.T) / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(means, axis=1)
        assert np.allclose(near.numpy(), cosines.max(1), atol=1e-5)
        return near.numpy(), scores.amax(1).numpy()

    before, said = looked(held)
    tested = keeper.test([tmp_path / "held", paint("strange", "white", each=6)], unknown=0.1)
    assert tested.caught == 1.0
    assert tested.false_alarms is not None
    assert tested.false_alarms <= 0.5
    keeper.learn([paint("later", "blue", each=24)])
    after, now = looked(held)
    assert np.allclose(after, before, atol=1e-5)
    assert np.abs(now - said).max() > 1e-3, "as scores are"


def upright(files: list[Path]) -> torch.Tensor:
    return torch.from_numpy(FileImages(files, (8, 8), 3, upright=True).take(np.arange(len(files))))


def test_learned_in_parts_or_in_one_and_stopped_between_them(tmp_path: Path, paint: Paint,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    photos = paint("photos", *ALL)
    one, parts, stopped = (frozen(tmp_path / f"{name}.learner", prototype_dtype="float32", covariance_dtype="float32",
                                  project="full", budget="10MB") for name in ("one", "parts", "stopped"))
    one.learn([photos])
    monkeypatch.setattr(learning, "PART", 7)
    parts.learn([photos])
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        stopped.learn([photos], stop=lambda: next(asked))
    assert stopped.show().method is None
    assert stopped.learn([photos]).resumed
    scores = [keeper.learner.scores(pictures(photos)) for keeper in (one, parts, stopped)]
    assert torch.equal(scores[1], scores[2])
    assert scores[0].argmax(1).tolist() == scores[1].argmax(1).tolist()
    assert one.learner.memory()["prototypes/counts"].tolist() == parts.learner.memory()["prototypes/counts"].tolist()


@pytest.mark.parametrize(("method", "more"), [("ncm", {}), ("slda", {"covariance_dtype": "float32"}),
                                              ("ranpac", {"covariance_dtype": "float32", "ridge": 0.1})])
def test_the_learners_of_two_devices_are_one(tmp_path: Path, paint: Paint, method: str, more: dict[str, Any]) -> None:
    """What they count adds up: the scores are those of one learner that saw all pictures."""
    exact = {"method": method, "prototype_dtype": "float32", "budget": "1MB"} | more
    a, b, whole = (frozen(tmp_path / f"{name}.learner", **exact) for name in ("a", "b", "whole"))
    first, second = paint("first", "red", "green"), paint("second", "blue", "green", seed=1)
    a.learn([first])
    b.learn([second])
    whole.learn([first])
    whole.learn([second])
    before = a.path.read_bytes(), b.path.read_bytes()
    merged = merge(a.path, b.path, tmp_path / "both.learner")
    assert (a.path.read_bytes(), b.path.read_bytes()) == before
    both = Keeper(tmp_path / "both.learner")
    assert both.learner.classes_ == ["green", "red", "blue"]
    assert merged.classes == {"green": 16, "red": 8, "blue": 8}
    assert [entry.what for entry in sorted(both.document.history, key=lambda entry: entry.what)] == [
        "learn", "learn", "merge", "new", "new"]
    assert both.document.history[-1].what == "merge"
    asked = pictures(paint("held", "red", "green", "blue", each=4))
    mine, wanted = (keeper.learner.scores(asked).double() for keeper in (both, whole))
    mine, wanted = (scores - scores.mean(1, keepdim=True) for scores in (mine, wanted))
    assert float((mine - wanted).abs().max()) < 0.02 * float(wanted.abs().max())
    assert both.test([tmp_path / "held"]).accuracy == 1.0
    assert both.learn([paint("later", "yellow")]).new == {"yellow": 8}
    assert both.learn([first]).new == {}  # its pictures are known to both


def test_a_merge_into_little_room_says_what_it_cuts(
        tmp_path: Path, paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (frozen(tmp_path / f"{budget}.learner", method="ncm", budget=budget, prototype_dtype="float32",
                           project="auto")
                    for budget in ("450", "64KB"))
    small.learn([paint("first", "blue", seed=1)])
    large.learn([paint("second", "red", "green")])
    had = large.learner.method.numbers
    assert 0 < small.learner.method.numbers < had
    assert main(["merge", str(small.path), str(large.path), "--out", str(tmp_path / "both.learner")]) == 0
    few = Keeper(tmp_path / "both.learner").learner.method.numbers
    assert few < had
    assert f"Note: of {had:,} numbers of a feature vector {few:,} are kept" in capsys.readouterr().out
    assert merge(large.path, large.path, tmp_path / "same.learner").cut is None


def test_what_both_had_learned_is_told_and_other_networks_are_refused(
        tmp_path: Path, paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (frozen(tmp_path / f"{name}.learner") for name in "ab")
    photos = paint("photos", "red", "green")
    a.learn([photos])
    b.learn([photos])
    assert merge(a.path, b.path, tmp_path / "both.learner").twice == {"green": 8, "red": 8}
    assert main(["merge", str(a.path), str(b.path), "--out", str(tmp_path / "again.learner")]) == 0
    assert "both had learned 16 pictures, which count double now: green (8), red (8)\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="is there already"):
        merge(a.path, b.path, tmp_path / "both.learner")
    for more, says in (({"seed": 1}, "has seed 0, the second 1"), ({"method": "ncm"}, "has method 'slda'"),
                       ({"freeze": "none", "method": "er", "project": None, "steps": 2}, "frozen network")):
        other = frozen(tmp_path / f"{next(iter(more))}.learner", **more)
        other.learn([photos])
        with pytest.raises(UserError, match=says):
            merge(a.path, other.path, tmp_path / "third.learner")
    assert not (tmp_path / "third.learner").exists()


class Blind(backbones.Backbone):
    """Sees nothing of a picture."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Flatten()), 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(x), 8)

    def layers(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self(x)]


@pytest.mark.parametrize(("eyes", "wins"), [("convnet", "frozen"), ("blind", "scratch")])
def test_the_better_of_two_networks_is_chosen_and_why_is_said(tmp_path: Path, paint: Paint, eyes: str, wins: str,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones.BACKBONES, "_things", dict(backbones.BACKBONES._things))
    backbones.register("blind", lambda shape, width, norm: Blind())
    tiny = {"image_size": 8, "threads": 1, "budget": "16KB"}

    def two(given: dict[str, Any]) -> list[Choice]:
        scratch = {"backbone": "mlp", "width": 16, "method": "er", "codec": "pixels", "steps": 40, "lr": 0.01,
                   "augment": "none"}
        return [configured(tiny | {"backbone": eyes, "freeze": "all"}, frozen=True),
                configured(tiny | scratch, frozen=False)]

    monkeypatch.setattr(choice, "candidates", two)
    monkeypatch.setattr("protocore.field.keeper.candidates", two)
    monkeypatch.setattr(choice, "configured", lambda given, frozen: two({})[1])  # the short form is short enough
    keeper = Keeper.new(tmp_path / "mine.learner")
    told: list[str] = []
    learned = keeper.learn([paint("photos", *ALL)], report=type("Told", (Report,), {
        "note": lambda self, text: told.append(text)})())
    assert learned.choice == keeper.document.choice == told[0]
    assert (keeper.learner.front is not None) == (wins == "frozen")
    said = "frozen convnet with ncm: .* % right of 32 held-out pictures of 4 classes, so that" \
        if wins == "frozen" else \
        r"trained from scratch: \d+.\d % right of 8 held-out pictures; frozen blind with ncm: 25.0 % right of 32 held"
    assert re.match(said, told[0]), told
    assert keeper.test([paint("held", *ALL, each=4)]).accuracy == 1.0


def shown(folder: Path) -> tuple[list[Picture], list[str]]:
    found = [Picture(path, path.parent.name) for path in pictures(folder)]
    return found, [hashlib.sha256(picture.path.read_bytes()).hexdigest() for picture in found]


def test_what_a_trial_asks_about_it_has_not_learned(tmp_path: Path, paint: Paint, monkeypatch: pytest.MonkeyPatch
                                                    ) -> None:
    learned: list[set[bytes]] = []
    asked: list[set[bytes]] = []
    passed: list[int] = []

    def contents(images: Any) -> set[bytes]:
        return {image.tobytes() for image in np.asarray(images)}

    learn, predict, roots = Learner.learn, Learner.predict, Front.roots
    monkeypatch.setattr(Learner, "learn", lambda self, task, **more: learned.append(
        contents(task.take(torch.arange(len(task))))) or learn(self, task, **more))
    monkeypatch.setattr(Learner, "predict", lambda self, images: asked.append(contents(images)) or predict(
        self, images))
    monkeypatch.setattr(Front, "roots", lambda self, x: passed.append(len(x)) or roots(self, x))
    tried = choice._Tried(*shown(paint("photos", "red", "green")), Report())
    given = {k: v for k, v in FROZEN.items() if k not in ("project", "method")}
    for method in choice.FROZEN:
        right, count = tried.accuracy(configured(given, frozen=True, method=method), choice.FOLDS, "trying")
        assert (right, count) == (1.0, 16)
    assert [len(one) for one in learned] == [12] * 8
    assert [len(one) for one in asked] == [4] * 8
    assert not any(one & other for one, other in zip(learned, asked, strict=True))
    assert len(set.union(*asked[:4])) == 16, "each is asked once"
    assert sum(passed) == 16, "and passes the network once, for all folds and methods"


class Tilted(backbones.Backbone):
    """Features of a picture's colour in which ways within a class are far longer than those between classes: only who
    knows the covariance can tell them apart."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Flatten()), 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        red, noise = x[:, 0].mean((1, 2)), x[:, 2].mean((1, 2))
        rows = torch.stack([1 + noise, 1 + noise + 0.1 * red, 2 - noise, 1 + 0 * red], 1)
        return torch.cat([rows, rows.flip(1)], 1)

    def layers(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self(x)]


@pytest.mark.parametrize(("eyes", "blue", "wins"), [("convnet", 20, "ncm"), ("tilted", 256, "slda")])
def test_the_method_behind_a_frozen_network_is_tried_too_and_of_equals_the_smaller_is_taken(
        tmp_path: Path, eyes: str, blue: int, wins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones.BACKBONES, "_things", dict(backbones.BACKBONES._things))
    backbones.register("tilted", lambda shape, width, norm: Tilted())
    chance = np.random.default_rng(0)
    for name, red in (("dark", 60), ("light", 190)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(16):
            drawn = np.full((8, 8, 3), (red, 80 + k, chance.integers(blue)), np.uint8)
            Image.fromarray(drawn).save(tmp_path / "photos" / name / f"{k}.png")
    keeper = Keeper.new(tmp_path / "mine.learner", backbone=eyes, freeze="all", image_size=8, threads=1,
                        **({"width": 8} if eyes == "convnet" else {}))
    assert [way.config.settings.method for way in choice.candidates(keeper.document.given)] == ["ncm", "slda"]
    why = keeper.learn([tmp_path / "photos"]).choice
    assert keeper.show().method == wins, why
    other = "ncm" if wins == "slda" else "slda"
    found = re.fullmatch(rf"frozen {eyes} with {wins}: (\S+) % right of 32 held-out pictures of 2 classes, "
                         rf"with {other} (\S+) %", why)
    assert found, why
    assert float(found[1]) >= float(found[2])
    assert wins == "ncm" or float(found[1]) > float(found[2])


def test_too_few_pictures_for_a_trial_take_the_frozen_network(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, hashes = ["a"] * 9 + ["b"] * 3, [f"{k:02}" for k in range(12)]
    assert choice._sample(labels, hashes) == []
    rows = choice._sample(["a"] * 30 + ["b"] * 4 + ["c"] * 3, [f"{k:02}" for k in range(37)])
    assert rows == [*range(16), *range(30, 34)]
    many = [f"{k // 5:03}" for k in range(500)]
    rows = choice._sample(many, [f"{k:03}" for k in range(500)])
    assert len({many[row] for row in rows}) == choice.TRIED_CLASSES
    assert {many[rows[0]], many[rows[-1]]} == {"000", "095"}  # evenly over the classes


def test_what_the_user_names_is_not_tried(tmp_path: Path) -> None:
    def kinds(**given: Any) -> Sequence[tuple[str, str]]:
        return [(c.config.settings.backbone, c.config.settings.method) for c in choice.candidates(given)]

    assert kinds(backbone="mlp") == [("mlp", "protocore")]
    assert kinds(backbone="mlp", freeze="all") == [("mlp", "ncm"), ("mlp", "slda")]
    assert kinds(backbone="efficientnet-lite1", method="slda") == [("efficientnet-lite1", "slda")]
    assert kinds(backbone="efficientnet-lite1") == [("efficientnet-lite1", "ncm"), ("efficientnet-lite1", "slda")]
    assert kinds(backbone="efficientnet-lite0", freeze="none", method="er") == [("efficientnet-lite0", "er")]
    assert choice.candidates({"backbone": "efficientnet-lite0"})[0].shape == (3, 160, 160)
    assert choice.candidates({"backbone": "fastnet"})[0].shape == (3, 32, 32)
    if choice._pretrained_is_here():
        assert kinds() == [("efficientnet-lite0", "ncm"), ("efficientnet-lite0", "slda"), ("fastnet", "protocore")]
        assert kinds(method="ncm") == [("efficientnet-lite0", "ncm")]


@pytest.mark.skipif(not choice._pretrained_is_here(), reason="the weights are not installed")
def test_photographs_of_two_kinds_by_the_network_that_ships(tmp_path: Path) -> None:
    """Drawings that are easy for it: what is seen at 160 pixels is learned from three pictures a class."""
    chance = np.random.default_rng(0)
    for name in ("stripes", "dots"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(4):
            drawn = np.full((60, 80, 3), 200, np.uint8)
            if name == "stripes":
                drawn[:, chance.integers(8) :: 8] = 20
            else:
                drawn[chance.integers(4) :: 10, chance.integers(4) :: 10] = (220, 20, 20)
            Image.fromarray(drawn).resize((160, 120)).save(tmp_path / "photos" / name / f"{k}.jpg")
    keeper = Keeper.new(tmp_path / "mine.learner", budget="8KB", threads=1)
    learned = keeper.learn([tmp_path / "photos"])
    assert learned.choice.startswith(
        "frozen efficientnet-lite0 with ncm: 100.0 % right of 8 held-out pictures of 2 classes, with slda ")
    assert keeper.test([tmp_path / "photos"]).accuracy == 1.0
    assert keeper.show().kept <= 8000


def test_what_was_held_out_before_counts_by_the_share_of_its_classes(tmp_path: Path, paint: Paint) -> None:
    keeper = frozen(tmp_path / "mine.learner")
    counts = []
    for folder, names in (("first", ("red", "green")), ("later", ("blue",)), ("more", ("red",))):
        keeper.learn([paint(folder, *names)])
        counts.append(keeper.document.calibration.pictures)
    assert counts == pytest.approx([4, 4 * 2 / 3 + 2, 4 * 2 / 3 + 2 + 2])


def test_weights_of_ones_own_name_the_network_themselves(tmp_path: Path, paint: Paint) -> None:
    mine = Learner("er", (3, 8, 8), backbone="mlp", width=12, spc=2, steps=2, threads=1)
    mine.partial_fit(np.zeros((4, 3, 8, 8), np.uint8), ["a", "b", "a", "b"]).save(tmp_path / "mine.learner")
    keeper = Keeper.new(tmp_path / "new.learner", weights=str(tmp_path / "mine.learner"), image_size=8, threads=1)
    why = keeper.learn([paint("photos", "red", "green", "blue")]).choice
    assert re.match(r"frozen mlp with \w+: \S+ % right of 24 held-out pictures of 3 classes", why)
    assert (keeper.show().backbone, keeper.learner.net.dim) == ("mlp", mine.net.dim)
    wanted, front = mine.net.backbone.state_dict(), keeper.learner.front
    assert front is not None
    assert all(torch.equal(value, wanted[name]) for name, value in front.net.backbone.state_dict().items())


def test_one_class_alone_is_learned_untried_and_no_exemplars_are_shown_where_none_are_kept(
        tmp_path: Path, paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.learner"
    keeper = Keeper.new(path, **{k: v for k, v in FROZEN.items() if k not in ("method", "project")})
    learned = keeper.learn([paint("photos", "red") / "red"], name="red")
    assert learned.choice == "frozen convnet with ncm, untried: a trial needs two classes of 4 pictures"
    assert main(["show", str(path)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"class +since \(UTC\) +pictures *\n", told)
    assert main(["predict", str(path), str(tmp_path / "photos" / "red" / "0.png")]) == 0
    assert capsys.readouterr().out.endswith("0.png: red over 99.9 %\n")


@pytest.mark.parametrize(("each", "held"), [(1, 0), (2, 1), (3, 1), (4, 1), (7, 1), (8, 2), (48, 10)])
def test_of_few_pictures_one_is_asked_about_before_it_is_learned(tmp_path: Path, paint: Paint, each: int, held: int
                                                                 ) -> None:
    keeper = frozen(tmp_path / "mine.learner", method="ncm")
    learned = keeper.learn([paint("photos", "red", "blue", each=each)])
    assert learned.held_out == 2 * held
    assert keeper.learner.memory()["prototypes/counts"].tolist() == [each, each]
    if each in (2, 3):
        sure = [one.probabilities[0] for one in keeper.predict([paint("held", "red", "blue", each=4)])]
        assert 0.7 < min(sure) < max(sure) < 0.95, "two of two were right: 3 of 4 by the rule of succession"
