"""The paper's tables and figures made again: what is printed, what is described, what is written."""

from __future__ import annotations

import csv
import dataclasses
import doctest
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from protocore.bench.cells import Cell, folder_of, run_cells
from protocore.bench.cells import Plan as Estimate
from protocore.bench.cells.measure import Cost
from protocore.bench.cells.plan import START, Kind
from protocore.bench.cells.small import REPRODUCED, Shelf
from protocore.bench.paper import printed
from protocore.bench.reproduce import filling, make, maps
from protocore.bench.reproduce.exhibits import EXHIBITS, LOSSES, STREAMS, Column, Exhibit, Row
from protocore.bench.reproduce.filling import Value, fill, ranked
from protocore.bench.reproduce.make import plan, write
from protocore.bench.reproduce.measures import MEASURES, shape
from protocore.bench.reproduce.scales import SCALES, chosen, needs
from protocore.bench.reproduce.sheets import Heading, Number, Sheet, sheets_of
from protocore.bench.reproduce.words import time_words, usual_seconds
from protocore.bench.reproduce.writers import Document, latex, markdown, tex
from protocore.cli import main, make_parser
from protocore.cli.reproduce import by_turns
from protocore.config import Settings
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Task
from protocore.errors import DataError, UserError
from protocore.files import serialise
from protocore.learn.learner import Learner
from protocore.memory.ledger import Entry, Ledger
from protocore.runs.configure import configure
from protocore.runs.result import Result, Scores, read_result

SMOKE = SCALES["smoke"]
R = [[90.0], [70.0, 92.0]]

# A_T and A_L of the main table as our own notes on the paper have them, read independently of the data files.
MAIN = """
csrel 22.71 77.93 12.78 75.94 13.12 57.44 4.25 56.71
bcsr 31.52 78.47 13.42 80.64 16.84 55.09 5.05 57.85
ocs 29.94 75.89 12.52 77.15 12.87 59.75 4.34 58.92
pbcs 35.95 85.34 14.57 86.90 18.12 74.63 6.01 76.45
onpro 29.38 77.51 12.64 75.77 14.74 56.58 4.75 58.56
icarl 25.92 55.52 11.25 72.52 10.56 56.58 5.05 52.13
der 20.44 71.50 11.63 73.57 12.91 59.24 4.45 54.93
derpp 23.35 72.26 12.24 80.51 10.31 60.35 4.17 57.84
cflat 26.81 65.18 11.84 74.95 14.37 65.98 5.05 63.77
ldc 17.54 53.82 9.12 70.12 12.31 50.17 4.82 52.46
fecam 15.89 50.63 7.26 65.02 12.03 45.98 4.34 47.91
adc 18.68 60.73 11.28 74.56 14.58 65.78 5.97 63.85
protocore-1 18.26 75.12 12.31 77.79 14.62 66.15 6.57 64.90
protocore-5 31.17 76.85 15.29 74.98 17.31 67.15 9.03 67.12
protocore-20+1 37.51 76.58 24.11 76.37 27.11 68.91 14.22 65.86
"""


def result(r: list[list[float]] = R, told: list[list[float]] | None = None, **more: Any) -> Result:
    """As a run would leave it, without the run."""
    config = configure({"method": "er", "benchmark": "digits", **more.pop("flags", {})})
    values = {"command": "protocore run er digits", **config.to_json(), "tasks": 2, "classes": 4,
              "class_incremental": Scores.of(r), "task_incremental": Scores.of(told or r),
              "ledger": Ledger((Entry("exemplars/bytes", 900, 20, False),)),
              "seconds": {"learn": 7200.0, "select": 10.0},
              "bytes_after_each_task": [2_000_000, 900], "peak_memory_bytes": 3_000_000_000}
    return Result(**(values | more))


def test_the_main_table_is_the_papers() -> None:
    table = printed("main")
    lines = [line.split() for line in MAIN.split("\n") if line]
    assert set(table.rows) == {key for key, *_ in lines}
    for key, *numbers in lines:
        assert [figure.value for figure in table.rows[key].values()] == list(map(float, numbers)), key
    assert table.at("csrel", "imagenet1k-100 A_L").deviation == 1.21  # type: ignore[union-attr]
    assert table.at("rm", "cifar100-10 A_T") is None


