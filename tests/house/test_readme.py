"""What the README shows works as it is written."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from protocore.cli import make_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_example_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    """Ten lines for an empty script: two classes by name, saved, loaded, a third one, names predicted."""
    monkeypatch.chdir(tmp_path)
    (code,) = examples("README.md")
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("['park', 'stop', 'go'] ['stop' 'park' 'go'] Learner('protocore'")
    kept = int(re.findall(r"([\d,]+) bytes kept", said)[0].replace(",", ""))
    assert 0 < kept <= 64_000


def test_the_page_about_python_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    codes = examples("docs/python.md")
    assert len(codes) == 3
    for code in codes:
        exec(compile(code, "docs/python.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ bytes", said[0])
    assert said[1].startswith("['0', '1', '2', '3'] [")
    assert said[2].endswith("protocore run er digits --tasks 2 --images-per-class 20 --spc 5 --epochs 2")


def test_the_page_about_the_field_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = examples("docs/field.md")
    exec(compile(code, "docs/field.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "{'stop sign': 8} 16", "go True True", "0 ['go', 'park']"]


def test_the_commands_of_the_page_about_the_field_are_understood() -> None:
    """Their words and flags, without doing anything."""
    page = (ROOT / "docs/field.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [shlex.split(line.partition("#")[0])[1:] for line in block.splitlines()]
    assert [words[0] for words in lines] == ["plan", "new", "learn", "learn", "predict", "test", "show", "forget",
                                             "export"]
    for words in lines:
        assert make_parser(words).parse_args(words).do


def test_the_page_about_export_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    codes = examples("docs/export.md")
    assert len(codes) == 3
    for code in codes:
        exec(compile(code, "docs/export.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "2 16 None", "stop 1.0", "go 0.0", "['go', 'stop', 'park'] ['park', 'park'] (2, 3)"]


def test_the_page_about_privacy_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = examples("docs/privacy.md")
    exec(compile(code, "docs/privacy.md", "exec"), {})
    said = capsys.readouterr().out
    assert "The class 'dog' was forgotten on" in said
    assert "Membership test, 20 pictures that were learned against 20 that were not" in said
    assert "['cat', 'cow'] 0 (" in said


def test_the_page_about_metrics_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    from protocore.learn.metrics import METRICS
    from protocore.runs.result import read_result

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METRICS, "_things", dict(METRICS._things))
    (code,) = examples("docs/add-a-metric.md")
    exec(compile(code, "docs/add-a-metric.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in said] == ["method", "-" * 8, "finetune", "er"]
    for folder in (tmp_path / "runs").iterdir():
        found = read_result(folder).class_incremental
        assert found.more == {"worst_task": min(found.R[-1])}


def test_tables_in_the_docs_are_generated_and_not_empty() -> None:
    for page in ("README.md", "docs/results.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end: \1 -->", text, re.DOTALL)
        assert blocks
        for name, block in blocks:
            assert block.count("\n") >= 3, f"{page}: the table {name} is empty; run `make tables`"


def test_the_readme_names_every_command_of_the_automated_checks() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and line[0] != "#"]
    assert commands[:1] == ["set -euo pipefail"]  # what fails in the middle fails the whole
    assert len(commands) > 2
    targets = (ROOT / "Makefile").read_text()
    for command in commands[1:]:
        assert re.search(rf"{command}(?![\w-])", README), command
        assert f"\n{command.removeprefix('make ')}: " in targets


def test_dependencies_with_known_holes_are_not_admitted() -> None:
    """The constraints are what the tests ran with, so each must be admitted as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(r) for r in sum(project["optional-dependencies"].values(), project["dependencies"])]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {r.name.lower(): r for r in map(Requirement, (line for line in lines if line and line[0] != "#"))}
    for one in wanted:
        (version,) = [p.version for p in pinned[one.name.lower()].specifier]
        assert one.specifier.contains(version), f"{one} against {version}"
    floors = {r.name.lower(): Version(s.version) for r in wanted for s in r.specifier if s.operator == ">="}
    assert floors["torch"] >= Version("2.10")  # weights_only=True is relied on
    assert floors["pillow"] >= Version("13.0")
