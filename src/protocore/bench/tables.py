"""Tables: for the terminal with rich, and in Markdown for documents that are written by a program."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from protocore.bench.labels import run_labels
from protocore.config import flag, format_bytes, plural
from protocore.errors import UserError
from protocore.learn.metrics import Matrix
from protocore.memory.ledger import Entry
from protocore.runs.result import Result

NONE = "–"
# In a terminal: short headings that the legend below explains, and from which width each column is shown.
HEADINGS = {"forgetting": "F", "task-inc. A_T": "told", "learn (s)": "learn", "memory (s)": "store"}
SHOWN_FROM = {"A_L": 64, "Ā": 70, "told": 58, "a class": 90, "learn": 72, "store": 72}  # columns
LEGEND = {
    "A_T": "A_T: accuracy (%) over all classes after the last task",
    "A_L": "A_L: over each task right after it",
    "Ā": "Ā: over all classes seen so far, mean over the tasks",
    "F": "F: forgetting, how far a task fell from its best",
    "told": "told: A_T where the task of a picture is told",
    "kept": "kept: bytes of the memory",
    "a class": "a class: of them, a class",
    "learn": "learn: seconds of training",
    "store": "store: of choosing, coding and condensing",
}
MOST_COLUMNS = 12  # of a matrix in a terminal
HEALTH_LEGEND = (
    "n: exemplars; gap: squared distance of normalised features to the prototype; present, fresh: share that the "
    "present network and one trained just now get right; nearest: from an exemplar to the nearest training picture of "
    "its class; between: from a training picture to the nearest other one (both: root mean square difference of pixels "
    "between 0 and 1)"
)


def mean_std(values: Sequence[float]) -> str:
    """`50.2 ± 1.3`, with the standard deviation of a sample; `50.2` for one value."""
    if not values:
        return NONE
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def summary_rows(results: list[Result]) -> list[dict[str, str]]:
    """A row a run: how right it is, what it keeps, what it costs."""
    rows = []
    for label, r in zip(run_labels(results), results, strict=True):
        free, told, seconds = r.class_incremental, r.task_incremental, r.seconds
        all_data = r.saw_everything
        row = {
            "method": label if (words := exemplar_words(r)) == NONE else f"{label} ({words})",
            "A_T": _percent(free.A_T),
            "A_L": _percent(free.A_L),
            "Ā": _percent(free.A_mean),
            "forgetting": _percent(free.forgetting),
            "task-inc. A_T": _percent(told.A_T),
            "kept": "all data" if all_data else format_bytes(r.bytes_kept),
            "a class": NONE if all_data else format_bytes(r.bytes_kept / r.classes),
        }
        inner = [v for k, v in seconds.items() if k not in ("learn", "evaluate")]
        row["learn (s)"] = _seconds(seconds.get("learn", 0.0))
        row["memory (s)"] = _seconds(sum(inner)) if inner else NONE
        rows.append(row)
    return rows


def exemplar_words(*results: Result) -> str:
    """Exemplars a class and what they are, the mean over these runs: `20 real + 1 coded`."""
    counts: dict[str, float] = {}
    for result in results:
        for kind, count in result.exemplars.items():
            counts[kind] = counts.get(kind, 0.0) + count / result.classes / len(results)
    return " + ".join(f"{count:.0f} {kind}" if count >= 1 else f"{count:.1f} {kind}"
                      for kind, count in counts.items()) or NONE


def summary_table(results: list[Result], *, mean: bool = False, width: int = 80) -> Table:
    """Runs side by side, as many columns as so many characters hold. What the headings mean is said below.

    `mean`: they are runs of one kind with several seeds, whose mean and deviation end the table. Seconds of learning
    stand apart from those of condensing or selecting.
    """
    table = new_table(", ".join(dict.fromkeys(r.benchmark for r in results)))
    rows = summary_rows(results)
    if mean and results:
        table.title = escape(f"{results[0].benchmark}: {run_labels(results[:1])[0]} ({exemplar_words(*results)})")
        rows = [row | {"method": f"seed {r.settings['seed']}"} for row, r in zip(rows, results, strict=True)]
        rows.append(_mean_row(results))
    names = [name for name in (rows[0] if rows else ("method", "A_T"))
             if width >= SHOWN_FROM.get(HEADINGS.get(name, name), 0) and not (mean and name in _NOT_OF_SEEDS)]
    for name in names:
        first = name == "method"
        table.add_column(HEADINGS.get(name, name), justify="left" if first else "right", no_wrap=not first,
                         min_width=10 if first else None, overflow="fold" if first else "ellipsis")
    for i, row in enumerate(rows):
        if mean and i == len(results):
            table.add_section()
        table.add_row(*(escape(row[name]) for name in names), style="bold" if mean and i == len(results) else None)
    shared = [e for r in results for e in r.ledger.entries if e.shared and e.bytes]
    legend = "; ".join(LEGEND[h] for name in names if (h := HEADINGS.get(name, name)) in LEGEND)
    captions = [  # no room for a column of what is shared in a terminal
        _sizes("Kept once beside it, for all classes", [e for e in shared if e.kind == "decoder"]),
        _sizes("Held while a task is learned", [e for e in shared if e.kind != "decoder"]),
        legend,
    ]
    table.caption, table.caption_justify = escape("\n".join(filter(None, captions))), "left"
    return table


_NOT_OF_SEEDS = ("a class", "learn (s)", "memory (s)")  # no room beside deviations


def _mean_row(results: list[Result]) -> dict[str, str]:
    """Mean and deviation over runs of several seeds."""
    def of(name: str, told: bool = False) -> str:
        scores = [r.task_incremental if told else r.class_incremental for r in results]
        return mean_std([value for s in scores if (value := getattr(s, name)) is not None])

    return {"method": "mean", "A_T": of("A_T"), "A_L": of("A_L"), "Ā": of("A_mean"),
            "forgetting": of("forgetting"), "task-inc. A_T": of("A_T", told=True),
            "kept": format_bytes(statistics.fmean(r.bytes_kept for r in results))}


def _sizes(what: str, entries: list[Entry]) -> str:
    words = dict.fromkeys(f"{e.name.removesuffix(', during a task')}, {format_bytes(e.bytes)}" for e in entries)
    return f"{what}: {'; '.join(words)}" if words else ""


def ledger_table(result: Result) -> Table:
    """Every byte that is kept, by name, with its sum; what is shared by all classes stands below it."""
    table = new_table("What is kept")
    table.add_column("name")
    table.add_column("rows", justify="right")
    table.add_column("bytes", justify="right")
    own = [e for e in result.ledger.entries if not e.shared]
    shared = [e for e in result.ledger.entries if e.shared]
    # Exemplars of differing size are one row of bytes: they are counted by their lengths.
    lengths = {e.name.replace("/lengths", "/bytes"): e.rows for e in own if e.name.endswith("/lengths")}
    for e in own:
        table.add_row(escape(e.name), f"{lengths.get(e.name, e.rows):,}", f"{e.bytes:,}")
    table.add_section()
    table.add_row("sum", "", f"{sum(e.bytes for e in own):,}", style="bold")
    if shared:
        table.add_section()
        pays = result.decoder_pays_from
        for e in shared:
            if e.kind == "decoder":
                note = f" (pays from {plural(pays, 'class')})" if pays else ""
                table.add_row(escape(f"shared: {e.name}{note}"), f"{e.rows:,}", f"{e.bytes:,}")
            else:
                table.add_row(escape(e.name), f"{e.rows:,}", f"{e.bytes:,}")
    return table


def health_table(report: dict[str, Any]) -> Table:
    """A row a class and the mean of each origin, in the units of health.json (shares in percent)."""
    table = new_table("Health of the exemplars")
    table.caption, table.caption_justify = HEALTH_LEGEND, "left"
    table.add_column("class")
    for heading in ("origin", "n", "gap", "present", "fresh", "nearest", "between"):
        table.add_column(heading, justify="right")

    def cells(row: dict[str, Any]) -> list[str]:
        right = [f"{100 * row[f'{who}_right']:.0f} %" for who in ("present", "fresh")]
        between = row["between_training"]
        return [f"{row['to_prototype']:.3f}", *right, f"{row['nearest_training']:.3f}",
                NONE if between is None else f"{between:.3f}"]

    for row in report["classes"]:
        table.add_row(escape(row["name"]), row["origin"], str(row["exemplars"]), *cells(row))
    table.add_section()
    for origin, row in report["mean"].items():
        table.add_row("mean", origin, "", *cells(row), style="bold")
    return table


def matrix_table(r: Matrix) -> Table:
    """R, a row after each task; of many tasks an even choice, the first and the last among them."""
    tasks = len(r[-1])
    shown = _chosen(tasks)
    table = new_table("Accuracy on each task")
    table.add_column("after task", justify="right")
    for j in shown:
        table.add_column(str(j + 1), justify="right")
    table.add_column("mean", justify="right", style="bold")
    for row in r:
        if len(row) - 1 in shown:
            cells = [f"{row[j]:.0f}" if j < len(row) else "" for j in shown]
            table.add_row(str(len(row)), *cells, f"{statistics.fmean(row):.1f}")
    return table


def _chosen(tasks: int) -> list[int]:
    if tasks <= MOST_COLUMNS:
        return list(range(tasks))
    return sorted({round(i * (tasks - 1) / (MOST_COLUMNS - 1)) for i in range(MOST_COLUMNS)})


def config_table(result: Result, all: bool = False) -> Table:
    """Settings and options with the source of each value; plain defaults only with `all`."""
    table = new_table(None)
    for name in ("setting", "value", "source"):
        table.add_column(name)
    for name, value in {**result.settings, **result.options}.items():
        source = result.sources.get(name, "default")
        if all or source != "default":
            text = str(value).lower() if value is None or isinstance(value, bool) else str(value)
            table.add_row(flag(name), escape(text), escape(source))
    return table


def markdown_table(rows: list[dict[str, str]]) -> str:
    """A Markdown table with the keys as heading; columns of numbers stand to the right."""
    names = list(dict.fromkeys(k for row in rows for k in row))
    if not names:
        return ""
    cells = [[_cell(n) for n in names], *([_cell(row.get(n, "")) for n in names] for row in rows)]
    widths = [max(3, *(len(line[i]) for line in cells)) for i in range(len(names))]
    right = [i > 0 and all(_number(line[i]) for line in cells[1:]) for i in range(len(names))]
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    lines = [[c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
             for line in cells]
    lines.insert(1, rule)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def replace_block(text: str, name: str, block: str) -> str:
    """Put `block` between `<!-- table: NAME -->` and `<!-- end: NAME -->`, whatever stands there now."""
    marks = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    for mark in marks:
        if text.count(mark) != 1:
            raise UserError(f"the table {name!r} needs the line {mark} exactly once; it is there "
                            f"{text.count(mark)} times: put it where the table begins and ends")
    start, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
    if end < start:
        raise UserError(f"the table {name!r}: {marks[1]} stands before {marks[0]}; put it after")
    return f"{text[:start]}\n{block.strip()}\n{text[end:]}"


def new_table(title: str | None) -> Table:
    return Table(title=escape(title) if title else None, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                 pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _number(cell: str) -> bool:
    """A number, perhaps with a deviation or a unit, or nothing."""
    return bool(re.fullmatch(r"(|–|\**[-+−]?[\d,.]+\**( ± [\d,.]+)?( ?(%|s|min|h|B|KB|MB|GB))?)", cell)) \
        or cell == "all data"
