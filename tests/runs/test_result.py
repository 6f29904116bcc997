"""Results and run folders: typed, read with a schema, held by one process at a time."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from protocore.cli import main
from protocore.errors import DataError, UserError
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder, differences
from protocore.runs.job import run, stored
from protocore.runs.reporters import Quiet
from protocore.runs.result import read_result, result_of

SMALL = {"method": "er", "benchmark": "digits", "images_per_class": 6, "epochs": 1, "tasks": 2, "spc": 2,
         "backbone": "mlp", "threads": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    return folder, run(configure(SMALL), folder)


def test_what_is_written_is_read_again(finished):
    folder, result = finished
    assert read_result(folder.path).to_json() == result.to_json() == json.loads(folder.result.read_text())
    assert result.bytes_kept == folder.memory.stat().st_size
    assert result.exemplars == {"real": 8}
    again = result_of(result.small(), "small").class_incremental
    assert again.R[-1] == pytest.approx(result.class_incremental.R[-1], abs=1e-3)


def test_results_of_older_versions_are_readable(finished):
    """No kinds in the ledger, no notes, fewer settings, no class names but their number."""
    document = finished[1].to_json()
    document["ledger"] = [{k: e[k] for k in ("name", "bytes", "rows", "shared")} for e in document["ledger"]]
    for gone in ("notes", "class_names", "per_class"):
        del document[gone]
    del document["settings"]["strict"]
    result = result_of(document, "old")
    assert result.exemplars == {"real": 8}
    assert result.classes == 4
    assert result.settings["strict"] is False


def test_where_settings_came_from_is_text_whatever_a_file_says(finished):
    result = result_of(finished[1].to_json() | {"sources": {"lr": 3, "spc": True, "seed": "flag"}}, "odd")
    assert result.sources == {"lr": "3", "spc": "True", "seed": "flag"}


def damaged(document, **changes):
    return json.dumps(document | changes)


DAMAGE = {
    "deep": lambda d: "[" * 200_000,
    "a list": lambda d: "[]",
    "a number": lambda d: "7",
    "nothing": lambda d: "",
    "cut": lambda d: json.dumps(d)[:500],
    "ledger of truths": lambda d: damaged(d, ledger=[False]),
    "ledger of nothing": lambda d: damaged(d, ledger=[{}]),
    "ledger of texts": lambda d: damaged(d, ledger=[{"name": "x", "bytes": "3", "rows": 1, "shared": False}]),
    "no method": lambda d: damaged(d, settings={"benchmark": "digits"}),
    "method a list": lambda d: damaged(d, settings=d["settings"] | {"method": ["er"]}),
    "seed a text": lambda d: damaged(d, settings=d["settings"] | {"seed": "x"}),
    "budget a table": lambda d: damaged(d, settings=d["settings"] | {"budget": {}}),
    "options a list": lambda d: damaged(d, options=[1]),
    "sources nested": lambda d: damaged(d, sources={"a": {"b": 1}}),
    "command a number": lambda d: damaged(d, command=3),
    "huge number": lambda d: json.dumps(d).replace('"tasks": 2,', '"tasks": 1' + "0" * 5000 + ","),
    "infinite": lambda d: json.dumps(d).replace('"tasks": 2,', '"tasks": Infinity,'),
    "R empty": lambda d: damaged(d, class_incremental={"R": [], "A_T": 1}),
    "R ragged kinds": lambda d: damaged(d, class_incremental={"R": [[1], ["x"]], "A_T": 1}),
    "A_T missing": lambda d: damaged(d, class_incremental={"R": [[1.0]]}),
    "A_T true": lambda d: damaged(d, class_incremental={"R": [[1.0]], "A_T": True}),
    "seconds of texts": lambda d: damaged(d, seconds={"learn": "3"}),
    "no tasks": lambda d: damaged(d, tasks=0),
    "no classes": lambda d: damaged(d, class_names=[], classes=0),
    "format": lambda d: damaged(d, format=[1] * 100000),
    "notes": lambda d: damaged(d, notes=[{}]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_result_is_an_error_with_its_name_and_no_traceback(kind, finished, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "result.json").write_text(DAMAGE[kind](finished[1].to_json()))
    with pytest.raises(DataError, match=r"result\.json"):
        read_result(folder)
    for words in (["show", str(folder)], ["run", "--like", str(folder)], ["show", str(folder), "--json"]):
        assert main(words) == 2
    shown = capsys.readouterr()
    assert "result.json" in shown.err
    assert len(shown.err) < 5000
    assert "Traceback" not in shown.err


def test_texts_that_would_steer_a_terminal_are_shown_as_text(finished, tmp_path, capsys):
    document = finished[1].to_json() | {"command": "[/nope] \x1b[2Jprotocore", "notes": ["[bold]\x1b]0;x\x07"],
                                        "class_names": ["\x1b[31m"] * 4}
    (tmp_path / "result.json").write_text(json.dumps(document))
    assert main(["show", str(tmp_path / "result.json")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert "[/nope]" in shown


@pytest.mark.parametrize("name", ["result.json", "checkpoint.safetensors"])
def test_pipes_and_devices_are_not_waited_for(name, tmp_path, capsys):
    for make in (lambda path: os.mkfifo(path), lambda path: os.symlink("/dev/zero", path)):
        path = tmp_path / name
        make(path)
        if name == "result.json":
            assert main(["show", str(tmp_path)]) == 2
        else:
            flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if k not in ("method", "benchmark")]
            assert main(["run", "er", "digits", *flags, "--out", str(tmp_path), "--quiet"]) == 2
        assert name in capsys.readouterr().err
        path.unlink()


# -- folders -----------------------------------------------------------------------------------------------------


def test_a_stored_run_is_this_run_only_with_its_settings_and_its_files(finished, tmp_path):
    folder, result = finished
    config = configure(SMALL)
    assert stored(config, folder) == result
    assert stored(configure(SMALL | {"threads": 2}), folder) == result  # another machine's wish, the same run
    with pytest.raises(UserError, match="--spc 2 there, 3 now"):
        stored(configure(SMALL | {"spc": 3}), folder)
    for gone in (folder.pack, folder.learner, folder.memory):
        kept = gone.read_bytes()
        gone.unlink()
        assert stored(config, folder) is None
        gone.write_bytes(kept)
    for damaged in (folder.pack, folder.learner, folder.memory):
        kept = damaged.read_bytes()
        for change in (kept[:-1], kept[:-1] + bytes([kept[-1] ^ 1])):
            damaged.write_bytes(change)
            assert stored(config, folder) is None
        damaged.write_bytes(kept)
    folder.checkpoint.write_bytes(b"of a run that was begun anew")
    assert stored(config, folder) is None
    folder.checkpoint.unlink()
    assert stored(config, folder) == result


def test_differences_are_those_that_make_another_run(finished):
    there = asdict(finished[1])
    assert differences(there, configure(SMALL | {"threads": 3, "memory_format": "contiguous"})) == []
    assert differences(there, configure(SMALL | {"lr": 0.5})) == ["--lr 0.001 there, 0.5 now"]


HOLD = """
import sys, time
from pathlib import Path
from protocore.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).hold():
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_second_process_is_told_who_holds_the_folder(tmp_path, capsys):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "held\n"
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if k not in ("method", "benchmark")]
    half = tmp_path / f".checkpoint.safetensors.{'0a' * 16}"
    half.write_bytes(b"half written by the first")
    assert main(["run", "er", "digits", *flags, "--out", str(tmp_path), "--quiet"]) == 2
    assert f"process {first.pid}" in capsys.readouterr().err
    assert half.exists()
    first.kill()
    first.wait()
    assert main(["run", "er", "digits", *flags, "--out", str(tmp_path), "--quiet", "--no-figures"]) == 0
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


