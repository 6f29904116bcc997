"""What the README shows works as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_python_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    kept = [int(line.split()[0]) for line in lines[:5]]
    assert 0 < max(kept) <= 16_000
    assert len(eval(lines[5])) == 5


def test_tables_in_the_docs_are_generated_and_not_empty() -> None:
    for page in ("README.md", "docs/results.md"):
        text = (Path(__file__).parent.parent / page).read_text(encoding="utf-8")
        blocks = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end: \1 -->", text, re.DOTALL)
        assert blocks
        for name, block in blocks:
            assert block.count("\n") >= 3, f"{page}: the table {name} is empty; run `make tables`"
