"""What the README shows works as it is written."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    kept = [int(line.split()[0]) for line in lines[:5]]
    assert 0 < max(kept) <= 16_000
    assert len(eval(lines[5])) == 5


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