def test_the_other_tables_are_the_papers() -> None:
    def values(name: str, row: str) -> list[float]:
        return [figure.value for figure in printed(name).rows[row].values()]

    assert values("cost-cifar100", "ldc") == [1.87, 7.06, 46.0]
    assert values("cost-cifar100", "protocore") == [6.58, 4.03, 0.26]
    assert {row["cifar100-10 kept_mb"].value for key, row in printed("cost-cifar100").rows.items()
            if key not in ("ldc", "fecam", "adc", "protocore")} == {6.20}
    assert values("cost-imagenet1k", "protocore") == [252.69, 30.57, 1.15]
    assert [round(values("condense-time", key)[0]) for key in ("pbcs", "csrel", "bcsr", "ocs", "protocore")] == \
        [269, 152, 218, 235, 162]
    assert values("loss-ablation", "prototypical") == [29.51, 15.67]
    assert values("component-ablation", "all") == [49.25, 9.8, 37.51, 12.0]
    assert values("component-ablation", "1+2") == [45.45, 11.8, 25.10, 16.7]
    # Swapped in print: what is meant by A_T is the smaller of each pair, for every method.
    for row in printed("task-incremental").rows.values():
        pairs = list(row.values())
        assert all(a.value < b.value for a, b in zip(pairs[::2], pairs[1::2], strict=True))
    assert printed("task-incremental").rows["protocore-20+1"]["cifar100-10 told_A_T"].value == 58.46
    for key in ("1", "5"):
        assert values("memory-size", key) == values("main", f"protocore-{key}")[:4:2]
    for key, row in printed("task-curve").rows.items():
        assert [figure.value for figure in row.values()] == values("main", key)[::2]


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=EXHIBITS)
def test_every_printed_number_has_its_place(exhibit: Exhibit) -> None:
    """Rows and columns of the paper's file are rows and columns of ours; each row names a line of its table."""
    table, keys = printed(exhibit.name), [row.key for row in exhibit.rows]
    assert len(set(keys)) == len(keys)
    assert set(table.rows) <= set(keys)
    for key, row in table.rows.items():
        assert list(row) == [column.key for column in exhibit.columns]
        if table.label.startswith("tab:"):
            assert table.lines[0] < table.line_of[key] < table.lines[1]
    assert {column.measure for column in exhibit.columns} <= set(MEASURES)
    assert set(exhibit.benchmarks) <= set(STREAMS)


def test_thirteen_rivals_and_three_of_ours() -> None:
    keys = [row.key for row in EXHIBITS["main"].rows]
    assert len([key for key in keys if not key.startswith("protocore") and key != "er"]) == 13
    assert [key for key in keys if key.startswith("protocore")] == ["protocore-1", "protocore-5", "protocore-20+1"]
    assert EXHIBITS["main"].benchmarks == ["cifar100-10", "cifar100-50", "tinyimagenet-20", "imagenet1k-100"]


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_run_of_every_scale_can_be_configured(scale: Any) -> None:
    for exhibit in EXHIBITS.values():
        for need in needs(exhibit, scale, scale.seeds):
            config = need.cell.config()
            assert config.settings.seed == need.seed
            assert config.settings.preset == {"smoke": "default"}.get(scale.name, scale.name)
            assert config.settings.benchmark == ("digits" if scale.name == "smoke" else need.benchmark)
            if scale.name == "fast":
                assert config.settings.class_order == str(1993 + need.seed)
            if need.row.flags["method"] == "protocore" and "spc" in need.row.flags:
                assert (config.settings.spc, config.options.real) == \
                    (need.row.flags["spc"], need.row.flags.get("real", exhibit.shared.get("real", 0)))


def test_tables_share_their_runs(tmp_path: Path) -> None:
    def folder(name: str, key: str, benchmark: str = "cifar100-10") -> Path:
        (need,) = [n for n in needs(EXHIBITS[name], SCALES["paper"], [0])
                   if (n.row.key, n.benchmark) == (key, benchmark)]
        return folder_of(need.cell, tmp_path)

    for name, key, twin in (("loss-ablation", "contrastive", "protocore-5"), ("memory-size", "1", "protocore-1"),
                            ("cost-cifar100", "protocore", "protocore-1"), ("condense-time", "pbcs", "pbcs"),
                            ("task-incremental", "adc", "adc"), ("task-curve", "rm", "rm")):
        assert folder(name, key) == folder("main", twin)
    assert folder("loss-ablation", "prototypical") != folder("main", "protocore-5")
    assert folder("tsne", "protocore-5") != folder("main", "protocore-5")
    whole = folder("component-ablation", "all")
    for key in ("1+2+3", "4+5", "6+7"):
        assert folder("component-ablation", key) == whole
    others = {folder("component-ablation", row.key) for row in EXHIBITS["component-ablation"].rows}
    assert len(others) == 9  # all on, each of seven off by itself, and (1) alone


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_loss_is_switched_off_by_itself(scale: Any) -> None:
    rows = EXHIBITS["component-ablation"].rows
    off = [{name for name in LOSSES.values() if row.flags.get(name) == 0} for row in rows]
    for name in LOSSES.values():
        assert {name} in off
    for need in needs(EXHIBITS["component-ablation"], scale, [0]):
        options = need.cell.config().options
        assert {name for name in LOSSES.values() if not getattr(options, name)} == \
            {name for name in LOSSES.values() if need.row.flags.get(name) == 0}
        assert options.refresh  # else (2) and (3) would have nothing to do
        assert options.replay == "all"  # else (4), (5) and (7) would not
    for need in needs(EXHIBITS["loss-ablation"], scale, [0]):
        options = need.cell.config().options
        assert options.replay == "all"
        assert options.cur_pro * options.pre_pro > 0


