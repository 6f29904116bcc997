"""A table that any writer can write: headings, and rows of words and numbers. Nothing here knows Markdown or LaTeX."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from protocore.bench.reproduce.exhibits import Column, Row
from protocore.bench.reproduce.filling import Filled, Value
from protocore.bench.reproduce.measures import MEASURES, seen_so_far, shape
from protocore.bench.reproduce.scales import title_of

MOST_TASKS = 8  # of a curve that stand in a table


@dataclass(frozen=True)
class Number:
    """`digits` None: three that count. `signed`: a difference. `seeds` are told where they are known."""

    value: float
    deviation: float | None = None
    seeds: int = 0
    digits: int | None = 1
    mark: str = ""
    signed: bool = False

    def text(self, minus: str = "−") -> str:
        """The value alone."""
        text = f"{self.value:{'+' if self.signed else ''}{shape(self.value, self.digits)}}"
        return text.replace("-", minus)

    def spread(self) -> str:
        return "" if self.deviation is None else f"{self.deviation:{shape(self.deviation, self.digits)}}"


Cell = str | Number | None  # None: missing


@dataclass(frozen=True)
class Heading:
    """`group` stands above several headings of one measure."""

    name: str
    tex: str
    group: str = ""


@dataclass(frozen=True)
class Sheet:
    """One table. A rule stands before the rows in `rules`."""

    key: str
    title: str
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    rules: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows)


def sheets_of(filled: Filled) -> list[Sheet]:
    """A sheet a benchmark: of each measure ours, the paper's and the difference."""
    if filled.exhibit.picture == "curves":
        return [_curve_sheet(filled, benchmark) for benchmark in filled.exhibit.benchmarks]
    return [_sheet(filled, benchmark) for benchmark in filled.exhibit.benchmarks]


def _names(filled: Filled) -> tuple[list[Heading], list[list[Cell]], frozenset[int]]:
    """What stands left of the numbers: group, method, size, as far as the table has them."""
    rows = filled.exhibit.rows
    parts = [("type", [row.group for row in rows]), ("method", [row.name for row in rows]),
             ("exemplars a class", [row.size for row in rows])]
    parts = [(name, texts) for name, texts in parts if any(texts)]
    rules = {i for i in range(1, len(rows)) if rows[i].group != rows[i - 1].group}
    cells: list[list[Cell]] = [
        [texts[i] if name != "type" or i == 0 or i in rules else "" for name, texts in parts] for i in range(len(rows))]
    return [Heading(name, name) for name, _ in parts], cells, frozenset(rules)


def three(filled: Filled, row: Row, column: Column, marks: tuple[dict[str, str], dict[str, str]]) -> tuple[Cell, ...]:
    """Ours, the paper's, and how much more ours is."""
    digits = MEASURES[column.measure].digits
    ours, theirs = filled.ours(row, column), filled.theirs(row, column)
    exact = None if digits is None else 2  # as the paper prints them
    return (_ours(ours, digits, marks[0].get(row.key, "")),
            Number(theirs.value, theirs.deviation, digits=exact, mark=marks[1].get(row.key, "")) if theirs else None,
            Number(ours.mean - theirs.value, digits=digits, signed=True) if ours and theirs else None)


def _ours(value: Value | None, digits: int | None, mark: str = "") -> Number | None:
    return Number(value.mean, value.deviation, value.seeds, digits, mark) if value else None


def _sheet(filled: Filled, benchmark: str) -> Sheet:
    columns = [column for column in filled.exhibit.columns if column.benchmark == benchmark]
    headings, cells, rules = _names(filled)
    for column in columns:
        measure, marks = MEASURES[column.measure], filled.marks(column)
        headings += [Heading(name, short, measure.tex) for name, short in (
            (measure.name, "ours"), (f"{measure.name}, paper", "paper"), (f"{measure.name}, Δ", r"$\Delta$"))]
        for row, line in zip(filled.exhibit.rows, cells, strict=True):
            line += three(filled, row, column, marks)
    return Sheet(benchmark, title_of(filled.scale, benchmark), tuple(headings), tuple(map(tuple, cells)), rules)


def _curve_sheet(filled: Filled, benchmark: str) -> Sheet:
    """Accuracy after some of the tasks, the first and the last among them; then the paper's last."""
    tasks = max((result.tasks for row in filled.exhibit.rows for result in filled.runs(row, benchmark)), default=0)
    shown = sorted({round(1 + i * (tasks - 1) / (MOST_TASKS - 1)) for i in range(MOST_TASKS)}) if tasks else []
    headings, cells, rules = _names(filled)
    headings += [*(Heading(f"after {k}", str(k), "after task") for k in shown),
                 Heading("paper's last", "paper's last"), Heading("Δ", r"$\Delta$")]
    column = next(c for c in filled.exhibit.columns if c.benchmark == benchmark)
    marks = filled.marks(column)
    for row, line in zip(filled.exhibit.rows, cells, strict=True):
        curve = curve_of(filled, row, benchmark)
        # The last one carries deviation and mark, and is A_T.
        line += [_ours(Value(curve[k].mean, None, 0), 1) if k in curve and k != shown[-1] else None for k in shown[:-1]]
        ours, theirs, difference = three(filled, row, column, marks)
        line += [*([ours] if shown else []), theirs, difference]
    return Sheet(benchmark, title_of(filled.scale, benchmark), tuple(headings), tuple(map(tuple, cells)), rules)


def curve_of(filled: Filled, row: Row, benchmark: str) -> dict[int, Value]:
    """Mean accuracy of the tasks seen so far after each task, counted from 1."""
    curves = [seen_so_far(result) for result in filled.runs(row, benchmark)]
    longest = max(map(len, curves), default=0)
    return {k + 1: Value(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))
            for k in range(longest) if (values := [curve[k] for curve in curves if k < len(curve)])}
