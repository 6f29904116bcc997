"""The commands on a learner's file: what they print, what programs get, how they end."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from field.conftest import Paint
from protocore.cli import main
from protocore.data.stream import Task
from protocore.field import plan
from protocore.field.report import Report

NEW = ["--backbone", "mlp", "--width", "16", "--image-size", "8", "--method", "er", "--codec", "pixels", "--steps",
       "40", "--budget", "16KB", "--threads", "1", "--lr", "0.01", "--optimizer", "adam", "--schedule", "constant"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints, to both ends; it must end with this code."""
    assert main(list(words)) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err + captured.out


def test_a_command_that_is_named_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    path = "my own.learner"
    assert "`protocore new 'my own.learner'`" in said(capsys, "show", path, code=2)
    assert "`protocore learn 'my own.learner' FOLDER`" in said(capsys, "new", path, *NEW)
    assert "`protocore learn 'my own.learner' FOLDER`" in said(capsys, "show", path)
    assert "`protocore learn 'my own.learner' FOLDER`" in said(capsys, "predict", path, ".", code=2)


def test_from_an_empty_folder_to_forgetting(paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    paint("photos", "red", "blue", each=12)
    (Path("photos") / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    assert "a new learner, with 16.0 KB of memory" in said(capsys, "new", "mine.learner", *NEW)
    assert "has learned nothing yet" in said(capsys, "show", "mine.learner")
    told = said(capsys, "learn", "mine.learner", "photos")
    assert "24 pictures of 2 new classes: blue (12), red (12)" in told
    assert "left out: 1 file\n  photos/red/broken.jpg: " in told
    paint("stop", "green", each=3)
    told = said(capsys, "learn", "mine.learner", "stop/green", "--class", "stop sign")
    assert "3 pictures of 1 new class: stop sign (3)" in told
    assert "weak, learned from few pictures: stop sign" in told
    told = said(capsys, "learn", "mine.learner", "photos")
    assert "nothing new: every picture that can be used was learned before" in told
    assert "left out: 1 file\n  photos/red/broken.jpg: " in told
    assert "\npassed over: 24 pictures learned before\n" in told, "and not one by one, where nobody finds the others"

    lines = said(capsys, "predict", "mine.learner", "photos/red/0.png", "photos", "--quiet").splitlines()
    assert re.match(r"photos/red/0.png: red (over 99.9|[5-9]\d\.\d) %$", lines[0])
    assert len(lines) == 26
    assert any(line.startswith("photos/red/broken.jpg: cannot be read (") for line in lines)
    found = json.loads(said(capsys, "predict", "mine.learner", "photos/blue", "--top", "2", "--json"))
    assert all(one["names"][0] == "blue" and len(one["probabilities"]) == 2 for one in found)
    said(capsys, "predict", "mine.learner", "photos", "--csv", "out.csv", "--top", "3")
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 25
    assert {row["class"] for row in rows if "/blue/" in row["file"]} == {"blue"}
    assert sum(float(rows[0][f"probability{k}"]) for k in ("", "2", "3")) == pytest.approx(1, abs=1e-5)

    paint("held", "red", "blue", "white", each=4)
    told = said(capsys, "test", "mine.learner", "held", "--unknown", "0.5")
    assert "100.0 % of 8 pictures right" in told
    assert "not counted, as the learner does not know them: white (4)" in told
    assert "--unknown 0.5:" in told
    tested = json.loads(said(capsys, "test", "mine.learner", "held", "--json"))
    assert tested["classes"]["red"]["accuracy"] == 1.0
    assert tested["strangers"] == {"white": 4}

    told = said(capsys, "show", "mine.learner", "--pictures", "memory.png")
    assert "stop sign" in told
    assert re.search(r"class +since \(UTC\) +pictures +exemplars\b", told)
    assert "weak" in told
    assert "kept to go on learning" in told
    with Image.open("memory.png") as drawn:
        assert drawn.width >= 600
    shown = json.loads(said(capsys, "show", "mine.learner", "--json"))
    assert list(shown["classes"]) == ["blue", "red", "stop sign"]

    told = said(capsys, "forget", "mine.learner", "stop sign", "--certificate", "certificate.json")
    assert "The class 'stop sign' was forgotten" in told
    assert json.loads(Path("certificate.json").read_text())["classes_left"] == 2
    assert "stop sign" not in said(capsys, "show", "mine.learner")


def test_a_plan_says_what_a_budget_holds_and_it_holds_that(paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--classes", "3", "--pictures", "12", *NEW]
    told = said(capsys, "plan", *words)
    assert "er on mlp from scratch, 3 classes of 12 pictures, 8 x 8 pixels:" in told
    (planned,) = json.loads(said(capsys, "plan", *words, "--json"))
    assert planned["exemplar_bytes"] == 3 * 8 * 8
    said(capsys, "new", "mine.learner", *NEW)
    said(capsys, "learn", "mine.learner", str(paint("photos", "red", "blue", "green", each=13)))  # one is held out
    shown = json.loads(said(capsys, "show", "mine.learner", "--json"))
    assert shown["kept"] == planned["kept"]
    assert sum(of["exemplars"] for of in shown["classes"].values()) == planned["exemplars"]
    assert planned["seconds"] > 0
    assert planned["peak_memory"] > 10_000_000
    told = said(capsys, "plan", "--classes", "90", "--pictures", "9", *NEW, "--budget", "2KB", code=1)
    assert "does not fit: --budget 2,000 bytes cannot hold 90 classes" in told


def test_time_that_no_step_takes_is_that_of_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Slow:
        """A second to begin, four steps of two seconds each, and three seconds to condense."""

        image_shape = (1, 2, 2)

        def learn(self, task: Task, on_step: Callable[[int, int, Tensor], None]) -> None:
            nonlocal now
            now += 1
            for step in range(4):
                now += 2
                on_step(step + 1, 4, torch.zeros(()))
            now += 3

    monkeypatch.setattr(plan.time, "perf_counter", lambda: now)
    per_step, per_picture, _ = plan._measured(Slow(), Report())  # type: ignore[arg-type]
    assert per_step == 2
    assert per_picture == 4 / plan.MEASURED


@pytest.mark.parametrize(("words", "says"), [
    (["new", "a.learner", "--budget", "lots"], "--budget 'lots' is not a size"),
    (["new", "a.learner", "--methud", "er"], "did you mean --method?"),
    (["new", "a.learner", "--draw", "balanced"], "--draw is an option of er"),
    (["new"], "LEARNER"), (["new", "."], "is a folder"),
    (["learn", "a.learner", "photos"], "a.learner: there is no such file; make one with `protocore new a.learner`"),
    (["predict", "a.learner", "x.jpg"], "there is no such file"), (["test", "a.learner", "x"], "there is no such file"),
    (["forget", "a.learner", "x"], "there is no such file"),
    (["plan", "--classes", "3"], "--pictures"), (["plan", "--classes", "0", "--pictures", "3"], "at least 1"),
    (["predict", "a.learner", "x.jpg", "--top", "0"], "at least 1"), (["learn", "a.learner"], "PICTURES"),
    (["show", ".", "--pictures", "x.png"], "no learner's file")])
def test_a_mistake_is_one_line_and_code_two(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, *words, code=2)
    assert told.startswith("protocore: ")
    assert says in told
    assert not list(Path().glob("*.learner"))


def test_files_that_no_picture_is_in_are_an_error(paint: Paint, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "new", "mine.learner", *NEW, "--steps", "1")
    said(capsys, "learn", "mine.learner", str(paint("photos", "red", "blue", each=2)))
    Path("a.jpg").write_text("no picture")
    assert "no picture could be read:\n  a.jpg: " in said(capsys, "predict", "mine.learner", "a.jpg", code=2)
    Path("empty").mkdir()
    assert "there are no pictures" in said(capsys, "predict", "mine.learner", "empty", code=2)
    assert "none of red, blue" not in said(capsys, "test", "mine.learner", "photos")
    assert "did you mean red?" in said(capsys, "test", "mine.learner", "photos/red", "--class", "rad", code=2)