def test_best_and_second_best() -> None:
    assert ranked({"a": 3.0, "b": 1.0, "c": 2.0}, down=False) == {"a": "best", "c": "second"}
    assert ranked({"a": 3.0, "b": 1.0, "c": 2.0}, down=True) == {"b": "best", "c": "second"}
    assert ranked({"a": 3.0, "b": 3.0, "c": 2.0, "d": 1.0}, down=False) == {"a": "best", "b": "best", "c": "second"}
    assert ranked({"a": 3.0, "b": 1.0}, down=False) == {"a": "best"}
    assert ranked({"a": 3.0}, down=False) == {}
    filled = fill(EXHIBITS["main"], SMOKE, [], {})
    assert filled.marks(Column("cifar100-10", "A_T"))[1] == {"protocore-20+1": "best", "pbcs": "second"}
    assert filled.marks(Column("cifar100-10", "A_L"))[1] == {"pbcs": "best", "bcsr": "second"}  # as printed
    quick = fill(EXHIBITS["condense-time"], SMOKE, [], {})
    assert quick.marks(Column("cifar100-10", "condense_s"))[1] == {"csrel": "best", "protocore": "second"}


def test_what_looks_equal_has_one_mark() -> None:
    exhibit = EXHIBITS["condense-time"]
    wanted = [n for n in needs(exhibit, SMOKE, [0]) if n.benchmark == "cifar100-10"]
    seconds = dict(zip((n.row.key for n in wanted), (8.0011, 8.0012, 4.0, 16.0, 32.0), strict=True))
    made = {n.cell: result(seconds={"learn": 1.0, "select": seconds[n.row.key]}) for n in wanted}
    marks, _ = fill(exhibit, SMOKE, wanted, made).marks(Column("cifar100-10", "condense_s"))
    assert marks == {"bcsr": "best", "pbcs": "second", "csrel": "second"}


def test_what_a_column_measures() -> None:
    one = result(told=[[99.0], [95.0, 97.0]])
    found = {name: measure.of(one) for name, measure in MEASURES.items()}
    assert found == pytest.approx({
        "A_T": 81.0, "A_L": 91.0, "forgetting": 20.0, "told_A_T": 96.0, "told_A_mean": 97.5, "hours": 7210 / 3600,
        "peak_gb": 3.0, "kept_mb": 2.0, "kept_gb": 0.002, "condense_s": 5.0})
    assert MEASURES["condense_s"].of(result(seconds={"learn": 1.0})) is None
    assert MEASURES["condense_s"].of(result(seconds={"learn": 1.0, "condense": 3.0, "evaluate": 9.0})) == 1.5


def test_the_example_of_the_plan() -> None:
    assert doctest.testmod(make, raise_on_error=True).attempted == 5


def test_numbers_as_they_are_shown() -> None:
    shown = {value: f"{value:{shape(value, None)}}" for value in (1234.5, 269.28, 5.971, 0.26, 0.0, 0.00123, 0.000027)}
    assert list(shown.values()) == ["1234", "269.3", "5.97", "0.26", "0.00", "0.0012", "0.000027"]
    assert Number(-3.25, digits=2, signed=True).text() == "−3.25"
    assert Number(3.25, digits=2, signed=True).text("-") == "+3.25"
    assert Value.of([]) is None
    assert Value.of([2.0]) == Value(2.0, None, 1)
    assert Value.of([1.0, 3.0]) == Value(2.0, pytest.approx(2**0.5), 2)


SHEET = Sheet("cifar100-10", "S-CIFAR-100, T = 10", (
    Heading("type", "type"), Heading("method", "method"), Heading("A_T", "ours", "$A_T$"),
    Heading("A_T, paper", "paper", "$A_T$"), Heading("A_T, Δ", r"$\Delta$", "$A_T$")), (
    ("Replay", "DER++", Number(40.26, 0.51, 3, mark="best"), Number(23.35, 0.22, digits=2), Number(16.9, signed=True)),
    ("Ours", "Proto_Core", Number(38.0, seeds=1, mark="second"), None, None)), frozenset({1}))


