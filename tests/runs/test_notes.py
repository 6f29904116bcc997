"""What is chosen for a folder of one's own pictures, and what a run says where its settings cannot work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protocore
from protocore.cli import main
from protocore.config import Resolved
from protocore.data.images import ArrayImages, ImageSet
from protocore.data.stream import Stream
from protocore.learn.loop import steps_for
from protocore.runs.configure import configure
from protocore.runs.notes import notes_after, notes_before

FOLDER = {"benchmark": "folder:signs", "method": "er"}
FAST = ["--epochs", "1", "--images-per-class", "20", "--threads", "1", "--backbone", "mlp"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")


def stream_of(classes: int, each: int, per_task: int) -> Stream:
    labels = np.repeat(np.arange(classes), each)
    data = ImageSet(ArrayImages(np.zeros((len(labels), 1, 8, 8), np.uint8)), labels, tuple("abcdefgh"[:classes]), "0")
    return Stream(data, data, classes_per_task=per_task)


def steps(config: Resolved, samples: int) -> int:
    return steps_for(samples, config.settings)


# -- what a folder gets ----------------------------------------------------------------------------------------


def test_a_small_folder_gets_some_hundred_steps_a_task() -> None:
    config = configure(FOLDER)
    assert steps(config, 120) == 300  # 2 steps an epoch: 6 epochs would be 12
    assert steps(config, 10) == 300
    assert steps(config, 6400) == 600  # never fewer than 6 epochs
    assert (config.settings.least_steps, config.sources["least_steps"]) == (300, "benchmark folder:signs")


def test_epochs_or_steps_that_are_given_win() -> None:
    assert steps(configure(FOLDER | {"epochs": 2}), 120) == 4
    assert steps(configure(FOLDER | {"steps": 5}), 120) == 5
    assert steps(configure(FOLDER | {"least_steps": 50, "epochs": 2}), 120) == 50
    assert configure(FOLDER | {"online": True}).settings.least_steps == 0
    assert steps(configure({"benchmark": "digits", "method": "er"}), 32) == 20  # no other benchmark has it


def test_a_budget_on_a_folder_brings_a_codec_unless_one_is_named() -> None:
    config = configure(FOLDER | {"budget": "64KB"})
    assert (config.settings.codec, config.sources["codec"]) == ("vqgan:4", "benchmark folder:signs with --budget")
    assert configure(FOLDER | {"budget": "64KB", "codec": "pixels"}).settings.codec == "pixels"
    assert configure(FOLDER | {"spc": 3}).settings.codec == "pixels"
    assert configure(FOLDER | {"budget": "64KB", "method": "finetune"}).settings.codec == "pixels"
    assert configure({"method": "er", "benchmark": "digits", "budget": "64KB"}).settings.codec == "pixels"


def test_pictures_of_a_folder_are_not_mirrored_and_the_flag_is_named() -> None:
    config = configure(FOLDER | {"budget": "64KB"})
    assert config.settings.augment == "crop4"
    said = "\n".join(notes_before(config, stream_of(4, 3, 2)))
    assert "--augment crop4,flip" in said
    assert "--codec pixels" in said
    assert notes_before(configure(FOLDER | {"augment": "crop4"}), stream_of(4, 3, 2)) == []


def test_the_choices_stand_in_show_with_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in ("left", "right"):
        Path("signs", name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(Path("signs", name, f"{i}.png"))
    assert main(["run", "er", "folder:signs", "--budget", "10KB", "--image-size", "16", "--backbone", "mlp",
                 "--threads", "1", "--no-figures", "--out", "mine"]) == 0
    assert "--augment crop4,flip" in capsys.readouterr().err
    assert main(["show", "mine"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "--least-steps 300 benchmark folder:signs" in lines
    assert "--codec vqgan:4 benchmark folder:signs with --budget" in lines
    assert "--augment crop4 benchmark folder:signs" in lines
    assert any(line.startswith("Note: Pictures are moved") for line in lines)


def test_a_learner_has_the_defaults_of_the_stream_it_is_for() -> None:
    learner = protocore.learner("er", protocore.stream("digits"), threads=1)
    assert learner.config.sources["augment"] == "benchmark digits"
    stream = stream_of(2, 3, 2)
    stream.benchmark = "folder:signs"
    assert protocore.learner("er", stream, threads=1, spc=2).settings.least_steps == 300


# -- settings that cannot work ---------------------------------------------------------------------------------


def test_replay_of_one_class_a_task_is_told_what_to_add_before_the_training() -> None:
    one = stream_of(4, 3, 1)
    (note,) = notes_before(configure({"method": "er"}), one)
    assert note.endswith("add --draw balanced --current masked")
    (note,) = notes_before(configure({"method": "er", "draw": "balanced"}), one)
    assert note.endswith("add --current masked")
    assert notes_before(configure({"method": "er", "draw": "balanced", "current": "masked"}), one) == []
    assert notes_before(configure({"method": "er"}), stream_of(4, 3, 2)) == []
    assert notes_before(configure({"method": "finetune"}), one) == []
    assert len(notes_before(configure({"method": "er"}), stream_of(5, 3, 2))) == 1  # the last task brings one class


def test_a_network_that_did_not_learn_its_tasks_is_named_with_the_epochs_to_add() -> None:
    config, stream = configure({"method": "er", "epochs": 6, "batch": 64}), stream_of(4, 60, 2)
    (note,) = notes_after(config, stream, [[50.0], [30.0, 40.0]], [[55.0], [50.0, 60.0]])
    assert "58 % of its test pictures (chance is 50 %), with 12 steps a task" in note
    assert note.endswith("Add --epochs 150")
    assert notes_after(config, stream, [[90.0], [60.0, 70.0]], [[90.0], [80.0, 95.0]]) == []
    assert notes_after(config, stream_of(4, 60, 1), [[100.0], [50.0, 60.0]], [[100.0], [100.0, 100.0]]) == []
    enough = configure({"method": "er", "steps": 5000})
    assert notes_after(enough, stream, [[50.0], [30.0, 40.0]], [[55.0], [50.0, 60.0]]) == []
    joint = configure({"method": "joint", "epochs": 6})
    assert len(notes_after(joint, stream, [[30.0, 30.0]], [[55.0, 60.0]])) == 1


def test_a_run_that_ends_at_the_newest_classes_says_what_to_add() -> None:
    r, told = [[100.0], [0.0, 100.0]], [[100.0], [90.0, 100.0]]
    (note,) = notes_after(configure({"method": "er"}), stream_of(4, 60, 2), r, told)
    assert note.endswith("add --draw balanced --current masked")
    (note,) = notes_after(configure({"method": "der"}), stream_of(4, 60, 2), r, told)
    assert "--budget" in note
    assert notes_after(configure({"method": "finetune"}), stream_of(4, 60, 2), r, told) == []


def test_notes_come_while_it_runs_and_with_a_stored_result(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "er", "digits", "--classes-per-task", "1", "--spc", "1", "--tasks", "2", *FAST, "--no-figures"]
    assert main(words) == 0
    assert "Note: er with one class a task" in capsys.readouterr().err
    assert main(words) == 0
    assert "Note: er with one class a task" in capsys.readouterr().out