class Notes(Quiet):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_a_run_like_another_takes_its_threads(finished):
    assert configure({}, like=finished[1]).settings.threads == 1
    assert configure({"threads": 2}, like=finished[1]).settings.threads == 2
    assert finished[1].machine["threads"] == 1


# -- data that change ----------------------------------------------------------------------------------------------


def pictures(folder, classes, brightness=40):
    from PIL import Image

    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(5):
            Image.new("RGB", (16, 16), (brightness * k + i, 90, 30 * i)).save(folder / name / f"{i}.png")


def of_folder(folder, **more):
    return configure({"method": "er", "benchmark": f"folder:{folder}", "spc": 1, "steps": 2, "image_size": 8,
                      "backbone": "mlp", "threads": 1, **more})


def test_a_stored_result_is_not_shown_for_other_data(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    pictures(tmp_path / "signs", "abcd")
    config, folder = of_folder(tmp_path / "signs"), RunFolder(tmp_path / "run")
    result = run(config, folder)
    assert stored(config, folder) == result
    pictures(tmp_path / "signs", "ef")
    with pytest.raises(UserError, match=r"other data.*4 classes.*--again"):
        stored(config, folder)


def test_pictures_that_are_replaced_between_kill_and_resume_are_noticed(tmp_path, monkeypatch):
    from protocore.runs.job import Interrupted

    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    pictures(tmp_path / "signs", "abcd")
    config, folder = of_folder(tmp_path / "signs"), RunFolder(tmp_path / "run")
    asked = []
    with pytest.raises(Interrupted):
        run(config, folder, stop=lambda: bool(asked.append(1)) or len(asked) == 3)
    pictures(tmp_path / "signs", "abcd", brightness=41)
    with pytest.raises(DataError, match=r"data have changed.*--restart"):
        run(config, folder)
    assert run(config, folder, restart=True).classes == 4


@pytest.mark.parametrize(("change", "says"), [
    ({"position": 99}, "99"), ({"step": 10**6}, "1,000,000"), ({"step": "x"}, "step"), ({"position": -1}, "position"),
    ({"class_il": [[1.0]] * 99}, "damaged"),
    ({"position": 2}, "damaged"), ({"position": 0}, "measurements"),
    ({"kept": [1, 2, 3]}, "kept"), ({"task_il": [["x"]]}, "task_il"),
])
def test_a_checkpoint_that_stands_nowhere_is_refused(change, says, tmp_path):
    from safetensors import safe_open

    from protocore.learn.checkpoint import _sum
    from protocore.runs.job import Interrupted

    config, folder, asked = configure(SMALL | {"steps": 5}), RunFolder(tmp_path), []
    with pytest.raises(Interrupted):
        run(config, folder, stop=lambda: bool(asked.append(1)) or len(asked) == 7)
    with safe_open(folder.checkpoint, framework="pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["protocore"])
    header["extra"]["run"] |= change
    text = json.dumps(header)
    from safetensors.torch import save_file

    save_file(tensors, folder.checkpoint, {"protocore": text, "sha256": _sum(text, tensors)})
    with pytest.raises(UserError, match=says) as caught:
        run(config, folder)
    assert "--restart" in str(caught.value)


def test_going_on_with_other_threads_is_said(tmp_path):
    from protocore.runs.job import Interrupted

    config, folder, asked = configure(SMALL | {"steps": 5}), RunFolder(tmp_path), []
    with pytest.raises(Interrupted):
        run(config, folder, stop=lambda: bool(asked.append(1)) or len(asked) == 7)
    notes = Notes()
    run(configure(SMALL | {"steps": 5, "threads": 2}), folder, reporters=[notes])
    assert any("began with 1 thread and goes on with 2" in note for note in notes.said)


def with_units(monkeypatch, there: bool) -> None:
    monkeypatch.setattr("protocore.learn.device._has_bfloat16", lambda device: there)


@pytest.mark.parametrize(("backbone", "side", "units", "precision"), [
    ("convnet", 28, True, "bfloat16"), ("convnet", 28, False, "float32"), ("convnet", 27, True, "float32"),
    ("mlp", 28, True, "float32")])
def test_bfloat16_is_taken_where_it_gains(monkeypatch, backbone, side, units, precision):
    from protocore.learn.device import machine_for

    with_units(monkeypatch, units)
    settings = configure(SMALL | {"backbone": backbone}).settings
    assert machine_for(settings, (1, side, 8)).precision == precision


def test_bfloat16_that_is_asked_for_needs_units_for_it(monkeypatch):
    from protocore.learn.device import machine_for

    settings = configure(SMALL | {"precision": "bfloat16"}).settings
    with_units(monkeypatch, True)
    assert machine_for(settings, (1, 8, 8)).precision == "bfloat16"
    with_units(monkeypatch, False)
    with pytest.raises(UserError, match=r"--precision bfloat16: cpu has no units for it.*use float32"):
        machine_for(settings, (1, 8, 8))


def test_going_on_in_another_precision_is_said_and_stored(monkeypatch, tmp_path):
    from protocore.runs.job import Interrupted

    monkeypatch.setattr("protocore.learn.device.GAINS_FROM", 8)  # digits are small
    config, folder, asked = configure(SMALL | {"backbone": "convnet", "steps": 3}), RunFolder(tmp_path), []
    with_units(monkeypatch, True)
    with pytest.raises(Interrupted):
        run(config, folder, stop=lambda: bool(asked.append(1)) or len(asked) == 4)
    with_units(monkeypatch, False)
    notes = Notes()
    result = run(config, folder, reporters=[notes])
    assert any("began in bfloat16 and goes on in float32" in note for note in notes.said)
    assert result.precision == "float32"


def test_a_run_like_another_says_that_its_precision_is_another(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("protocore.learn.device.GAINS_FROM", 8)
    flags = ["er", "digits", "--spc", "2", "--steps", "2", "--images-per-class", "8", "--width", "8", "--threads", "1",
             "--no-figures", "--quiet"]
    with_units(monkeypatch, True)
    assert main(["run", *flags, "--out", str(tmp_path / "a")]) == 0
    assert "not the same numbers" not in capsys.readouterr().out
    with_units(monkeypatch, False)
    assert main(["run", "--like", str(tmp_path / "a"), "--no-figures", "--quiet", "--out", str(tmp_path / "b")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "computed in bfloat16, this one in float32: not the same numbers" in said