def test_markdown_by_hand() -> None:
    text = markdown(Document("main", "A title", [SHEET], ["One line."], "main.png"))
    assert text == """\
# A title

## S-CIFAR-100, T = 10

| type   | method     | A_T                |   A_T, paper | A_T, Δ |
| ------ | ---------- | ------------------ | -----------: | -----: |
| Replay | DER++      | **40.3 ± 0.5** (3) | 23.35 ± 0.22 |  +16.9 |
| Ours   | Proto_Core | <u>38.0</u>        |            – |      – |

![A title](main.png)

- One line.
"""


def test_what_nobody_measured_is_guessed_by_the_mean_of_its_benchmark() -> None:
    kinds = (Kind("er-a", 1, 0, Cost(100.0, 1), benchmark="a"), Kind("ldc-a", 2, 1, Cost(300.0, 1), benchmark="a"),
             Kind("rm-a", 1, 0, None, benchmark="a"), Kind("er-b", 1, 0, None, benchmark="b"))
    plan, fast = Estimate(kinds, 1, 405.0), SCALES["fast"]
    usual = usual_seconds([], [plan])
    assert usual == {"a": 200.0}
    assert plan.guess(usual) is None
    assert time_words(plan, fast, usual) == "7 min + 2 not measured"
    assert plan.guess(usual | {"b": 50.0}) == 100 + 300 + 200 + 50 + START
    assert time_words(plan, fast, usual | {"b": 3600.0}) == "70 min, 2 of 4 guessed"
    assert time_words(Estimate(kinds[3:], 1, 0.0), fast, usual) == "not measured"
    assert time_words(Estimate(kinds[:2], 1, 405.0), fast, usual) == "7 min"


def test_benchmarks_are_measured_by_turns() -> None:
    cells = [Cell({"benchmark": name, "seed": k}) for k, name in enumerate("aabac")]
    assert [cell.seed for cell in by_turns(cells)] == [0, 2, 4, 1, 3]


def test_latex_by_hand() -> None:
    text = latex(Document("main", "A title", [SHEET], ["`--codec` costs 5 %."]))
    assert r"""\begin{tabular}{llrrr}
\toprule
 &  & \multicolumn{3}{c}{$A_T$} \\
\cmidrule(lr){3-5}
type & method & ours & paper & $\Delta$ \\
\midrule
Replay & DER++ & \textcolor{red}{\textbf{40.3}}{\scriptsize $\pm$0.5} & $23.35${\scriptsize $\pm$0.22} & $+16.9$ \\
\midrule
Ours & Proto\_Core & \textcolor{blue}{\underline{\textbf{38.0}}} & -- & -- \\
\bottomrule
\end{tabular}""" in text
    assert r"\item \texttt{-{}-codec} costs 5 \%." in text
    assert tex("50 % & A_T ± 1 – Ā") == r"50 \% \& A\_T $\pm$ 1 -- $\overline{A}$"
    check_latex(text)


def check_latex(text: str) -> None:
    """What LaTeX would stumble over: environments and braces that do not match, rows too long or short, odd letters."""
    text.encode("ascii")
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    bare = re.sub(r"\\[{}$&%#_]", "", text)
    assert bare.count("{") == bare.count("}")
    for line in bare.split("\n"):
        assert line.count("{") == line.count("}")
        assert line.count("$") % 2 == 0
    for shape_, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", bare, re.DOTALL):
        rows = [line for line in body.split("\n") if line.endswith(r"\\")]
        assert len(rows) > 2
        for row in rows:
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
            assert row.count("&") + 1 + sum(spans) == len(shape_), row


