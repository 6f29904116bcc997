"""A learner's file from the first class to the last, in many processes."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import protocore
from field.conftest import TINY, Paint
from protocore.errors import DataError, HeldError, UserError
from protocore.field import learning
from protocore.field.keeper import Keeper
from protocore.field.report import Interrupted, Report
from protocore.field.sources import class_name, look_alikes
from protocore.files import hold_file


class Told(Report):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.parts: dict[str, tuple[int, int]] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, what: str, done: int, of: int) -> None:
        self.parts[what] = done, of


def names_of(keeper: Keeper, folder: Path) -> list[str]:
    return [one.names[0] for one in keeper.predict([folder])]


def test_classes_come_in_several_processes_and_stay(keeper: Keeper, paint: Paint) -> None:
    first = keeper.learn([paint("first", "red", "blue")])
    assert (first.new, first.more, first.resumed) == ({"blue": 8, "red": 8}, {}, False)
    again = Keeper(keeper.path)  # another process would know no more than this
    second = again.learn([paint("second", "green", "red")])
    assert (second.new, second.more) == ({"green": 8}, {"red": 8})
    assert again.learner.classes_ == ["blue", "red", "green"]
    for name in ("red", "green", "blue"):
        assert names_of(keeper, paint(f"held {name}", name, each=4)) == [name] * 4  # the first keeper sees it, too
    tested = keeper.test([paint("held", "red", "green", "blue", each=5)])
    assert (tested.pictures, tested.accuracy, tested.confused) == (15, 1.0, [])
    assert 0 <= tested.calibration_error < 0.3
    shown = keeper.show()
    assert [(name, of.pictures, of.weak) for name, of in shown.classes.items()] == [
        ("blue", 8, False), ("red", 16, False), ("green", 8, False)]
    assert [(entry.what, dict(entry.pictures)) for entry in shown.history] == [
        ("new", {}), ("learn", {"blue": 8, "red": 8}), ("learn", {"green": 8, "red": 8})]
    assert all(entry.version == protocore.__version__ and entry.when.endswith("+00:00") for entry in shown.history)
    assert 0 < shown.kept <= 16_000
    assert shown.file_bytes == keeper.path.stat().st_size
    json.dumps([first.to_json(), tested.to_json(), shown.to_json()])


def test_a_file_is_a_learner_of_python(keeper: Keeper, paint: Paint) -> None:
    keeper.learn([paint("first", "red", "blue")])
    learner = protocore.Learner.load(keeper.path)
    pictures = sorted(paint("held", "red", "blue", each=2).rglob("*.png"))
    assert learner.predict(pictures).tolist() == ["blue", "blue", "red", "red"]
    found = keeper.predict(pictures, top=2)
    most_likely_first = np.sort(learner.predict_proba(pictures))[:, ::-1]
    assert np.allclose([one.probabilities for one in found], most_likely_first, atol=1e-5)
    assert [one.path for one in found] == pictures


def test_a_new_file_is_settings_and_nothing_else(tmp_path: Path) -> None:
    keeper = Keeper.new(tmp_path / "deep" / "mine.learner", budget="4KB", seed=3)
    assert keeper.document.given == {"budget": 4000, "seed": 3}
    assert keeper.show().method is None
    assert list((tmp_path / "deep").iterdir()) == [keeper.path]
    with pytest.raises(UserError, match="learned nothing yet"):
        keeper.predict([tmp_path])
    with pytest.raises(UserError, match="learned nothing yet"):
        protocore.Learner.load(keeper.path)
    before = keeper.path.read_bytes()
    with pytest.raises(UserError, match="is there already"):
        Keeper.new(keeper.path)
    assert keeper.path.read_bytes() == before
    assert Keeper.new(tmp_path / "other").document.given["budget"] == 64_000
    with pytest.raises(UserError, match="unknown setting"):
        Keeper.new(tmp_path / "third", bugdet="4KB")
    with pytest.raises(UserError, match="is not a size"):
        Keeper.new(tmp_path / "third", budget="much")
    assert not (tmp_path / "third").exists()


def test_one_class_one_picture_and_a_table(keeper: Keeper, paint: Paint, tmp_path: Path) -> None:
    photos = paint("photos", "red", "blue", "green")
    keeper.learn([photos / "red", photos / "blue" / "0.png"], name="warm")
    assert keeper.show().classes["warm"].pictures == 9
    lone = keeper.learn([photos / "green" / "0.png"], name=" green ")  # alone in its task
    assert lone.new == {"green": 1}
    assert lone.weak == ["green"]
    assert keeper.show().classes["green"].weak
    table = tmp_path / "table.csv"
    table.write_text("file,label\n" + "".join(f"photos/blue/{k}.png,ocean\n" for k in range(1, 5)))
    assert keeper.learn([table]).new == {"ocean": 4}
    assert keeper.learner.classes_ == ["warm", "green", "ocean"]


@pytest.mark.parametrize("settings", [TINY, {"backbone": "mlp", "freeze": "all", "method": "ncm", "image_size": 8}],
                         ids=["trained", "frozen"])
def test_classes_that_are_given_in_any_order_are_those_of_the_learner(
        tmp_path: Path, paint: Paint, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    monkeypatch.setattr(learning, "PART", 4)  # a class may come with a later part than one that is after it by name
    photos, keeper = paint("photos", "red", "blue", "green", each=6), Keeper.new(tmp_path / "mine.learner", **settings)
    table = tmp_path / "table.csv"
    table.write_text("".join(f"photos/{name}/{k}.png,{name}\n" for name in ("red", "green", "blue") for k in range(6)))
    keeper.learn([table])
    keeper.learn([paint("more", "yellow") / "yellow"], name="a")  # the file is one that goes on
    again = Keeper(keeper.path)
    assert list(again.document.classes) == again.learner.classes_
    assert sorted(again.document.classes) == ["a", "blue", "green", "red"]
    assert names_of(again, photos / "green") == ["green"] * 6
    assert again.forget("green").found == 0
    assert list(again.show().classes) == again.learner.classes_


def test_a_picture_is_learned_once_whatever_its_file_is_called(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red", "blue")
    shutil.copy(photos / "red" / "0.png", photos / "red" / "copy.png")
    shutil.copy(photos / "red" / "1.png", photos / "blue" / "wrong.png")
    learned = keeper.learn([photos])
    assert learned.new == {"red": 7, "blue": 8}  # the one of two classes is of neither
    whys = {Path(skip.file).name: skip.why for skip in learned.skipped}
    assert re.match("the same picture as .*(0|copy).png$", whys["copy.png"])
    assert "for another class" in whys["wrong.png"] or "given for 2 classes" in whys["wrong.png"]
    before = keeper.path.read_bytes()
    again = keeper.learn([photos])
    assert not again.new
    assert not again.more
    assert keeper.path.read_bytes() == before
    (photos / "green").mkdir()
    Image.new("RGB", (9, 9), (10, 250, 10)).save(photos / "green" / "a.png")
    third = keeper.learn([photos])  # the folder has grown: what is new in it is learned, and nothing else
    assert (third.new, third.more) == ({"green": 1}, {})


def test_pictures_are_learned_in_an_order_that_their_content_decides(tmp_path: Path, paint: Paint) -> None:
    """Files of other names, in another order, make the same learner."""
    photos = paint("photos", "red", "blue")
    for path in photos.rglob("*.png"):
        renamed = tmp_path / "renamed" / path.parent.name / f"{9 - int(path.stem)}.png"
        renamed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, renamed)
    one, other = (Keeper.new(tmp_path / f"{name}.learner", **TINY | {"steps": 6}) for name in ("one", "other"))
    one.learn([photos])
    other.learn([tmp_path / "renamed"])
    first, second = ({**keeper.learner.net.state_dict(), **keeper.learner.memory()} for keeper in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.document.calibration == other.document.calibration


def test_what_cannot_be_used_is_named_and_the_rest_is_learned(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red", "blue")
    (photos / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    (photos / "red" / "empty.png").touch()
    (photos / "blue" / "notes.txt").write_text("blue")
    (photos / "nobody").mkdir()
    (photos / "red" / "old").mkdir()
    for file in ("loose.png", "red/old/k.png"):
        (photos / file).write_bytes((photos / "red" / "0.png").read_bytes())
    learned = keeper.learn([photos])
    assert {Path(skip.file).name for skip in learned.skipped} == {"broken.jpg", "empty.png", "notes.txt", "nobody",
                                                                  "loose.png", "old"}
    entry = keeper.show().history[-1]
    assert entry.skipped == 6
    assert {Path(skip.file).name for skip in entry.named} == {Path(skip.file).name for skip in learned.skipped}
    found = keeper.predict([photos / "red" / "broken.jpg", photos / "red" / "0.png"])
    assert found[0].problem
    assert (found[1].problem, found[1].names) == (None, ["red"])
    for path in photos.rglob("*.png"):
        path.write_bytes(b"no picture")
    before = keeper.path.read_bytes()
    with pytest.raises(DataError, match=r"none of \d+ pictures could be used"):
        Keeper(keeper.path).learn([photos])
    assert keeper.path.read_bytes() == before


@pytest.mark.parametrize(("sources", "name", "says"), [
    (["photos/red"], None, "did you mean --class"), (["photos/red/0.png"], None, "--class NAME"),
    (["."], None, r"did you mean .*photos\?"), (["nowhere"], None, "no such file or folder"), ([], None, "no pictures"),
    (["empty"], None, "neither pictures nor folders"), (["photos"], "", "cannot be the name"),
    (["table.csv"], "red", "leave out --class"), (["table.csv"], None, "line 1 has 1 column where .* a comma"),
    (["odd.csv"], None, "CSV in UTF-8"), (["bare.csv"], None, r"bare.csv: names no picture; give a line")])
def test_a_mistake_says_the_way_out(keeper: Keeper, paint: Paint, sources: list[str], name: str | None,
                                    says: str) -> None:
    root = paint("photos", "red", "blue", each=1).parent
    (root / "empty").mkdir()
    (root / "table.csv").write_text("photos/red/0.png;red\n")
    (root / "bare.csv").write_text("file,label\n")
    (root / "odd.csv").write_bytes(b"\xff\xfe\x00x")
    with pytest.raises(UserError, match=says):
        keeper.learn([root / source for source in sources], name=name)
    assert keeper.show().method is None


def test_a_name_is_one_line_of_at_most_200_characters() -> None:
    assert class_name(f" {'x' * 200}\n", "here") == "x" * 200
    for text in ("x" * 201, "a\nb", "a\x1b[2J", " "):
        with pytest.raises(UserError, match="give 1 to 200 characters"):
            class_name(text, "here")


def test_pictures_and_names_that_were_nearly_there_before_are_told_once(keeper: Keeper, paint: Paint) -> None:
    photos, told = paint("photos", "red", "blue"), Told()
    assert not keeper.learn([photos], report=told).notes
    assert not told.notes, "an empty word would be an empty line"
    (photos / "red").rename(photos / "RED")
    alike, again = keeper.learn([photos]).notes
    assert alike == "'red' and 'RED' are 2 classes; give them one name if you mean one"
    assert again.startswith("8 pictures learned before as 'red', and now as 'RED' too: ")
    assert not keeper.learn([paint("more", "red", each=1)]).notes, "what was said once is not said again"


def test_names_that_differ_in_capitals_and_spaces_look_alike() -> None:
    assert look_alikes({"stop_sign", "Stop-Sign", "go"}, {"stop sign": ()}) == [
        "'stop sign' and 'Stop-Sign' and 'stop_sign' are 3 classes; give them one name if you mean one"]
    assert not look_alikes({"stopsign", "stop"}, {"stop sign": ()})


def test_names_that_look_alike_are_one_class(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red", "blue")
    (photos / "red").rename(photos / "cafe\u0301")
    keeper.learn([photos])
    more = keeper.learn([paint("more", "red") / "red"], name="caf\u00e9")
    assert (more.new, more.more) == ({}, {"caf\u00e9": 8})


def test_the_budget_holds_at_every_learn_and_one_too_small_changes_nothing(tmp_path: Path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **TINY | {"budget": 2000})
    for name in ("red", "blue", "green", "yellow"):
        assert keeper.learn([paint(name, name)]).kept <= 2000
        assert keeper.show().kept <= 2000
    small = Keeper.new(tmp_path / "small.learner", **TINY | {"budget": 300})
    before = small.path.read_bytes()
    with pytest.raises(UserError, match="--budget 300"):
        small.learn([paint("all", "red", "blue")])
    assert small.path.read_bytes() == before


# -- interruptions -----------------------------------------------------------------------------------------------


def test_a_learn_that_was_stopped_goes_on_where_it_stood_bit_for_bit(keeper: Keeper, paint: Paint) -> None:
    other = Keeper(keeper.path.with_name("other.learner"))
    shutil.copy(keeper.path, other.path)
    photos = paint("photos", "red", "blue")
    steps = iter(range(100))
    with pytest.raises(Interrupted):
        keeper.learn([photos], stop=lambda: next(steps) == 25)
    assert keeper.show().method is None
    assert keeper.checkpoint.is_file()
    told = Told()
    assert keeper.learn([photos], report=told).resumed
    assert any("going on" in note for note in told.notes)
    assert not keeper.checkpoint.exists()
    assert not other.learn([photos]).resumed
    assert all((a == b).all() for a, b in zip(keeper.learner.net.state_dict().values(),
                                              other.learner.net.state_dict().values(), strict=True))
    assert keeper.learner.temperature == other.learner.temperature


def test_a_checkpoint_of_other_pictures_or_of_a_damaged_file_is_not_taken(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red", "blue")
    with pytest.raises(Interrupted):
        keeper.learn([photos], stop=lambda: True)
    told = Told()
    assert not keeper.learn([paint("more", "green", "red")], report=told).resumed
    assert any("of other pictures is dropped" in note for note in told.notes)
    keeper.checkpoint.write_bytes(b"nonsense")
    told = Told()
    assert not keeper.learn([photos], report=told).resumed
    assert any("of no use" in note for note in told.notes)
    assert keeper.learner.classes_ == ["green", "red", "blue"]


def test_a_killed_learn_leaves_the_file_whole_and_the_same_command_ends_it(tmp_path: Path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **TINY | {"steps": 500})
    keeper.learn([paint("first", "red", "blue")])
    photos = paint("photos", "green", "yellow")
    held, before = paint("held", "red", "blue", each=2), keeper.path.read_bytes()
    learn = [sys.executable, "-m", "protocore", "learn", str(keeper.path), str(photos), "--checkpoint-seconds", "0"]
    with subprocess.Popen(learn, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        until = time.monotonic() + 300
        while not keeper.checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, "it had ended: there was nothing to kill"
    assert keeper.path.read_bytes() == before
    assert Keeper(keeper.path).test([held]).accuracy == 1.0
    assert Keeper(keeper.path).learn([photos]).resumed
    assert Keeper(keeper.path).learner.classes_ == ["blue", "red", "green", "yellow"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_of_two_at_once_the_second_waits_or_says_who_the_first_is(keeper: Keeper, paint: Paint) -> None:
    photos = paint("photos", "red", "blue")
    keeper.patience = 0.2
    told = Told()
    with hold_file(keeper.path), pytest.raises(HeldError, match=f"process {os.getpid()} on .* is changing this file"):
        keeper.learn([photos], report=told)
    assert any("waiting: process" in note for note in told.notes)
    keeper.learn([photos])


# -- what a file may hold ----------------------------------------------------------------------------------------


def test_a_damaged_or_foreign_file_is_one_error(keeper: Keeper, paint: Paint, tmp_path: Path) -> None:
    keeper.learn([paint("photos", "red", "blue")])
    whole = keeper.path.read_bytes()
    for data in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"x",
                 whole.replace(b'\\"pictures\\": 8', b'\\"pictures\\": 9', 1)):
        assert data != whole
        keeper.path.write_bytes(data)
        for verb in (keeper.show, lambda: keeper.predict([tmp_path]), lambda: keeper.learn([tmp_path / "photos"])):
            with pytest.raises(DataError):
                verb()
        assert keeper.path.read_bytes() == data
    protocore.Learner("er", (1, 8, 8), spc=1).save(keeper.path)
    with pytest.raises(DataError, match="none that `protocore new` made"):
        keeper.show()
    with pytest.raises(DataError, match="protocore new"):
        Keeper(tmp_path / "nowhere").learn([tmp_path])
    assert not list(tmp_path.glob(".*"))


# -- forgetting ----------------------------------------------------------------------------------------------------


def test_a_forgotten_class_is_in_no_byte_of_the_file(tmp_path: Path, paint: Paint) -> None:
    keeper = Keeper.new(tmp_path / "mine.learner", **TINY)
    photos = paint("photos", "red", "blue", "green", each=16)
    (photos / "green").rename(photos / "secret")
    (photos / "secret" / "broken.png").write_bytes(b"no picture")
    shutil.copy(photos / "red" / "0.png", photos / "secret" / "1 twice.png")
    with pytest.raises(Interrupted):  # it leaves a checkpoint
        keeper.learn([photos], stop=lambda: True)
    keeper.learn([photos])
    keeper.checkpoint.write_bytes(keeper.path.read_bytes())
    prints = keeper.document.classes["secret"].prints
    before = keeper.path.read_bytes()
    assert b"secret" in before
    certificate = keeper.forget("secret", pictures=[photos / "secret" / "0.png"])
    assert (certificate.name, certificate.classes_left, certificate.found) == ("secret", 2, 0)
    assert certificate.file_before == hashlib.sha256(before).hexdigest()
    after = keeper.path.read_bytes()
    assert certificate.file_after == hashlib.sha256(after).hexdigest()
    assert b"secret" not in after
    assert all(base64.b64encode(prints[at : at + 6]) not in after for at in range(0, len(prints), 6))
    assert not keeper.checkpoint.exists()
    assert any("scores of held-out pictures" in words for words in certificate.mixed)
    shown = keeper.show()
    assert list(shown.classes) == ["blue", "red"]
    assert [entry.what for entry in shown.history] == ["new", "learn", "forget"]
    assert keeper.test([paint("held", "red", "blue", each=3)]).accuracy == 1.0
    assert keeper.learn([photos]).new["secret"] == 16  # it may come again
    with pytest.raises(UserError, match="did you mean secret"):
        keeper.forget("secrets")
    for name in ("secret", "red", "blue"):
        keeper.forget(name)
    assert keeper.show().classes == {}
    with pytest.raises(UserError, match="learned nothing yet"):
        keeper.predict([photos])
    assert keeper.learn([photos]).new == {"blue": 16, "red": 15, "secret": 16}


def test_a_full_disk_is_told_and_changes_nothing(keeper: Keeper, paint: Paint, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, before = paint("photos", "red", "blue"), keeper.path.read_bytes()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        disk.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"mine.learner: cannot be written \(No space left on device\)"):
            keeper.learn([photos])
    assert keeper.path.read_bytes() == before
    assert {path.name for path in keeper.path.parent.iterdir()} == {"mine.learner", "photos"}
    assert keeper.learn([photos]).new == {"red": 8, "blue": 8}
