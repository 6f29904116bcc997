"""The command line as a user meets it: runs, errors without tracebacks, the same numbers again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocore.cli import main

FAST = ["--epochs", "1", "--images-per-class", "20", "--threads", "1", "--quiet"]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOCORE_DATA", raising=False)
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Exit code 2, one line on stderr, no traceback; returns the line."""
    try:
        code = main(list(words))
    except SystemExit as stop:  # argparse's own errors
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2, error
    assert "Traceback" not in error
    return error


def result_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("words", "parts"), [
    (["run", "derp", "digits"], ["derp", "er"]),
    (["run", "er", "digit"], ["digit", "did you mean digits"]),
    (["run", "er", "cifar10"], ["PROTOCORE_DATA", "--data-root", "protocore data get cifar10"]),
    (["run", "er", "digits", "--spc", "0"], ["--spc 0", "at least 1"]),
    (["run", "er", "digits", "--spc", "two"], ["--spc", "'two'", "whole number"]),
    (["run", "er", "digits", "--lr", "-1"], ["--lr"]),
    (["run", "er", "digits", "--budget", "12parsecs"], ["--budget", "12parsecs", "64KB"]),
    (["run", "er", "digits", "--budget", "100"], ["--budget 100", "would fit", "need --budget"]),
    (["run", "er", "digits", "--augment", "spin"], ["--augment", "spin", "flip"]),
    (["run", "er", "digits", "--schedule", "magic"], ["--schedule", "magic", "cosine"]),
    (["run", "er", "digits", "--class-order", "backwards"], ["--class-order", "1993"]),
    (["run", "er", "digits", "--draw", "some"], ["--draw", "some", "balanced"]),
    (["run", "er", "digits", "--fill", "stream", "--spc", "3"], ["--fill stream", "--capacity"]),
    (["run", "joint", "digits", "--online"], ["joint", "online"]),
    (["run", "protocore", "digits", "--noise", "loud"], ["--noise", "loud"]),
    (["run", "er", "digits", "--device", "toaster"], ["--device", "toaster"]),
    (["run", "er", "digits", "--config", "nowhere.yaml"], ["nowhere.yaml"]),
    (["run", "er", "folder:nowhere"], ["nowhere"]),
    (["run", "er", "digits", "--like", "nowhere"], ["nowhere"]),
    (["show", "nowhere"], ["nowhere"]),
    (["data", "get", "imagenet"], ["image-net.org"]),
    (["data", "get", "everything"], ["everything", "cifar100"]),
])
def test_a_users_mistake_is_one_clear_line(capsys: pytest.CaptureFixture[str], words: list[str],
                                           parts: list[str]) -> None:
    error = fails(capsys, *words)
    for part in parts:
        assert part in error


def test_an_unknown_key_in_a_file_names_the_nearest_setting(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("method: er\nepoch: 3\n")
    error = fails(capsys, "run", "--config", "run.yaml")
    assert "--epoch" in error
    assert "did you mean --epochs" in error


def test_run_show_and_run_again_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "er", "digits", "--spc", "2", *FAST]) == 0
    printed = capsys.readouterr().out
    folder = next(Path("runs").iterdir())
    assert str(folder) in printed
    for name in ("accuracy.png", "matrix.png", "exemplars.png", "config.json", "result.json", "memory.safetensors"):
        assert (folder / name).stat().st_size > 0
    first = json.loads((folder / "result.json").read_text())
    assert first["sources"]["spc"] == "flag"
    assert first["sources"]["lr"] == "default"
    assert first["bytes_kept"] == (folder / "memory.safetensors").stat().st_size
    assert main(["show", str(folder), "--all"]) == 0
    assert "memory-format" in capsys.readouterr().out
    again = result_of(capsys, "run", "--like", str(folder), "--out", "other", "--quiet")
    assert again["class_incremental"] == first["class_incremental"]
    assert again["data_digest"] == first["data_digest"]
    assert Path("other/memory.safetensors").read_bytes() == (folder / "memory.safetensors").read_bytes()


def test_a_stored_run_is_not_run_twice_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "finetune", "digits", *FAST]
    result_of(capsys, *command)
    stamp = next(Path("runs").glob("*/result.json"))
    before = stamp.stat().st_mtime_ns
    result_of(capsys, *command)
    assert stamp.stat().st_mtime_ns == before
    result_of(capsys, *command, "--again")
    assert stamp.stat().st_mtime_ns > before