def test_missing_numbers_are_dashes_and_are_named(tmp_path: Path) -> None:
    exhibit = EXHIBITS["loss-ablation"]
    wanted = needs(exhibit, SCALES["paper"], [0, 1])
    key = {(n.row.key, n.benchmark, n.seed): n.cell for n in wanted}
    made = {key["contrastive", "cifar100-10", 0]: result(), key["contrastive", "cifar100-10", 1]: result(
        [[90.0], [72.0, 92.0]]), key["prototypical", "cifar100-10", 1]: result()}
    filled = fill(exhibit, SCALES["paper"], wanted, made, ["tinyimagenet-20"])
    assert filled.holes() == [
        "Fewer than 2 seeds on S-CIFAR-100, T = 10: Prototypical (1).",
        "Missing on S-TinyImageNet, T = 20: every run, as its data are not here."]
    first, second = sheets_of(filled)
    assert first.rows[1] == ("Contrastive", Number(81.5, pytest.approx(0.5**0.5), 2, 1, "best"),
                             Number(31.17, 0.83, digits=2, mark="best"), Number(pytest.approx(50.33), signed=True))
    assert [row[1] for row in second.rows] == [None, None]
    assert [row[3] for row in second.rows] == [None, None]
    made_plan = dataclasses.replace(plan(exhibit, SCALES["paper"], tmp_path), wanted=tuple(wanted), results=made,
                                    left_out=("tinyimagenet-20",))
    write(made_plan, tmp_path / "out", "protocore reproduce loss-ablation")
    text = (tmp_path / "out" / "loss-ablation.md").read_text()
    assert "| Contrastive  | **81.5 ± 0.7** (2) | **31.17 ± 0.83** |  +50.3 |" in text
    assert "| Prototypical |   – |" in text
    assert "- Missing on S-TinyImageNet, T = 20: every run, as its data are not here.\n" in text
    assert "those that are stored; how many in brackets. Best in bold, second best underlined." in text
    text = (tmp_path / "out" / "loss-ablation.tex").read_text()
    assert "those that are stored. Best in red, second best in blue and underlined." in text
    text = (tmp_path / "out" / "loss-ablation.md").read_text()
    assert "FeCAM" not in text

    write(plan(EXHIBITS["cost-cifar100"], SCALES["fast"], tmp_path), tmp_path / "out", "protocore reproduce")
    text = (tmp_path / "out" / "cost-cifar100.md").read_text()
    assert "- FeCAM takes features as they are (`--tukey 1`)" in text
    assert "| CSReL     |                20 |     – |" in text


def test_parts_of_data_sets_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    exhibit = EXHIBITS["loss-ablation"]
    wanted = needs(exhibit, SCALES["paper"], [0])
    here = {"cifar100-10": result(classes=100, tasks=10, flags={"benchmark": "cifar100-10"}),
            "tinyimagenet-20": result(classes=40, tasks=4, flags={"benchmark": "tinyimagenet-20"})}
    made = {need.cell: here[need.benchmark] for need in wanted}
    digits = open_stream(Settings(images_per_class=20))
    monkeypatch.setattr(filling, "open_stream", lambda settings: digits)
    monkeypatch.setattr(filling, "source_named", lambda name: filling_source(200 if name == "cifar100-10" else 1000))
    assert fill(exhibit, SCALES["paper"], wanted, made).parts == (
        "S-TinyImageNet, T = 20: a part of it, 40 of 200 classes in 4 tasks, 200 of 1,000 training pictures.",)
    assert fill(exhibit, SMOKE, wanted, made).parts == ()  # a stand-in is said to be one
    # A result says it itself, where the data are elsewhere; one that does not leaves it out.
    told = {cell: dataclasses.replace(one, training_pictures=150) for cell, one in made.items()}
    monkeypatch.setattr(filling, "open_stream", no_data)
    assert fill(exhibit, SCALES["paper"], wanted, told).parts == (
        "S-CIFAR-100, T = 10: a part of it, 150 of 200 training pictures.",
        "S-TinyImageNet, T = 20: a part of it, 40 of 200 classes in 4 tasks, 150 of 1,000 training pictures.")
    assert fill(exhibit, SCALES["paper"], wanted, made).parts == (
        "S-TinyImageNet, T = 20: a part of it, 40 of 200 classes in 4 tasks.",)


def no_data(settings: Settings) -> Any:
    raise DataError("no data here")


def filling_source(count: int) -> Any:
    from protocore.data.benchmarks import source_named

    return dataclasses.replace(source_named("digits"), counts=(count, 10))


