"""The results store, tables and pictures."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import io
import json
import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from protocore.bench import figures, fonts, grids, health
from protocore.bench.condensation import condensation_figure
from protocore.bench.fonts import drawable, fonts_for
from protocore.bench.labels import run_labels
from protocore.bench.tables import (
    config_table,
    exemplar_words,
    health_table,
    ledger_table,
    markdown_table,
    matrix_table,
    mean_std,
    replace_block,
    summary_rows,
    summary_table,
)
from protocore.config import Resolved
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.metrics import METRICS
from protocore.memory.ledger import Entry, Ledger
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder
from protocore.runs.job import run
from protocore.runs.result import Result, read_result, result_of

R = [[90.0], [70.0, 92.0], [60.0, 80.0, 94.0], [65.0, 70.0, 85.0, 96.0]]
TOLD = [[99.0], [98.0, 99.0], [97.0, 98.0, 99.0], [96.0, 97.0, 98.0, 99.0]]


def made_up(r: list[list[float]] = R, told: list[list[float]] = TOLD, **flags: Any) -> Result:
    """A result as a run would leave it, with these flags, without the run."""
    config = configure({"method": "er", **flags})
    ledger = [{"name": "exemplars/bytes", "bytes": 12800, "rows": 200, "shared": False},
              {"name": "exemplars/labels", "bytes": 200, "rows": 200, "shared": False},
              {"name": "file header", "bytes": 256, "rows": 1, "shared": False}]
    if config.settings.method in ("finetune", "joint"):
        ledger = ledger[-1:]
    return result_of({
        "format": 1, "command": "protocore run er digits", **copy.deepcopy(config.to_json()),
        "data_digest": "6a22", "code_version": "0.1.0", "machine": {"torch": "2.13.0", "cores": 1},
        "tasks": len(r[-1]), "class_names": [f"class {i}" for i in range(2 * len(r[-1]))],
        "class_incremental": {"R": r, **{name: metric(r) for name, metric in METRICS.items()}},
        "task_incremental": {"R": told, **{name: metric(told) for name, metric in METRICS.items()}},
        "per_class": [{"0": 12.3456}], "ledger": ledger, "bytes_kept": sum(e["bytes"] for e in ledger),
        "bytes_after_each_task": [1, 2, 3, 4], "seconds": {"learn": 12.345, "condense": 1.0, "select": 0.5},
        "images_per_second": 1521.04, "peak_memory_bytes": 446656512,
    }, "made up")


def with_entries(result: Result, *entries: Entry) -> Result:
    """With these rows of the ledger besides its own."""
    return dataclasses.replace(result, ledger=Ledger((*result.ledger.entries, *entries)))


def keeping(result: Result, size: int) -> Result:
    """With so many bytes kept in all."""
    first, *others = result.ledger.entries
    first = dataclasses.replace(first, bytes=first.bytes + size - result.bytes_kept)
    return dataclasses.replace(result, ledger=Ledger((first, *others)))


def joint() -> Result:
    return dataclasses.replace(made_up(R[-1:], TOLD[-1:], method="joint"), seconds={"learn": 7.0})


def text_of(table: Table, width: int = 200) -> list[list[str]]:
    """The printed lines, split where two or more blanks stand."""
    return [re.split(r"\s{2,}", line.strip()) for line in printed(table, width).splitlines() if line.strip()]


def printed(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Resolved, Path]:
    """A true run, as short as can be."""
    config = configure({"method": "er", "benchmark": "digits", "spc": 2, "steps": 1, "images_per_class": 5,
                        "width": 4, "threads": 1})
    folder = RunFolder.of(tmp_path_factory.mktemp("runs"), config)
    run(config, folder, checkpoint_seconds=1e9)
    return config, folder.path


# -- results ---------------------------------------------------------------------------------------------------


def test_a_real_run_goes_through_everything(real_run: tuple[Resolved, Path], tmp_path: Path) -> None:
    config, folder = real_run
    result = read_result(folder)
    assert result == read_result(folder / "result.json")
    assert run_labels([result]) == ["er spc 2"]
    assert summary_rows([result])[0]["A_T"] == f"{result.class_incremental.A_T:.1f}"
    assert text_of(ledger_table(result))[-1] == ["sum", f"{(folder / 'memory.safetensors').stat().st_size:,}"]
    figures.accuracy_curves([result], tmp_path / "curves.png")
    figures.matrix_heatmap(result, tmp_path / "matrix.png")
    figures.bytes_figure([result], tmp_path / "bytes.png")
    again = configure({}, like=result_of(result.small(), "small"))
    assert RunFolder.of(tmp_path, again) == RunFolder.of(tmp_path, config)


def changed(config: Resolved, name: str) -> Resolved:
    """The same configuration with another value of one setting or option, past all checks of values."""
    part = "options" if hasattr(config.options, name) else "settings"
    old = copy.copy(getattr(config, part))
    value = getattr(old, name)
    new = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else f"{value}x"
    object.__setattr__(old, name, new)
    return dataclasses.replace(config, **{part: old})


def test_folder_name_follows_every_setting_that_matters() -> None:
    config = configure({"method": "protocore", "benchmark": "digits", "seed": 3})
    root = Path("runs")
    name = RunFolder.of(root, config).path.name
    assert re.fullmatch(r"protocore-digits-[0-9a-f]{8}-s3", name)
    fields = [f.name for part in (config.settings, config.options) for f in dataclasses.fields(part)]
    names = {field: RunFolder.of(root, changed(config, field)).path.name for field in fields}
    # strict: the same data or an error; forward_transfer: measured beside the run
    beside = {"data_root", "strict", "threads", "memory_format", "forward_transfer"}
    assert {field for field in fields if names[field] == name} == beside
    others = [n for field, n in names.items() if field not in beside]
    assert len(set(others)) == len(others), "each change has a folder of its own"
    assert names["seed"] == name.removesuffix("3") + "4", "seeds stand side by side"
    # Where a value came from is no part of what the run is.
    said = configure({"method": "protocore", "benchmark": "digits", "seed": 3, "spc": 1})
    assert RunFolder.of(root, said).path.name == name


def test_folder_name_is_safe_in_any_file_system() -> None:
    def named(path: str) -> str:
        return RunFolder.of(Path("runs"), configure({"benchmark": f"folder:{path}"})).path.name

    assert re.fullmatch(r"protocore-folder_.._my_p_ctures_-[0-9a-f]{8}-s0", named("../my pïctures?"))
    assert named("a/b") != named("a_b")
    assert len(named("very/long/" * 50)) < 120
    assert named("x/" * 100 + "1") != named("x/" * 100 + "2")


def test_small_keeps_what_tables_need_and_no_path() -> None:
    result = made_up(lr=1.25e-5, data_root="/home/somebody/data")
    kept, full = result.small(), result.to_json()
    assert "per_class" not in kept
    assert kept["class_names"] == result.class_names
    assert "somebody" not in json.dumps(kept)
    assert kept["settings"]["lr"] == 1.25e-5, "settings are not rounded"
    assert set(kept["settings"]) == set(result.settings) - {"data_root"}
    assert kept["options"] == result.options
    assert kept["sources"] == {"method": "flag", "lr": "flag", "epochs": "benchmark digits",
                               "batch": "benchmark digits", "replay_batch": "benchmark digits",
                               "augment": "benchmark digits", "spc": "method er"}
    assert kept["class_incremental"]["forgetting"] == 18.667
    for name in ("command", "data_digest", "code_version", "machine", "ledger", "seconds", "images_per_second",
                 "peak_memory_bytes", "tasks", "bytes_kept"):
        assert kept[name] == full[name]
    again = result_of(kept, "small")
    assert again.small() == kept
    assert summary_rows([again]) == summary_rows([result])

    many = dataclasses.replace(result, class_names=[str(i) for i in range(21)], classes=21)
    assert "class_names" not in many.small()
    assert many.small()["classes"] == 21
    assert summary_rows([result_of(many.small(), "small")]) == summary_rows([many])


def test_labels_say_what_sets_runs_apart() -> None:
    runs = [made_up(method="finetune"), made_up(spc=5), made_up(spc=5, seed=1), made_up(spc=5, draw="balanced"),
            made_up(budget="64KB"), made_up(capacity=200), made_up(method="protocore", real=20),
            made_up(spc=7, threads=1), made_up(spc=7, threads=2)]
    assert run_labels(runs) == ["finetune", "er spc 5", "er spc 5, seed 1", "er spc 5, draw balanced", "er 64.0 KB",
                                "er capacity 200", "protocore spc 20+1", "er spc 7", "er spc 7"]
    assert run_labels([made_up(spc=5, codec=codec) for codec in ("webp:10", "jpeg", "vqgan:2", "pixels")]) == [
        "er spc 5, webp:10", "er spc 5, jpeg", "er spc 5, vqgan:2", "er spc 5"]
    assert run_labels([made_up(spc=5, codec="vqgan:/home/me/mine.safetensors:2,sweeps=1")]) == [
        "er spc 5, vqgan:mine.safetensors:2,sweeps=1"]
    # Sizes and codecs mean nothing to a method without exemplars.
    runs = [made_up(method="lwf", spc=5), made_up(method="lwf", budget="4KB", codec="webp"), made_up(method="joint")]
    assert run_labels(runs) == ["lwf", "lwf", "joint"]
    mixed = [made_up(), made_up(benchmark="mnist")]
    assert run_labels(mixed) == ["er spc 20 on digits", "er spc 20 on mnist"]


def test_labels_say_what_was_chosen_and_what_follows_from_it_only_where_nothing_else_tells() -> None:
    given = {"method": "protocore", "benchmark": "cifar100-10", "preset": "fast", "spc": 5}
    plain, synthetic = made_up(**given), made_up(**given, exemplars="synthetic")
    assert synthetic.settings["head"] == "cosine"  # which the preset has for synthetic ones
    assert run_labels([plain, synthetic]) == ["protocore spc 5, vqgan:4",
                                              "protocore spc 5, vqgan:4, exemplars synthetic"]
    same = [dataclasses.replace(plain, options={**plain.options, "noise": noise},
                                sources={**plain.sources, "noise": "preset fast"}) for noise in ("0", "0.5")]
    assert run_labels(same) == ["protocore spc 5, vqgan:4, noise 0", "protocore spc 5, vqgan:4, noise 0.5"]


def test_bounds_are_recognised() -> None:
    assert joint().saw_everything
    assert not made_up().saw_everything
    assert made_up(method="finetune").keeps_nothing
    assert not made_up().keeps_nothing


# -- tables ----------------------------------------------------------------------------------------------------


def test_summary_table_golden() -> None:
    expected = {"method": "er spc 20 (25 real)", "A_T": "79.0", "A_L": "93.0", "Ā": "82.0", "forgetting": "18.7",
                "task-inc. A_T": "97.5", "kept": "13.3 KB", "a class": "1.7 KB", "learn (s)": "12.3",
                "memory (s)": "1.5"}
    assert summary_rows([made_up()]) == [expected]
    lines = text_of(summary_table([made_up(), joint()], width=200))
    assert lines[0] == ["digits"]
    assert lines[3] == list(expected.values())
    assert lines[4] == ["joint", "79.0", "–", "–", "–", "97.5", "all data", "–", "7.0", "–"]


def test_exemplars_are_counted_by_what_they_are() -> None:
    def with_only(result: Result, *rows: tuple[str, int]) -> Result:
        entries = [Entry(f"{origin} exemplars/labels", n, n, kind="exemplars", origin=origin) for origin, n in rows]
        return dataclasses.replace(result, ledger=Ledger(tuple(entries)))

    both = with_only(made_up(method="protocore", real=20), ("synthetic", 16), ("real", 160))
    assert both.exemplars == {"synthetic": 16, "real": 160}
    assert exemplar_words(both) == "2 synthetic + 20 real"
    few, more = with_only(made_up(), ("coded", 8)), with_only(made_up(), ("coded", 24))
    assert exemplar_words(few) == "1 coded"
    assert exemplar_words(few, more) == "2 coded", "the mean over runs"
    assert exemplar_words(made_up(method="finetune")) == "–"


DECODER = Entry("decoder", 1_500_000, 1, shared=True, kind="decoder")
PREVIOUS = Entry("previous network, during a task", 748_400, 1, shared=True, kind="network")


def test_summary_table_shows_shared_bytes_where_there_are_some() -> None:
    decoder = with_entries(made_up(), DECODER)
    assert summary_rows([decoder])[0]["kept"] == "13.3 KB"
    said = str(summary_table([decoder, made_up()]).caption)
    assert said.startswith("Kept once beside it, for all classes: decoder, 1.5 MB\n")
    assert "Kept once" not in str(summary_table([made_up()]).caption)


def test_what_is_held_during_a_task_is_not_called_kept() -> None:
    held = with_entries(made_up(method="lwf"), PREVIOUS)
    assert str(summary_table([held]).caption).startswith("Held while a task is learned: previous network, 748.4 KB\n")
    assert held.decoder_bytes == 0
    both = with_entries(made_up(method="icarl", codec="vqgan:2"), dataclasses.replace(DECODER, bytes=163_500),
                        dataclasses.replace(PREVIOUS, bytes=900))
    assert str(summary_table([both, held]).caption).startswith(
        "Kept once beside it, for all classes: decoder, 163.5 KB\n"
        "Held while a task is learned: previous network, 900 B; previous network, 748.4 KB\n")
    assert both.decoder_bytes == 163_500


def test_every_heading_of_a_summary_is_explained_below_it_at_every_width() -> None:
    for width in (60, 66, 80, 200):
        table = summary_table([made_up()], width=width)
        headings = [str(column.header) for column in table.columns]
        for heading in headings[1:]:
            assert f"{heading}:" in str(table.caption)
        assert {"method", "A_T", "F", "kept"} <= set(headings)
        lines = printed(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in "".join(lines)


def test_seeds_end_in_their_mean_and_deviation() -> None:
    lower = [[value - 2 for value in row] for row in R]
    runs = [made_up(seed=0), made_up(lower, seed=1)]
    rows = text_of(summary_table(runs, mean=True))
    assert rows[0] == ["digits: er spc 20 (25 real)"]
    assert rows[3][:2] == ["seed 0", "79.0"]
    assert rows[4][:2] == ["seed 1", "77.0"]
    assert rows[5] == ["mean", "78.0 ± 1.4", "92.0 ± 1.4", "81.0 ± 1.4", "18.7 ± 0.0", "97.5 ± 0.0",
                       "13.3 KB"]
    assert "…" not in printed(summary_table(runs, mean=True), 80)


@pytest.mark.parametrize("shared", [0, 487_264])
def test_summary_table_fits_a_terminal_and_takes_brackets_as_they_are(shared: int) -> None:
    result = made_up(benchmark="folder:[red]x[/red]", method="protocore", real=20,
                     codec="vqgan:weights-of-my-own-pictures.safetensors:2")
    result = dataclasses.replace(result, seconds={"learn": 12345.6, "condense": 1234.5})
    if shared:
        result = with_entries(result, dataclasses.replace(DECODER, bytes=shared))
    text = printed(summary_table([result]), 80)
    assert "folder:[red]x[/red]" in text
    assert "…" not in text
    for cell in ("protocore", "20+1", "79.0", "93.0", "82.0", "18.7", "97.5", "13.3 KB",
                 "12,346", "1,234", *(["487.3 KB"] if shared else [])):
        assert cell in text


def test_ledger_table_sums_without_the_shared_rows() -> None:
    lines = text_of(ledger_table(with_entries(made_up(), DECODER)))
    assert ["exemplars/bytes", "200", "12,800"] in lines
    assert ["sum", "13,256"] in lines
    assert lines[-1] == ["shared: decoder", "1", "1,500,000"]


def test_ledger_table_counts_exemplars_of_differing_size() -> None:
    result = dataclasses.replace(made_up(codec="webp"), ledger=Ledger((
        Entry("coded exemplars/bytes", 12_800, 12_800), Entry("coded exemplars/lengths", 400, 200))))
    lines = text_of(ledger_table(result))
    assert ["coded exemplars/bytes", "200", "12,800"] in lines
    assert ["coded exemplars/lengths", "200", "400"] in lines


def test_matrix_table() -> None:
    assert text_of(matrix_table(R))[3:] == [
        ["1", "90", "90.0"], ["2", "70", "92", "81.0"], ["3", "60", "80", "94", "78.0"],
        ["4", "65", "70", "85", "96", "79.0"]]
    assert text_of(matrix_table(R[-1:]))[3:] == [["4", "65", "70", "85", "96", "79.0"]]
    lines = text_of(matrix_table([[float(j)] * 1 + [50.0] * j for j in range(50)]), width=80)
    assert len(lines) == 3 + 12
    assert lines[1][0].startswith("after task")
    assert lines[3][0] == "1"
    assert lines[-1][0] == "50"
    assert lines[-1][-1] == "50.0"


def test_config_table() -> None:
    result = made_up(lr=0.01, draw="balanced")
    assert text_of(config_table(result))[2:] == [
        ["--method", "er", "flag"], ["--augment", "crop1", "benchmark digits"], ["--spc", "20", "method er"],
        ["--lr", "0.01", "flag"], ["--epochs", "20", "benchmark digits"], ["--batch", "32", "benchmark digits"],
        ["--replay-batch", "32", "benchmark digits"], ["--draw", "balanced", "flag"]]
    everything = text_of(config_table(result_of(result.small(), "small"), all=True))[2:]
    assert ["--online", "false", "default"] in everything
    assert ["--steps", "none", "default"] in everything


def test_mean_and_deviation() -> None:
    assert mean_std([50.2]) == "50.2"
    assert mean_std([49.0, 51.0, 53.0]) == "51.0 ± 2.0"
    assert mean_std([]) == "–"


def test_markdown_table() -> None:
    rows = [{"method": "a|b", "A_T": "5.0", "note": "one\ntwo"}, {"method": "c", "A_T": "50.2 ± 1.3"}]
    assert markdown_table(rows) == (
        "| method |        A_T | note    |\n"
        "| ------ | ---------: | ------- |\n"
        "| a\\|b   |        5.0 | one two |\n"
        "| c      | 50.2 ± 1.3 |         |")
    assert markdown_table([]) == ""


def test_replace_block_round_trip() -> None:
    text = "# Title\n\n<!-- table: one -->\n<!-- end: one -->\nbetween\n<!-- table: two -->\nold\n<!-- end: two -->\n"
    block = r"| \1 | \g<0> |"
    once = replace_block(text, "one", block)
    assert once == text.replace("one -->\n<!-- end", f"one -->\n{block}\n<!-- end")
    assert replace_block(once, "one", block) == once
    assert replace_block(replace_block(once, "two", "new"), "two", "old") == once
    for broken, what in (
        ("nothing", "exactly once; it is there 0 times"),
        ("<!-- table: x -->", "<!-- end: x --> exactly once"),
        ("<!-- end: x -->", "<!-- table: x --> exactly once"),
        ("<!-- table: x --><!-- table: x --><!-- end: x -->", "2 times"),
        ("<!-- end: x --> <!-- table: x -->", "stands before"),
    ):
        with pytest.raises(UserError, match=what):
            replace_block(broken, "x", "block")


# -- figures ---------------------------------------------------------------------------------------------------


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert not image.text  # type: ignore[attr-defined]  # no software, no time
        return np.asarray(image.convert("RGB"))


def colours(pixels: np.ndarray) -> set[tuple[int, ...]]:
    packed = np.unique(pixels.astype(np.int64) @ (1 << 16, 1 << 8, 1))
    return {(c >> 16, c >> 8 & 255, c & 255) for c in packed.tolist()}


def rgb(code: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(code.removeprefix("#")))


def test_accuracy_curves(tmp_path: Path) -> None:
    runs = [made_up(method="finetune"), joint(), made_up(), made_up(spc=5, seed=1)]
    figures.accuracy_curves(runs, tmp_path / "new" / "a.png")
    figures.accuracy_curves(runs, tmp_path / "b.png")
    assert (tmp_path / "new" / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes(), "the same bytes again"
    pixels = picture(tmp_path / "b.png")
    assert pixels.shape == (840, 1440, 3)
    assert {rgb("#FFFFFF"), rgb(figures.FAINT), rgb(figures.COLOURS[0]), rgb(figures.COLOURS[1])} <= colours(pixels)
    assert rgb(figures.COLOURS[2]) not in colours(pixels), "bounds take no colour"


def test_accuracy_curves_of_many_runs_have_a_legend(tmp_path: Path) -> None:
    runs = [made_up(spc=n) for n in range(1, 11)]
    figures.accuracy_curves(runs, tmp_path / "many.png")
    assert {rgb(c) for c in figures.COLOURS} <= colours(picture(tmp_path / "many.png"))
    with pytest.raises(UserError, match="no finished run"):
        figures.accuracy_curves([], tmp_path / "none.png")


def test_labels_never_overlap() -> None:
    places = figures._spread([50, 50, 51, 99, 100, 1], [4, 8, 4, 4, 4, 4], 0, 104)
    boxes = sorted(zip(places, [4, 8, 4, 4, 4, 4], strict=True))
    assert all(b - hb / 2 >= a + ha / 2 - 1e-9 for (a, ha), (b, hb) in pairwise(boxes))
    assert boxes[0][0] >= 2
    assert boxes[-1][0] <= 102
    assert figures._spread([10, 90], [4, 4], 0, 104) == [10, 90], "what does not touch stays"


def test_matrix_heatmap_of_few_and_many_tasks(tmp_path: Path) -> None:
    figures.matrix_heatmap(made_up(), tmp_path / "few.png")
    few = picture(tmp_path / "few.png")
    many_r = [[100.0 - (i - j) for j in range(i + 1)] for i in range(21)]
    figures.matrix_heatmap(made_up(many_r, many_r), tmp_path / "many.png")
    many = picture(tmp_path / "many.png")
    assert few.shape[1] == 840
    assert min(many.shape[:2]) > 21 * 50, "a cell has at least 50 pixels for its number"
    upper = few[few.shape[0] // 10 : few.shape[0] // 3, few.shape[1] * 2 // 3 :]
    assert (upper == 255).all(), "tasks not learned yet are blank"
    assert len(colours(few)) > 10
    figures.matrix_heatmap(joint(), tmp_path / "row.png")
    assert picture(tmp_path / "row.png").shape[0] < few.shape[0]


def test_memories_figure(tmp_path: Path) -> None:
    lines = {"one": [[made_up(), made_up(seed=1)], [made_up(budget=50_000)]], "two": [[made_up(codec="webp:10")]]}
    figures.memories_figure(lines, tmp_path / "memories.png")
    with Image.open(tmp_path / "memories.png") as picture:
        assert picture.width > 1000
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    with pytest.raises(UserError):
        figures.memories_figure({}, tmp_path / "none.png")


def test_bytes_figure(tmp_path: Path) -> None:
    small_one = keeping(made_up(spc=1), 938)
    other = keeping(made_up(method="protocore"), 6_200_000)
    runs = [made_up(method="finetune"), joint(), small_one, made_up(), other]
    figures.bytes_figure(runs, tmp_path / "bytes.png")
    pixels = picture(tmp_path / "bytes.png")
    found = colours(pixels)
    assert pixels.shape == (840, 1440, 3)
    assert {rgb(figures.COLOURS[0]), rgb(figures.COLOURS[1]), rgb(figures.FAINT)} <= found
    assert rgb(figures.COLOURS[2]) not in found, "one colour a method"
    columns = np.flatnonzero((pixels == rgb(figures.COLOURS[1])).all(2).any(0))
    assert columns.mean() > 720, "more bytes stand further to the right"
    figures.bytes_figure(runs[:2], tmp_path / "bounds.png")
    assert len(colours(picture(tmp_path / "bounds.png"))) > 10


def test_exemplar_grid_shows_every_pixel_as_a_square(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 2
    names = ["zero", "one"]
    grids.exemplar_grid(images, labels, names, tmp_path / "grid.png", "digits")
    pixels = picture(tmp_path / "grid.png")
    scale, gap = 9, 6
    for row in range(2):
        wanted = images[labels == row][:20, 0].numpy().repeat(scale, 1).repeat(scale, 2)
        strip = np.full((72, 20 * (72 + gap) - gap), 255, np.uint8)
        for j, image in enumerate(wanted):
            strip[:, j * (72 + gap) : j * (72 + gap) + 72] = image
        right = pixels.shape[1] - 28 - gap
        top = pixels.shape[0] - 28 - (2 - row) * (72 + gap)
        assert (pixels[top : top + 72, right - strip.shape[1] : right] == strip[..., None]).all()


def test_exemplar_grid_of_colours_and_many_classes(tmp_path: Path) -> None:
    images = np.zeros((50, 3, 32, 32), np.uint8)
    images[:, 0] = np.arange(50)[:, None, None] + 100
    names = [f"class {i}" for i in range(100)]
    grids.exemplar_grid(images, np.arange(50) * 2, names, tmp_path / "grid.png", "fifty classes")
    pixels = picture(tmp_path / "grid.png")
    assert {(100 + i, 0, 0) for i in range(50)} <= colours(pixels)
    assert 1.0 < pixels.shape[1] / pixels.shape[0] < 2.5, "blocks side by side, not one tall column"
    large = np.zeros((2, 3, 224, 224), np.uint8)
    large[:, 0] = 200
    grids.exemplar_grid(large, np.array([0, 0]), ["$x_long" * 10], tmp_path / "large.png", "")
    pixels = picture(tmp_path / "large.png")
    assert pixels.shape[1] < 800
    assert (pixels == (200, 0, 0)).all(2).sum() == 2 * 112 * 112


def test_pictures_say_how_much_of_all_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    said: list[str] = []
    plain_text, plain_title = Figure.text, Axes.set_title
    monkeypatch.setattr(Figure, "text", lambda f, x, y, s, **k: said.append(s) or plain_text(f, x, y, s, **k))
    monkeypatch.setattr(Axes, "set_title", lambda a, s, **k: said.append(s) or plain_title(a, s, **k))
    images = np.zeros((60, 1, 8, 8), np.uint8)
    grids.exemplar_grid(images, np.arange(60) % 2, ["a", "b"], tmp_path / "part.png", "two classes")
    assert said[-2:] == ["two classes", "first 20 of 30 exemplars of each class"]
    grids.exemplar_grid(images[:51], np.repeat([0, 1], [30, 21]), ["a", "b"], tmp_path / "part.png", "")
    assert said[-1] == "first 20 of up to 30 exemplars of each class"
    grids.exemplar_grid(images[:40], np.arange(40) % 2, ["a", "b"], tmp_path / "all.png", "two classes")
    assert said[-1] == "two classes"
    draw = np.random.default_rng(0).normal
    records = {"real": draw(size=(120, 4)), "real labels": np.arange(120) % 12, "labels": np.arange(36) % 12,
               "steps": draw(size=(3, 36, 4))}
    condensation_figure(records, tmp_path / "ways.png", [f"class {i}" for i in range(12)])
    assert "first 7 of 12 classes" in said


def test_a_condensation_is_drawn_whatever_there_is_of_it(tmp_path: Path) -> None:
    draw = np.random.default_rng(0).normal
    for name, real, of, steps in (("many", 120, 36, 3), ("one", 1, 1, 1), ("few", 5, 2, 20)):
        labels = np.arange(real) % 12
        records = {"real": draw(size=(real, 4)), "real labels": labels, "labels": np.arange(of) % min(real, 12),
                   "steps": draw(size=(steps, of, 4)), "targets": draw(size=(of, 4))}
        condensation_figure(records, tmp_path / f"{name}.png", [f"class {i}" for i in range(12)])
        pixels = picture(tmp_path / f"{name}.png")
        assert pixels.shape == (960, 1920, 3)
        assert {rgb(figures.COLOURS[0]), rgb(figures.INK)} <= colours(pixels)


def test_no_letter_of_any_script_is_a_box(tmp_path: Path) -> None:
    names = ["猫と犬", "😀👍🏽", "קפה", "한국어", "\ue000\u200d", "naïve", "a\u0301"]
    images, labels = np.zeros((7, 1, 8, 8), np.uint8), np.arange(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib: "Glyph 29483 missing from font"
        grids.exemplar_grid(images, labels, names, tmp_path / "grid.png", "\n".join(names))
        grids.pairs_grid([(n, [(i, i)]) for n, i in zip(names, images, strict=True)], tmp_path / "pairs.png", names[0])
        result = made_up(benchmark=f"folder:{names[0]}")
        figures.accuracy_curves([result, made_up(benchmark=f"folder:{names[1]}")], tmp_path / "curves.png")
        figures.matrix_heatmap(result, tmp_path / "matrix.png")
        figures.bytes_figure([result, made_up(benchmark=f"folder:{names[3]}")], tmp_path / "bytes.png")
        records = {"real": np.eye(7), "real labels": labels, "labels": labels, "steps": np.eye(7)[None]}
        condensation_figure(records, tmp_path / "ways.png", names)


def test_letters_that_no_font_has_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_font_of", lambda letter: "DejaVu Sans" if letter.isascii() else None)
    assert drawable("cat 猫\u200d😀") == r"cat \u732b(grinning face)"
    monkeypatch.setattr(fonts, "_font_of", lambda letter: "Others" if letter == "猫" else "DejaVu Sans")
    assert drawable("cat 猫") == "cat 猫"
    assert fonts_for(["cat", "猫"]) == ["DejaVu Sans", "Others"]


@pytest.mark.parametrize(("classes", "pairs"), [(4, 3), (100, 4)])
def test_pairs_fill_the_width_whatever_the_title(tmp_path: Path, classes: int, pairs: int) -> None:
    pair = np.zeros((1, 8, 8), np.uint8), np.zeros((1, 8, 8), np.uint8)
    rows = [(f"{i}: 50 / 100 %", [pair] * pairs) for i in range(classes)]
    grids.pairs_grid(rows, tmp_path / "pairs.png", "a title " * 20, "and a note " * 20)
    dark = (picture(tmp_path / "pairs.png") == 0).all(2).mean(0) > 0.2  # columns of pictures, not of letters
    assert dark.nonzero()[0].max() > 0.94 * len(dark)
    with pytest.raises(UserError, match="no pictures"):
        grids.pairs_grid([], tmp_path / "none.png", "")


def test_exemplar_grid_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="empty"):
        grids.exemplar_grid(np.zeros((0, 1, 8, 8), np.uint8), np.zeros(0), [], tmp_path / "x.png", "")
    with pytest.raises(UserError, match="uint8"):
        grids.exemplar_grid(torch.zeros(2, 1, 8, 8), torch.zeros(2), ["a"], tmp_path / "x.png", "")
    assert not (tmp_path / "x.png").exists()


def test_a_style_of_the_user_changes_nothing(tmp_path: Path) -> None:
    import matplotlib

    figures.matrix_heatmap(made_up(), tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black"}):
        figures.matrix_heatmap(made_up(), tmp_path / "b.png")
        assert matplotlib.rcParams["font.size"] == 20
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_importing_loads_no_matplotlib() -> None:
    code = "import sys, protocore.bench.figures, protocore.bench.tables; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- health ----------------------------------------------------------------------------------------------------


def test_the_nearest_of_all_pictures_is_found_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHUNK", 7 * 64)
    chance = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (330, 1, 8, 8), dtype=torch.uint8, generator=chance)
    task = Task.from_arrays(pictures, torch.arange(330) % 2)
    most, take = [], task.take
    monkeypatch.setattr(task, "take", lambda rows: most.append(len(rows)) or take(rows))
    odd = torch.arange(1, 330, 2)
    queries = torch.cat([pictures[301:302], torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=chance),
                         pictures[odd[:30]]])
    own = torch.cat([torch.full((21,), -1), odd[:30]])
    near, found = health.nearest(queries, task, odd, own)
    assert max(most) == 7
    assert near[0] == 0, "a copy of picture 301"
    assert torch.equal(found[0], pictures[301])
    gaps = (to_float(queries)[:, None] - to_float(pictures[odd])[None]).flatten(2).square().mean(2).sqrt()
    gaps[torch.arange(21, 51), torch.arange(30)] = float("inf")
    assert torch.allclose(near, gaps.min(1).values)
    assert torch.equal(found, pictures[odd][gaps.argmin(1)])


def test_an_exemplar_that_is_a_late_training_picture_is_no_distance_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOCORE_CACHE", str(tmp_path / "cache"))
    chance = np.random.default_rng(0)
    for part, name, count in (("train", "a", 260), ("train", "b", 1), ("test", "a", 1), ("test", "b", 1)):
        folder = tmp_path / "data" / part / name
        folder.mkdir(parents=True)
        for i in range(count):
            Image.fromarray(chance.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{i:03}.png")
    flags = {"method": "er", "benchmark": f"folder:{tmp_path / 'data'}", "classes_per_task": 2, "spc": 250, "steps": 8,
             "batch": 64, "width": 4, "threads": 1}
    run(configure(flags), RunFolder(tmp_path / "run"))
    drawn: list[Any] = []
    monkeypatch.setattr(grids, "pairs_grid", lambda *parts: drawn.extend(parts))
    report = health.health(tmp_path / "run", steps=1)
    row, few = report["classes"]
    assert row["exemplars"] > 200
    assert row["nearest_training"] == row["closest_training"] == 0
    assert row["between_training"] > 0.2
    assert few["between_training"] is None  # a class of one picture
    assert report["mean"]["real"]["between_training"] == pytest.approx(row["between_training"], abs=1e-4)
    assert next(line for line in text_of(health_table(report)) if line[0] == "b")[-1] == "–"
    json.loads((tmp_path / "run" / "health.json").read_text(), parse_constant=pytest.fail)  # no NaN
    rows, _, title, note = drawn
    assert title == f"exemplar | nearest training picture, first 4 of up to {row['exemplars']} exemplars"
    assert "gets right" in note
    assert rows[1][0] == f"b: {100 * few['present_right']:.0f} / {100 * few['fresh_right']:.0f} %", "as in the table"


def test_the_centre_of_a_class_is_made_of_what_the_method_sees(tmp_path: Path) -> None:
    flags = {"method": "er", "benchmark": "digits", "spc": 2, "steps": 1, "images_per_class": 5, "tasks": 1, "width": 4,
             "threads": 1, "codec": "vqgan:1"}
    for space in ("codec", "raw"):
        run(configure(flags | {"replay_space": space}), RunFolder(tmp_path / space))
        learner, stream = health.reopened(tmp_path / space)
        everything, coded = stream.everything(), stream.everything()
        coded.code(learner.through_codec)
        seen, labels = learner.method.task_features(coded)
        for label in everything.classes:
            rows = (everything.labels == label).nonzero().flatten()
            learner.net.eval()
            with torch.no_grad():
                centre = health._centre(learner, everything, rows)
            assert torch.allclose(centre, seen[labels == label].mean(0, keepdim=True), atol=1e-6), space


def test_the_table_of_health_has_the_units_of_its_file_and_a_legend() -> None:
    row = {"name": "cat", "origin": "coded", "exemplars": 3, "to_prototype": 0.5, "present": 0.1, "present_right": 0.67,
           "fresh": 0.2, "fresh_right": 1.0, "nearest_training": 0.0561, "closest_training": 0.01,
           "between_training": 0.2016}
    report = {"classes": [row], "mean": {"coded": {k: v for k, v in row.items() if isinstance(v, float)}}}
    table = health_table(report)
    assert ["cat", "coded", "3", "0.500", "67 %", "100 %", "0.056", "0.202"] in text_of(table)
    for heading in ("n", "gap", "nearest", "between"):
        assert f"{heading}: " in str(table.caption)
    for words in ("present, fresh: share", "root mean square"):
        assert words in str(table.caption)


# -- the documents, and their tables ---------------------------------------------------------------------------


def test_the_example_about_packs_runs_as_printed(
    real_run: tuple[Resolved, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(real_run[1])
    exec(compile(code, "memory.md", "exec"), {})
    assert capsys.readouterr().out.startswith("exemplars real (20, 1, 8, 8) ['0', '0', '1', '1'")


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/tables.py, which reads its results below `tmp_path`."""
    path = Path(__file__).parents[2] / "benchmarks" / "tables.py"
    spec = importlib.util.spec_from_file_location("document_tables", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_bytes_beside_an_accuracy_are_those_of_its_runs(documents: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "codecs"
    folder.mkdir(parents=True)
    kept = {"codec-s0": 89_000, "mix-s0": 90_000, "mix-s1": 91_000, "mix-s2": 95_000, "raw-s0": 99_000}
    for name, size in kept.items():
        result = keeping(made_up(budget="100KB", codec="webp:10"), size)
        (folder / f"er-webp-1KB-{name}.json").write_text(json.dumps(result.to_json()))
    (folder / "er-pixels-1KB-s0.json").write_text(json.dumps(keeping(made_up(budget="100KB"), 50_000).to_json()))
    heading, _, pixels, webp = cells(documents.codec_runs_table("codecs"))
    assert dict(zip(heading, webp, strict=True)) == {
        "room a class": "12.5 KB", "memory": "er, webp", "codec": "`webp:10`", "exemplars a class": "25 coded",
        "kept": "92.0 KB", "raw": "79.0 (1)", "mix": "79.0 ± 0.0 (3)", "codec space": "79.0 (1)"}
    assert pixels[4:] == ["50.0 KB", "79.0 (1)", "", ""]
    (short,) = [row for row in cells(documents.fast_table("codecs")) if row[0] == "er-webp-1KB-mix"]
    assert short[:6] == ["er-webp-1KB-mix", "92.0 KB", "11.5 KB", "–", "25 coded", "79.0 ± 0.0 (3)"]
    assert cells(documents.runs_table("codecs"))[4][6] == "92.0 KB"


def test_sweeps_are_compared_on_the_same_pictures(documents: Any, tmp_path: Path) -> None:
    folder = tmp_path / "src" / "protocore" / "codecs" / "weights"
    folder.mkdir(parents=True)
    measured = [{"pictures_of": "CIFAR-100 test", "stages": 4, "exemplar_bytes": 72, "sweeps": sweeps,
                 "pictures": pictures, "psnr": psnr}
                for sweeps, pictures, psnr in ((0, 10_000, 25.9), (0, 2_000, 25.4), (2, 2_000, 25.53))]
    (folder / "vqgan-colour.json").write_text(json.dumps({"measured": measured}))
    clock = {"vqgan:4": {"encode_ms": 2.0}, "vqgan:4,sweeps=2": {"encode_ms": 15.0}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "codecs.json").write_text(json.dumps({"cifar100-10": clock}))
    assert cells(documents.sweeps_table())[2:] == [
        ["CIFAR-100", "72", "2,000", "25.40", "25.53", "0.13", "7.5 times as long", "25.5", "sweeps"]]