def test_a_folder_that_holds_another_run_is_not_taken_for_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "finetune", "digits", *FAST, "--out", "mine"]
    result_of(capsys, *command)
    result_of(capsys, *command, "--threads", "1")  # how fast it goes is not what it is
    error = fails(capsys, *command, "--seed", "7")
    for part in ("--out mine", "--seed 0 there, 7 now", "--again"):
        assert part in error
    assert result_of(capsys, *command, "--seed", "7", "--again")["settings"]["seed"] == 7


@pytest.mark.parametrize("where", ["--out", "--runs"])
def test_a_place_that_cannot_be_written_is_named(capsys: pytest.CaptureFixture[str], where: str) -> None:
    Path("file").write_text("")
    error = fails(capsys, "run", "finetune", "digits", *FAST, where, "file/below")
    assert "file/below" in error
    assert "cannot be written" in error


def test_data_of_a_benchmark_by_the_benchmarks_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "cifar100-10", "--data-root", "nowhere"]) == 1
    assert "cifar-100" in capsys.readouterr().out


def test_flags_win_over_file_and_file_over_preset(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text('method = "er"\nbenchmark = "digits"\nlr = 0.01\nbatch = 16\n"images-per-class" = 10\n')
    result = result_of(capsys, "run", "--config", "run.toml", "--batch", "8", "--epochs", "1", "--spc", "1", "--quiet")
    assert (result["settings"]["lr"], result["settings"]["batch"]) == (0.01, 8)
    assert result["sources"]["lr"] == "--config run.toml"
    assert result["sources"]["batch"] == "flag"
    assert result["sources"]["augment"] == "benchmark digits"


def test_the_printed_command_gives_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    first = result_of(capsys, "run", "protocore", "digits", "--no-masked", "--condense-steps", "2", *FAST)
    words = first["command"].split()[1:]
    again = result_of(capsys, *words, "--out", "again", "--quiet")
    assert again["options"] == first["options"]
    assert again["class_incremental"] == first["class_incremental"]


def test_help_of_a_method_shows_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "protocore", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--cur-pro" in text
    assert "--budget" in text


def test_list_is_complete_and_readable_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert {"finetune", "joint", "er", "protocore"} <= set(tables["methods"])
    assert {"digits", "fashion-mnist", "cifar10", "cifar100-10", "cifar100-50", "tinyimagenet-20", "imagenet1k-100",
            "folder:PATH"} <= set(tables["benchmarks"])
    details = tables.pop("method_details")
    assert all(line.strip() for table in tables.values() for line in table.values())
    assert set(details) == set(tables["methods"])
    assert details["er"]["bytes_a_class_on_cifar100"] == 61_466
    assert all(d["paper"] and d["checks"] and d["fits"] and d["keeps"] for d in details.values())
    assert main(["list", "methods"]) == 0
    assert "61,466" in capsys.readouterr().out


def test_ones_own_pictures_in_folders(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for k, name in enumerate(("apple", "boat", "cat", "dog")):
        Path("photos", name).mkdir(parents=True)
        for i in range(15):
            stripes = 120 + 80 * np.sin(np.arange(24) * (0.4 + 0.5 * k) + rng.uniform(0, 6))
            picture = (stripes[None, :, None] + rng.uniform(0, 20, (20 + i, 24, 3))).astype(np.uint8)
            Image.fromarray(picture).save(Path("photos", name, f"{i}.png"))
    result = result_of(capsys, "run", "er", "folder:photos", "--image-size", "16", "--epochs", "30", "--spc", "4",
                       "--classes-per-task", "2", "--batch", "8", "--quiet", "--threads", "1")
    assert result["class_names"] == ["apple", "boat", "cat", "dog"]
    assert result["tasks"] == 2
    assert result["class_incremental"]["A_T"] > 50  # stripes of four widths: chance is 25


def test_ctrl_c_stops_with_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "protocore", "run", "er", "digits", "--spc", "2", "--epochs", "4", "--threads",
             "1", "--no-figures"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "after task 1" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130, rest
    assert "goes on from there" in rest
    assert list(Path("runs").glob("*/checkpoint.safetensors"))
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "after task 1 " not in done.stderr  # the first task was not learned a second time
    assert "after task 5 " in done.stderr


def test_several_seeds_end_in_one_table_and_are_not_run_twice(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "er", "digits", "--spc", "2", *FAST, "--no-figures"]
    assert main([*command, "--seeds", "0..2"]) == 0
    printed = capsys.readouterr().out
    for part in ("digits: er spc 2 (2 real)", "seed 0", "seed 2", "mean", "±", "A_T: accuracy"):
        assert part in printed
    stamps = {path: path.stat().st_mtime_ns for path in Path("runs").glob("*/result.json")}
    assert len(stamps) == 3
    results = result_of(capsys, *command, "--seeds", "1,2")
    assert [result["settings"]["seed"] for result in results] == [1, 2]
    assert results[0] == result_of(capsys, *command, "--seed", "1")
    assert stamps == {path: path.stat().st_mtime_ns for path in Path("runs").glob("*/result.json")}


def test_show_lists_the_runs_that_are_there(capsys: pytest.CaptureFixture[str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Path("runs").mkdir()
    assert main(["show"]) == 0
    assert "no runs yet" in capsys.readouterr().out
    for words in (["er", "--spc", "2"], ["er", "--spc", "3", "--seed", "4"], ["finetune"]):
        result_of(capsys, "run", *words, *FAST, "--no-figures")
    monkeypatch.setattr("protocore.cli.stop.Stop.asked", lambda stop: any(Path("runs").glob("*/checkpoint.*")))
    with pytest.raises(SystemExit):
        main(["run", "er", "digits", "--capacity", "10", *FAST, "--checkpoint-seconds", "0"])
    Path("runs/damaged").mkdir()
    Path("runs/damaged/result.json").write_text("{")
    Path("runs/something else").mkdir()
    capsys.readouterr()
    listed = result_of(capsys, "show", "runs")
    assert [run["label"] for run in listed] == [
        "damaged", "er capacity 10 on digits, seed 0", "finetune on digits, seed 0", "er spc 3 on digits, seed 4",
        "er spc 2 on digits, seed 0"]
    assert [run["state"] for run in listed] == ["result.json cannot be read", "not finished: 1 task learned",
                                                "finished", "finished", "finished"]
    assert listed == result_of(capsys, "show") == result_of(capsys, "show", "runs", "runs")
    stored = result_of(capsys, "show", listed[3]["folder"])
    assert (listed[3]["A_T"], listed[3]["bytes_kept"]) == (stored["class_incremental"]["A_T"], stored["bytes_kept"])
    assert main(["show"]) == 0
    printed = capsys.readouterr().out
    for run in listed:
        assert run["label"] in printed
        assert Path(run["folder"]).name in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_demo_compares_memories_of_equal_bytes() -> None:
    from protocore.cli.demo import BUDGET, DEMO

    assert [flags["method"] for flags in DEMO] == ["finetune", "er", "protocore"]
    assert {flags["budget"] for flags in DEMO[1:]} == {BUDGET}


def test_a_run_is_told_to_a_person_as_lines_where_no_bar_can_move() -> None:
    import io

    from rich.console import Console

    from protocore.learn.evaluate import Row
    from protocore.runs.reporters import RunProgress

    class Loss:
        """A loss that costs something to look at."""

        looks = 0

        def __float__(self) -> float:
            Loss.looks += 1
            return 1.0

    notes = []

    def told(console: Console) -> list[str]:
        with RunProgress("er on digits", console) as reporter:
            reporter.data(["4 pictures [left out]"])
            reporter.task(1, 2, 2)
            for step in range(1000):
                reporter.step(step + 1, 1000, Loss())
            notes.extend(task.fields["note"] for task in reporter.bar.tasks)
            reporter.inner("condensing", 1, 2)
            reporter.row(1, Row([40.0, 60.0], [90.0, 90.0], {}), 1234)
            reporter.note("a note")
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    assert told(Console(file=io.StringIO(), width=60)) == [
        "4 pictures [left out]",
        "er on digits, after task 2 of 2: 50.0 % of all seen classes, 90.0 % knowing the task; 1.2 KB kept",
        "Note: a note"]
    assert Loss.looks == 0, "nobody sees it"
    told(Console(file=io.StringIO(), width=200, force_terminal=True))
    assert notes[-1].startswith("loss 1.000, 0:00 left")
    assert 0 < Loss.looks < 100, "a few times a second, not every step"
