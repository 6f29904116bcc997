"""`protocore compare`: grids from words and files, planned, run, killed and gone on with."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from protocore.bench.cells import Cell, Outcome, Plan, folder_of
from protocore.bench.cells.engine import Told
from protocore.bench.cells.grid_file import read_grid
from protocore.bench.cells.measure import Cost
from protocore.bench.cells.plan import UNMEASURED, Kind
from protocore.bench.cells.show import Progress, duration, plan_table, reasons
from protocore.bench.cells.small import REPRODUCED, kept
from protocore.cli import main
from protocore.cli.compare import _end
from protocore.runs.job import run
from protocore.runs.result import read_result

ROOT = Path(__file__).parents[2]
TINY = ["--epochs", "1", "--images-per-class", "20", "--tasks", "2"]


def command(runs: Path, *words: str) -> list[str]:
    return ["compare", "--methods", "finetune,er", "--spc", "2", *TINY, "--no-measure", "--runs", str(runs), *words]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_grid_killed_in_the_middle_ends_complete_and_no_cell_is_run_twice(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [sys.executable, "-m", "protocore",
             *command(runs, "--seeds", "0..5", "--workers", "1", "--checkpoint-seconds", "0")]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    worker = None
    while worker is None:  # some cells are done, and one is at work
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
        if len(list(runs.glob("*/result.json"))) >= 3:
            held = next(iter(runs.glob("*/.lock")), None)
            try:
                found = re.search(r"process (\d+)", held.read_text()) if held else None
            except FileNotFoundError:
                continue
            worker = int(found[1]) if found else None
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    deadline = time.monotonic() + 60
    while alive(worker):
        assert time.monotonic() < deadline, "a worker outlives the grid that began it"
        time.sleep(0.05)
    assert 3 <= len(before) < 12

    second = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert second.returncode == 0, second.stderr
    assert "12 of 12 done" in second.stderr
    results = {path.parent.name: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    assert len(results) == 12
    assert {name: results[name] for name in before} == before
    logs = {name: (runs / name / "log.txt").read_text() for name in results}
    begun = {name: len(re.findall(r" (?:begins|goes on): ", text)) for name, text in logs.items()}
    interrupted = [name for name, count in begun.items() if count > 1]
    assert len(interrupted) <= 1  # the one that was at work
    assert not set(interrupted) & set(before)
    assert sum(begun.values()) == 12 + len(interrupted)
    assert re.search(r"finetune +\d", second.stdout)
    assert second.stdout.rstrip().endswith(f"Runs: {runs}")


def test_a_dry_run_shows_the_plan_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "runs", "--seeds", "0..4", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "10 runs, 0 stored, 10 to do" in " ".join(said.split())
    assert "how long is not known" in " ".join(said.split())
    assert not (tmp_path / "runs").exists()
    assert main(command(tmp_path / "runs", "--only", "er*", "--dry-run", "--json")) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["runs"], plan["todo"], plan["unknown"]) == (1, 1, 1)


def test_results_are_kept_small_and_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text('benchmarks = ["digits"]\nepochs = 1\ntasks = 2\nimages-per-class = 20\n'
                    '[[grid]]\nmethods = ["finetune"]\nname = "plain"\n'
                    '[[grid]]\nmethods = ["er"]\nspc = 2\nname = "{method}-{spc}"\n')
    plain, er = read_grid(grid)
    assert [plain.name, er.name] == ["plain-s0", "er-2-s0"]
    run(plain.config(), folder_of(plain, tmp_path / "a"))
    words = ["compare", "--grid", str(grid), "--results", str(tmp_path / "small"), "--no-measure", "--only", "plain"]
    assert main([*words, "--runs", str(tmp_path / "a")]) == 0
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["plain-s0.json"]
    small = read_result(tmp_path / "small" / "plain-s0.json")
    capsys.readouterr()
    assert main([*words, "--runs", str(tmp_path / "b"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert (told["state"], told["A_T"]) == ("stored", small.class_incremental.A_T)
    assert not list(tmp_path.glob("b/*/result.json"))
    # Another setting is another cell.
    assert main([*words, "--runs", str(tmp_path / "b"), "--dry-run", "--epochs", "2"]) == 0
    assert "1 run, 0 stored, 1 to do" in " ".join(capsys.readouterr().out.split())


def test_the_end_names_what_failed_and_what_is_left() -> None:
    console = Console(file=io.StringIO(), width=60)
    done, failed, stopped = (Outcome(Cell({"method": "er"}), state, log=Path("runs/x/log.txt"), error="no room")
                             for state in ("done", "failed", "stopped"))
    assert _end([done], console) == 0
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
    assert _end([done, failed], console) == 1
    assert "protocore: er-s0 failed: no room; its log: runs/x/log.txt\n" in console.file.getvalue()  # type: ignore[attr-defined]
    assert _end([done, stopped], console) == 130
    assert "stopped with 1 of 2 runs to do; the same command goes on" in console.file.getvalue()  # type: ignore[attr-defined]


def test_progress_counts_and_says_the_time_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("protocore.bench.cells.show.time.monotonic", lambda: now[0])
    cells = [Cell({"method": name}, label) for name, label in (("er", "quick"), ("der", "slow"), ("joint", "old"))]
    kinds = tuple(Kind(name, 1, int(name == "old"), Cost(seconds, 10**8))
                  for name, seconds in (("quick", 10.0), ("slow", 30.0), ("old", 5.0)))
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with Progress(cells, Plan(kinds, 1, 40.0), console) as progress:
        progress.ends(Outcome(cells[2], "stored"))
        assert progress.left() == 40.0
        progress.begins(cells[0])
        now[0] = 120.0
        progress.ends(Outcome(cells[0], "failed", error="no room", log=Path("log.txt"), seconds=20.0))
        assert progress.left() == 60.0  # twice as slow as planned
        progress.begins(cells[1])
        progress.share(cells[1], 0.5)
        now[0] = 150.0
        assert progress.left() == pytest.approx(50 * 15 / 25)
        assert progress.words() == "1 of 3 done, 1 failed, about 30 s left"
        lines = Console(file=io.StringIO(), width=80)
        lines.print(progress.view())
    assert "slow-s0" in lines.file.getvalue()  # type: ignore[attr-defined]
    assert "50 %" in lines.file.getvalue()  # type: ignore[attr-defined]
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "failed: quick-s0; no room; its log: log.txt (1 of 3 done, 1 failed, about 60 s left)\n" in said
    assert [duration(s) for s in (0.2, 89, 120, 7200, 400_000)] == ["1 s", "89 s", "2 min", "2.0 h", "4.6 days"]


def test_a_run_that_goes_on_is_said_to(tmp_path: Path) -> None:
    console, cell = Console(file=io.StringIO(), width=100, force_terminal=False), Cell({"method": "er"}, "er")
    with Progress([cell], Plan((Kind("er", 1, 0, None),), 1, 0.0), console) as progress:
        Told(progress).event(cell, {"event": "begins", "goes_on": True})
        assert progress.shares == {"er-s0": 0.0}
        Told(progress).event(cell, {"event": "begins", "goes_on": False})
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said == "goes on: er-s0, from its checkpoint\nbegins: er-s0\n"


def test_why_a_time_is_not_known_is_told_once_and_whole() -> None:
    why = f"looked for its files in {'d' * 120}/, which does not exist. Say where they are with --data-root DIR"
    kinds = [Kind(f"er-{i}", 1, 0, None, why) for i in range(8)] + [Kind("ldc", 1, 0, None, UNMEASURED)]
    plan = Plan(tuple(kinds), 1, 0.0)
    assert reasons(plan) == [f"Not known: er-0, er-1, er-2, er-3, er-4, er-5 and 2 more. {why}"]
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(plan_table(plan))
    assert "looked for" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_address_without_ray_is_told_before_anything_is_planned(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(tmp_path / "runs")
    for words in (["compare", "--methods", "er"], ["reproduce", "main", "--scale", "smoke"]):
        assert main([*words, "--runs", runs, "--address", "ray://head:10001", "--dry-run"]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert "add --engine ray, or leave it out" in err


GOOD = 'methods = ["er"]\nbenchmarks = ["digits"]\n'
HOSTILE = {
    "no methods": ('benchmarks = ["digits"]', "`methods` is missing"),
    "no benchmarks": ('methods = ["er"]', "`benchmarks` is missing"),
    "one method": ('method = "er"\nbenchmarks = ["digits"]', "write `methods = [...]`"),
    "unknown key": (GOOD + "epoch = 3", "did you mean --epochs?"),
    "unknown method": ('methods = ["err"]\nbenchmarks = ["digits"]', "unknown method 'err'"),
    "option of another": (GOOD + "condense-steps = 3", "it is one of protocore"),
    "a table": (GOOD + "epochs = {a = 1}", "where a text, a number, true or false belongs"),
    "a date": (GOOD + "epochs = 2020-01-01", "where a text, a number, true or false belongs"),
    "a list in a list": (GOOD + "epochs = [[1]]", "where a text, a number, true or false belongs"),
    "no values": (GOOD + "epochs = []", "`epochs` has 0 values"),
    "methods of numbers": ('methods = [1]\nbenchmarks = ["digits"]', "where a name belongs"),
    "seeds of words": (GOOD + 'seeds = "a"', "is no list of seeds"),
    "seeds of truth": (GOOD + "seeds = [true]", "which is no seed"),
    "no seeds": (GOOD + "seeds = []", "seeds is empty"),
    "too many seeds": (GOOD + 'seeds = "0..9999999"', "more than 1,000 seeds"),
    "two sizes": (GOOD + 'spc = 1\nbudget = "1KB"', "in several ways"),
    "a grid that is none": (GOOD + "grid = 3", "write [[grid]] above each"),
    "an empty grid": (GOOD + "grid = []", "write [[grid]] above each"),
    "a name that is none": (GOOD + "name = 3", "is not a text"),
    "a name of nothing": (GOOD + 'name = "{spc}"', "asks for {spc}, which this grid does not set"),
    "not TOML": ("methods = [", "not valid TOML"),
    "control characters": (GOOD + 'epochs = "\\u001b[2J"', "--epochs '\\x1b[2J'"),
    "nested without end": ("a = " + "[" * 5000, "64 dots or brackets"),
    "deep": ("\n".join(["a = ["] + ["["] * 3000), "not valid TOML"),
    "dots": (".".join("a" * 100) + " = 1", "64 dots or brackets"),
    "a huge number": (GOOD + "epochs = 0x" + "f" * 5000, "where a text, a number, true or false belongs"),
    "large": ("#" * 70_000, "where at most 65,536 are read"),
    "many": (GOOD + "".join(f"{name} = {list(range(1, 60))}\n" for name in ("epochs", "batch", "tasks")),
             "more than 10,000 cells"),
    "second entry": (GOOD + '[[grid]]\nepochs = 1\n[[grid]]\nepochs = "x"', "--epochs 'x'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grid_files_are_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, wanted = HOSTILE[name]
    path = tmp_path / "grid.toml"
    path.write_text(text)
    assert main(["compare", "--grid", str(path), "--dry-run", "--no-measure", "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert wanted in said
    assert said.count("\n") == 1
    assert len(said) < 1000


def test_grid_files_that_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe.toml")
    for name, wanted in (("none.toml", "there is no such file"), ("bytes.toml", "save it as UTF-8"),
                         ("pipe.toml", "not a file"), (".", "a folder")):
        assert main(["compare", "--grid", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert wanted in said
        assert said.startswith("protocore: --grid ")


@pytest.mark.parametrize(("words", "wanted"), [
    ([], "which methods?"),
    (["--methods", "er,"], "has an empty place"),
    (["--methods", "er", "--spc", "1", "--budget", "1KB"], "give one of them"),
    (["--methods", "er", "--grid", "x.toml"], "leave out --methods"),
    (["--methods", "er", "--only", "x*"], "is like the name of no run"),
    (["--methods", "er", "--spc", "1,0"], "--spc 0"),
    (["--methods", "er", "--seed", "1"], "unknown flag --seed; did you mean --seeds?"),
    (["--methods", "er", "--workers", "-1"], "must be at least 0"),
    (["--methods", "er", "--address", "auto", "--no-measure", "--epochs", "1"], "add --engine ray"),
    (["--methods", "er", "--no-measure", "--epochs", "1", "--results", __file__], "test_compare.py is a file"),
    (["--methods", "er", "--no-measure", "--epochs", "1", "--results", f"{__file__}/a/b"], "test_compare.py is a file"),
])
def test_what_cannot_be_compared(words: list[str], wanted: str, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words, "--runs", str(tmp_path)]) == 2
    assert wanted in capsys.readouterr().err


def test_the_grids_of_the_docs_are_those_of_the_stored_results() -> None:
    """Whatever the defaults are by now: what the user said in each run is what its cell says."""
    tables = {path.name for path in (ROOT / "results").iterdir() if path.is_dir()} - {REPRODUCED}
    grids = {path.stem: path for path in (ROOT / "benchmarks" / "grids").glob("*.toml")}
    assert tables <= set(grids)
    for table in tables:
        cells = {cell.name: cell for cell in read_grid(grids[table])}
        for path in (ROOT / "results" / table).glob("*.json"):
            cell, result = cells[path.stem], read_result(path)
            config = cell.config()
            now = {**asdict(config.settings), **asdict(config.options)}
            stored = {**result.settings, **result.options}
            aside = {"threads", "data_root", "memory_format"}
            said = {name for name, source in result.sources.items() if source == "flag"} - aside
            says = set(cell.flags) - aside
            assert said <= says, path
            assert {name: stored[name] for name in says} == {name: now[name] for name in says}, path
    cell = next(cell for cell in read_grid(grids["mnist"]) if cell.name == "finetune-s0")
    assert kept(cell, ROOT / "results" / "mnist") == read_result(ROOT / "results" / "mnist" / "finetune-s0.json")


def test_the_commands_of_the_docs_are_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "grids.md").read_text(encoding="utf-8")
    (grid,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "grid.toml").write_text(grid)
    blocks = re.findall(r"```sh\n(.*?)```", page + (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("protocore compare ")]
    assert len(lines) == 7
    runs = []
    for line in lines:
        words = shlex.split(line.replace("benchmarks/grids", str(ROOT / "benchmarks" / "grids")), comments=True)[1:]
        words = [word for word in words if "ray" not in word and word != "--engine"]
        assert main([*words, "--dry-run", "--no-measure", "--json"]) == 0
        runs.append(json.loads(capsys.readouterr().out)["plan"]["runs"])
    assert runs == [35, 12, 12, 18, 114, 10, 20]
