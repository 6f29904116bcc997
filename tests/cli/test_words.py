"""How the words of a command are understood: flags in any order, mistakes that name what was meant."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocore.cli import main
from protocore.cli.parser import sort_words
from protocore.config import MOST_CONFIG, Settings, flag, kind_of
from protocore.methods import METHODS

FAST = ["--epochs", "1", "--images-per-class", "20", "--threads", "1", "--quiet", "--no-figures"]
PROTOCORE = [sys.executable, "-m", "protocore"]
COMMANDS = ("new", "learn", "predict", "test", "plan", "merge", "forget", "audit", "run", "demo", "list", "show",
            "report", "frontier", "health", "data", "data get", "pack", "pack inspect",
            "decoder", "decoder train", "completion")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROTOCORE_DATA", raising=False)
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Exit code 2 and one short message without a traceback, which is returned."""
    assert main(list(words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("protocore: ")
    assert "Traceback" not in error
    assert len(error) < 2000
    return error


# -- order -----------------------------------------------------------------------------------------------------


def test_words_are_sorted_by_which_flags_take_a_value() -> None:
    takes = {"--seed": True, "--quiet": False, "--lr": True}
    found = sort_words(["--seed", "1", "er", "--quiet", "digits", "--lr", "-1e5", "--lr=2", "--odd", "x"], takes)
    assert found.plain == ["er", "digits", "x"]
    assert found.flags == ["--seed=1", "--quiet", "--lr=-1e5", "--lr=2"]
    assert found.unknown == ["--odd"]
    assert sort_words(["--seed", "--quiet"], takes).flags == ["--seed", "--quiet"], "a flag is no value"


def test_flags_stand_before_between_and_after_the_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    kept = []
    for words in (["er", "digits", "--seed", "1", "--draw", "balanced"],
                  ["--seed", "1", "er", "digits", "--draw", "balanced"],
                  ["--draw", "balanced", "er", "--seed=1", "digits"],
                  ["--draw=balanced", "--seed", "1", "er"]):
        assert main(["run", *words, *FAST, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        kept.append((result["settings"], result["options"]))
    assert kept[0][0]["seed"] == 1
    assert kept[0][1]["draw"] == "balanced"
    assert all(one == kept[0] for one in kept)
    assert main(["list", "--json", "codecs"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"codecs"}


def test_options_of_the_default_method_need_not_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--cur-pro", "0.2", *FAST, "--condense-steps", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["settings"]["method"], result["options"]["cur_pro"]) == ("protocore", 0.2)


def test_a_named_method_wins_over_that_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("method: protocore\n")
    assert main(["run", "--config", "run.yaml", "--draw", "balanced", "er", *FAST, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["method"] == "er"


@pytest.mark.parametrize(("words", "parts"), [
    (["run", "er", "digits", "--bugdet", "3KB"], ["--bugdet", "did you mean --budget"]),
    (["run", "--bugdet", "3KB", "er", "digits"], ["--bugdet", "did you mean --budget"]),
    (["run", "er", "--budg", "3KB"], ["--budg", "did you mean --budget"]),
    (["run", "finetune", "--draw", "balanced"], ["--draw", "not an option of finetune", "er"]),
    (["run", "er", "digits", "more"], ["'more'", "too many"]),
    (["rnu"], ["rnu", "did you mean run"]),
    (["list", "method"], ["method", "did you mean methods"]),
    (["pack", "inspec", "x"], ["inspec", "did you mean inspect"]),
    (["--json", "list"], ["--json", "after a command"]),
    (["run", "er", "--seeds", "2..1"], ["--seeds", "1..2"]),
    (["run", "er", "--seeds", "one"], ["--seeds", "'one'", "0..2"]),
    (["run", "er", "--seeds", "0..99999999"], ["--seeds", "1,000"]),
    (["run", "er", "--seeds", "0,1", "--seed", "3"], ["--seeds", "--seed"]),
    (["run", "er", "--seeds", "0,1", "--out", "x"], ["--seeds", "--out", "--runs"]),
    (["show", "one", "two"], ["'two'", "too many"]),
    (["show", "runs", "nowhere"], ["nowhere", "no folder of runs"]),
])
def test_a_word_that_is_not_known_names_what_was_meant(capsys: pytest.CaptureFixture[str], words: list[str],
                                                       parts: list[str]) -> None:
    error = fails(capsys, *words)
    for part in parts:
        assert part in error


# -- help ------------------------------------------------------------------------------------------------------


def test_help_of_every_command_loads_no_torch_and_is_quick() -> None:
    code = ("import sys, resource\n"
            "from protocore.cli import main\n"
            "try: main(sys.argv[1:])\n"
            "except SystemExit: pass\n"
            "loaded = sorted({'torch', 'numpy', 'rich', 'matplotlib'} & sys.modules.keys())\n"
            "print(loaded, resource.getrusage(resource.RUSAGE_SELF).ru_utime, file=sys.stderr)\n")
    for command in ("", *COMMANDS):
        done = subprocess.run([sys.executable, "-c", code, *command.split(), "--help"], capture_output=True, text=True)
        loaded, seconds = done.stderr.rsplit(" ", 1)
        assert loaded == "[]", command
        assert float(seconds) < 1, command  # 0.15 where nothing else runs; a busy machine takes longer
        assert "usage: protocore" in done.stdout


def test_no_words_at_all_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    assert "COMMAND" in capsys.readouterr().out


# -- numbers ---------------------------------------------------------------------------------------------------

BAD = (str(10**30), "-" + str(10**30), "nan", "inf", "-inf", "", "1e400", "9" * 5000, "²")


def test_every_number_has_limits_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for command, cls in ((["run", "er"], Settings), *((["run", m.name], m.Options) for m in METHODS.values())):
        for field in dataclasses.fields(cls):
            if kind_of(cls, field.name)[0] in (int, float):
                for value in BAD:
                    error = fails(capsys, *command, flag(field.name), value)
                    assert flag(field.name) in error
                    seen += 1
    assert seen > 500
    for words in (["health", "x", "--steps"], ["run", "er", "--checkpoint-seconds"], ["run", "er", "--seeds"]):
        for value in BAD:
            assert words[-1] in fails(capsys, *words, value)


@pytest.mark.parametrize(("name", "value", "limit"), [
    ("--budget", "99999999999999999GB", "1,000,000,000,000,000,000"), ("--spc", "99999999999999999999", "1,000,000"),
    ("--width", "9223372036854775808", "8,192"), ("--threads", "100000", "1,024"),
    ("--epochs", "1000000001", "1,000,000,000"), ("--image-size", "100000", "4,096"), ("--batch", "99999999", "1,048"),
    ("--seed", str(2**63), "9,223,372,036,854,775,808"), ("--online-window", "0", "1"), ("--lr", "-1", "0"),
])
def test_a_limit_is_named(capsys: pytest.CaptureFixture[str], name: str, value: str, limit: str) -> None:
    error = fails(capsys, "run", "er", "digits", name, value)
    for part in (name, value, limit):
        assert part in error


# -- files of settings -----------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [{','.join([f'*{b}'] * 9)}]\n"
                                               for b, n in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(("name", "text", "parts"), [
    ("bomb.yaml", BOMB, ["anchor or alias"]),
    ("deep.yaml", "[" * 30000, ["nested"]),
    ("deep.toml", "lr = " + "[" * 30000, ["not valid .toml"]),
    ("dots.toml", "a." * 30000 + "a = 1", ["64 dots"]),
    ("many.yaml", "".join(f"s{i}: 1\n" for i in range(3000)), ["very long"]),
    ("large.yaml", "#" * (MOST_CONFIG + 1), ["at most 65,536"]),
    ("list.yaml", "lr: [1, 2]", ["--lr [1, 2] is not a number"]),
    ("table.toml", "[lr]\nx = 1", ["--lr", "is not a number"]),
    ("key.yaml", "1: 2", ["1 is no name of a setting"]),
    ("date.toml", "lr = 2020-01-01", ["--lr", "is not a number"]),
    ("huge.yaml", "spc: " + "9" * 3000, ["--spc", "bits", "1,000,000"]),
    ("huge.toml", "spc = " + "9" * 5000, ["not valid .toml"]),
    ("steer.yaml", '"\\e[31mlr": 1', ["unknown setting", "\\x1b"]),
    ("word.yaml", "just words", ["`setting: value` lines"]),
])
def test_a_hostile_file_of_settings_is_one_clear_line(capsys: pytest.CaptureFixture[str], name: str, text: str,
                                                      parts: list[str]) -> None:
    Path(name).write_text(text)
    error = fails(capsys, "run", "er", "--config", name)
    assert "\x1b" not in error
    for part in parts:
        assert part in error


def test_a_file_of_settings_is_a_regular_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe.yaml")
    Path("link.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "link.yaml", "."):
        assert "not a file" in fails(capsys, "run", "er", "--config", name)
    Path("latin.yaml").write_bytes(b"method: \xff")
    assert "UTF-8" in fails(capsys, "run", "er", "--config", "latin.yaml")


# -- output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list methods", "list --json", "--help", "run --help", "show --json"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_output_that_cannot_be_written_is_said(command: str, buffered: str) -> None:
    Path("runs").mkdir()
    environment = os.environ | {"PYTHONUNBUFFERED": buffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROTOCORE, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True,
                              env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("protocore: cannot write to standard output (No space left on device)")
    assert done.stderr.count("\n") == 1
    closed = subprocess.run(f"exec {sys.executable} -m protocore {command} >&-", shell=True, capture_output=True,
                            text=True, env=environment)
    assert closed.returncode == 2
    assert closed.stderr == "protocore: cannot write to standard output: it is closed\n"


@pytest.mark.parametrize("command", ["list methods", "list --json", "run --help"])
def test_a_reader_who_has_seen_enough_is_no_error(command: str) -> None:
    code = f"set -o pipefail; {sys.executable} -m protocore {command} | true"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_too_little_memory_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ...")

    monkeypatch.setattr("protocore.runs.job.run", too_large)
    assert "not enough memory" in fails(capsys, "run", "er", *FAST)
    monkeypatch.setattr("protocore.runs.job.run", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("a fault")))
    with pytest.raises(RuntimeError, match="a fault"):
        main(["run", "er", *FAST])