def test_what_has_no_data_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PROTOCORE_DATA", str(tmp_path / "nothing"))
    (tmp_path / "some" / "cifar-100-python").mkdir(parents=True)
    made = plan(EXHIBITS["main"], SCALES["paper"], tmp_path)
    assert made.left_out == tuple(EXHIBITS["main"].benchmarks)
    assert made.todo == []
    assert len(made.without_data) == len(made.cells) == 17 * 4 * 3
    some = plan(EXHIBITS["main"], SCALES["paper"], tmp_path, seeds=[7], root=str(tmp_path / "some"))
    assert some.left_out == ("tinyimagenet-20", "imagenet1k-100")
    assert len(some.todo) == 17 * 2
    assert {need.seed for need in some.wanted} == {0, 1, 2, 7}  # others that are stored would count
    assert all(cell.flags["seed"] == 7 and cell.flags["data_root"] for cell in some.todo)
    assert main(["reproduce", "main", "--scale", "paper", "--runs", str(tmp_path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "main, scale paper: 204 runs, 0 of them stored, 0 to run." in said
    assert "S-CIFAR-100, T = 10: left out, its data are not here; `protocore data get cifar100` downloads it." in said
    assert "S-ImageNet-1K, T = 100: left out, its data are not here." in said
    assert not (tmp_path / "reproduced").exists()
    assert len(plan(EXHIBITS["tsne"], SCALES["paper"], tmp_path).cells) == 1  # one run is drawn
    assert main(["reproduce", "--scale", "paper", "--runs", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    for name in EXHIBITS:
        assert re.search(rf"^{name} +\d+ +0 +0 +\d+ +–", listed, re.MULTILINE), name


def test_fecam_learns_features_below_0() -> None:
    """Those of the small network, which has no root of them; the table says so."""
    (need,) = (n for n in needs(EXHIBITS["main"], SCALES["fast"], [0]) if n.cell.name == "fecam-cifar100-10-s0")
    learner = Learner.of(need.cell.config(), (3, 32, 32), classes=10)
    pictures = np.random.default_rng(0).integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    learner.learn(Task.from_arrays(pictures, np.arange(60) % 10))
    assert "--tukey 1" in SCALES["fast"].notes["fecam"]


def test_rows_and_benchmarks_are_chosen() -> None:
    exhibit = EXHIBITS["main"]
    wanted = needs(exhibit, SMOKE, [0])
    found = chosen(wanted, exhibit, "er, protocore-*", "cifar100-*")
    assert [(n.row.key, n.benchmark) for n in found] == [
        (key, benchmark) for key in ("protocore-1", "protocore-5", "protocore-20+1", "er")
        for benchmark in ("cifar100-10", "cifar100-50")]
    for words, met in (({"only": "er,proto"}, "--only 'proto': main has no such row; there are csrel,"),
                       ({"only": ""}, "--only '': main has no such row"),
                       ({"benchmarks": "cifar10"}, "--benchmarks 'cifar10': main has no such benchmark")):
        with pytest.raises(UserError, match=re.escape(met)):
            chosen(wanted, exhibit, words.get("only"), words.get("benchmarks"))


@pytest.mark.parametrize(("words", "met"), [
    (["mian"], "did you mean main?"), (["main", "--scale", "fsat"], "did you mean fast?"),
    (["--dry-run"], "--dry-run is about one table or figure: name it"),
    (["main", "--seeds", "x"], "no list of seeds"), (["main", "--scale", "smoke", "--only", "er,lol"], "'lol'"),
    (["tsne", "--stored", "--out", __file__], f"--out {__file__} is a file"),
    (["tsne", "--stored", "--results", __file__], f"--results {__file__} is a file"),
    (["tsne", "--stored", "--results", "no-such-folder"], "--results no-such-folder: there is no such folder")])
def test_mistakes_are_one_line(words: list[str], met: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["reproduce", *words, "--runs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert met in said
    assert said.count("\n") == 1


def records(path: Path, steps: int = 31, **more: torch.Tensor) -> Path:
    """Three classes on the axes; exemplars walk from the next class's axis to their own."""
    axes = torch.eye(3)
    share = torch.linspace(0, 1, steps)[:, None, None]
    ways = (1 - share) * axes.roll(1, 0) + share * axes
    real = axes.repeat_interleave(5, 0) + 0.01 * torch.rand(15, 3, generator=torch.Generator().manual_seed(0))
    tensors = {"real": real, "real labels": torch.arange(3).repeat_interleave(5), "labels": torch.arange(3),
               "steps": ways} | more
    path.write_bytes(serialise({name: tensor for name, tensor in tensors.items() if tensor.numel()}))
    return path


def test_exemplars_come_to_their_stars(tmp_path: Path) -> None:
    way = maps.way_of(records(tmp_path / "records.safetensors"), ("a", "b", "c"))
    assert way.names == ("a", "b", "c")
    assert way.away.shape == (4, 3)
    assert way.away[0] == pytest.approx(2.0, abs=0.05)  # of two axes, squared
    assert way.away[3] == pytest.approx(0.0, abs=1e-3)  # step 30 is the last of 31
    assert way.away[1] == pytest.approx(2 - 2 * (10 / 30) / np.hypot(10 / 30, 20 / 30), abs=0.05)
    near = [np.linalg.norm(dots[:, None] - way.stars[None], axis=2).argmin(1).tolist() for dots in way.dots]
    assert (near[0], near[3]) == ([2, 0, 1], [0, 1, 2])  # on the map, too
    rows = maps.way_rows(way)
    assert [sum(row[0] == kind for row in rows) for kind in maps.KINDS] == [15, 3, 12]
    sheet = maps.way_sheet(way, "S")
    assert [row[0] for row in sheet.rows] == ["0", "10", "20", "30"]
    assert sheet.rows[3][1] == Number(pytest.approx(0.0, abs=1e-3), digits=3)
    empty = maps.way_sheet(None, "S")
    assert [row[1:] for row in empty.rows] == [(None, None, None)] * 4


def test_records_without_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run it again with --record"):
        maps.way_of(records(tmp_path / "a.safetensors", steps_=torch.ones(1), steps=31, labels=torch.ones(1, 1)), ())
    with pytest.raises(DataError, match="has 30 steps, and 31 are drawn"):
        maps.way_of(records(tmp_path / "b.safetensors", steps=30), ())


def test_a_run_that_fails_is_named_and_the_others_are_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    exhibit = EXHIBITS["memory-size"]
    bad = Row("3", "3 a class", {"method": "er", "budget": 2})
    good = Row("1", "1 a class", {"method": "er", "spc": 1})
    columns = (Column("cifar100-50", "A_T"),)
    monkeypatch.setitem(EXHIBITS, "memory-size", dataclasses.replace(exhibit, rows=(good, bad), columns=columns))
    words = ["reproduce", "memory-size", "--scale", "smoke", "--workers", "1", "--results", str(tmp_path / "results")]
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 1
    out, err = capsys.readouterr()
    assert "2 runs, 0 of them stored, 2 to run" in out
    assert re.search(r"protocore: 3-cifar100-50-s0 failed: .*--budget", err)
    assert "Missing on S-CIFAR-100, T = 50 (here digits, 2 tasks of 2): 3 a class." in out
    assert re.search(r"\| 1 a class \| +\d+\.\d", out)

    # What is done is kept small, and is not run again where nothing else of it is left.
    (file,) = (tmp_path / "results" / REPRODUCED).iterdir()
    (need, _) = needs(EXHIBITS["memory-size"], SMOKE, [0])
    assert file.stem == folder_of(need.cell, tmp_path).name
    assert main([*words, "--runs", str(tmp_path / "none"), "--dry-run"]) == 0
    assert "2 runs, 1 of them stored, 1 to run" in capsys.readouterr().out


def test_small_results_of_any_name_serve_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exhibit, grid = EXHIBITS["loss-ablation"], tmp_path / "results" / "some-grid"
    (grid / "deeper").mkdir(parents=True)
    cells = {(n.row.key, n.benchmark): n.cell for n in needs(exhibit, SMOKE, [0])}
    mine = result(flags=dict(cells["contrastive", "cifar100-10"].flags))
    (grid / "deeper" / "odd name.json").write_text(json.dumps(mine.small()))
    other = result(flags={**cells["prototypical", "cifar100-10"].flags, "lr": 0.123})
    (grid / "prototypical-cifar100-10-s0.json").write_text(json.dumps(other.small()))
    (grid / "damaged.json").write_text("{")
    words = ["reproduce", "loss-ablation", "--scale", "smoke", "--stored", "--runs", str(tmp_path / "none"),
             "--results", str(tmp_path / "results"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert re.search(r"\| Contrastive +\| 81\.0 +\|", out)
    assert "- Missing on S-CIFAR-100, T = 10 (here digits, 2 tasks of 4): Prototypical.\n" in out
    assert "- Missing on S-TinyImageNet, T = 20 (here digits, 2 tasks of 3): every run.\n" in out
    assert re.search(r"protocore: left out: .*damaged\.json", err)
    assert not (tmp_path / "results" / REPRODUCED).exists()  # it was kept already

    # Of other data than those that are here it is none; a map needs records, which a small result has not.
    shelf = Shelf(tmp_path / "results")
    assert shelf.get(cells["contrastive", "cifar100-10"]) is not None
    shelf.results = {key: [dataclasses.replace(one, data_digest="other") for one in found]
                     for key, found in shelf.results.items()}
    assert shelf.get(cells["contrastive", "cifar100-10"]) is None
    (need,) = needs(EXHIBITS["tsne"], SMOKE, [0])
    drawn = Shelf(tmp_path / "maps")
    drawn.put(need.cell, result(flags=dict(need.cell.flags)))
    assert Shelf(tmp_path / "maps").get(need.cell) is not None
    assert plan(EXHIBITS["tsne"], SMOKE, tmp_path, shelf=drawn).results == {}


def test_stored_results_are_runs_of_the_tables() -> None:
    """Whatever the defaults are by now: what the table says of a run is what was run."""
    known = [need for exhibit in EXHIBITS.values() for need in needs(exhibit, SCALES["fast"], [0, 1, 2])]
    for path in (Path(__file__).parents[2] / "results" / REPRODUCED).glob("*.json"):
        one = read_result(path)
        there = {**one.settings, **one.options}
        like = [need for need in known if (need.benchmark, need.seed) == (one.benchmark, there["seed"])
                and need.row.flags["method"] == one.method]
        now = [(need.cell.flags, {**(c := need.cell.config().to_json())["settings"], **c["options"]}) for need in like]
        assert any(all(there[name] == config[name] for name in flags) for flags, config in now), path


def test_ten_of_ten(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table and figure at the smallest scale, from one folder of runs; a second time nothing is run."""
    runs, out = tmp_path / "runs", tmp_path / "runs" / "reproduced" / "smoke"
    need_of = {name: [need.cell for need in needs(exhibit, SMOKE, [0])] for name, exhibit in EXHIBITS.items()}
    # All of it at once but for the map, which its command runs: a pool takes seconds to begin. Of all runs the main
    # table has most.
    cells = list(dict.fromkeys(cell for name, mine in need_of.items() if name != "tsne" for cell in mine))
    assert (len({folder_of(cell, runs) for cell in cells}), len(set(need_of["main"]))) == (92, 68)
    outcomes = run_cells(cells, runs, workers=1)
    assert [(o.cell.name, o.error) for o in outcomes if o.state != "done"] == []
    ran = {}
    for name, exhibit in EXHIBITS.items():
        words = ["reproduce", name, "--scale", "smoke", "--runs", str(runs), "--workers", "1"]
        assert main(words) == 0, capsys.readouterr().err
        said = capsys.readouterr()
        ran[name] = len(re.findall(r"^done: \S+, A_T", said.err, re.MULTILINE))
        text = (out / f"{name}.md").read_text()
        assert text in said.out
        assert "Missing" not in text
        assert f"Made by `protocore reproduce {name} --scale smoke`" in text
        check_latex((out / f"{name}.tex").read_text())
        with Image.open(out / f"{name}.png") as picture:
            assert min(picture.size) > 300
            assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 20
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
        check_csv(exhibit, out / f"{name}.csv")
    assert ran == {name: int(name == "tsne") for name in EXHIBITS}
    check_again(runs, out, capsys)
    compile_latex(out)
    monkeypatch.chdir(tmp_path)
    check_page()


def check_csv(exhibit: Exhibit, file: Path) -> None:
    rows = list(csv.DictReader(file.read_text().splitlines()))
    if exhibit.picture == "maps":
        assert {row["step"] for row in rows if row["kind"] == "exemplar"} == {"0", "10", "20", "30"}
        return
    numbers = [row for row in rows if not row["measure"].startswith("after_task")]
    assert len(numbers) == len(exhibit.rows) * len(exhibit.columns)
    assert len(rows) - len(numbers) == (2 * len(numbers) if exhibit.picture == "curves" else 0)
    for row in numbers:
        figure = printed(exhibit.name).at(row["row"], f"{row['benchmark']} {row['measure']}")
        assert row["paper"] == ("" if figure is None else str(figure.value))
        if row["measure"] == "condense_s":
            assert float(row["ours"]) > 0
        assert row["command"].startswith("protocore run ")
        assert row["seeds"] == "1"
        if figure:
            assert float(row["difference"]) == pytest.approx(float(row["ours"]) - figure.value, abs=1e-5)


def check_again(runs: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All is stored: the list says so, and the same table is the same file."""
    assert main(["reproduce", "--scale", "smoke", "--runs", str(runs)]) == 0
    listed = capsys.readouterr().out
    for name, exhibit in EXHIBITS.items():
        runs_of = len(plan(exhibit, SMOKE, runs).cells)
        assert re.search(rf"^{name} +{runs_of} +{runs_of} +0 +0 +–", listed, re.MULTILINE), name
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    for words in (["--stored"], []):
        assert main(["reproduce", "loss-ablation", "--scale", "smoke", "--runs", str(runs), *words]) == 0
        assert "done" not in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    # A map whose records are gone is made again: nothing else could draw it.
    (need,) = needs(EXHIBITS["tsne"], SMOKE, [0])
    (folder_of(need.cell, runs) / "records.safetensors").unlink()
    assert plan(EXHIBITS["tsne"], SMOKE, runs).todo == [need.cell]


def check_page() -> None:
    """Every command of the page is one; those on embedded data are run."""
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert len(lines) == 7
    for words in lines:
        assert make_parser(words).parse_args(words).command == "reproduce"
        if "smoke" in words:
            assert main(words) == 0
    for name in EXHIBITS:
        assert f"`{name}`" in page


def compile_latex(out: Path) -> None:
    """Where this machine has a LaTeX."""
    for program, *flags in (("tectonic",), ("pdflatex", "-interaction=nonstopmode", "-halt-on-error")):
        if shutil.which(program):
            for file in sorted(out.glob("*.tex")):
                done = subprocess.run([program, *flags, file.name], cwd=out, capture_output=True, text=True)
                assert done.returncode == 0, done.stdout[-2000:]
            return
