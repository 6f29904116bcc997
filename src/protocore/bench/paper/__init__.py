"""What the paper prints, as data: one file a table or figure, each row with its line in the paper's source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Figure:
    """A number of the paper, with its deviation where one is printed."""

    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class Printed:
    """A table of the paper: `rows[ROW][COLUMN]`, a column being `BENCHMARK MEASURE`."""

    label: str
    lines: tuple[int, int]
    rows: Mapping[str, Mapping[str, Figure]]
    line_of: Mapping[str, int]

    def at(self, row: str, column: str) -> Figure | None:
        return self.rows.get(row, {}).get(column)


@cache
def printed(name: str) -> Printed:
    """The table or figure of this name, as the paper prints it."""
    table = tomllib.loads((files("protocore.bench.paper") / f"{name}.toml").read_text(encoding="utf-8"))
    columns, rows = table["columns"], table.get("rows", {})
    first, last = table["lines"]

    def figures(row: Mapping[str, list[float]]) -> dict[str, Figure]:
        deviations = row.get("deviations", [None] * len(columns))
        return {column: Figure(value, deviation)
                for column, value, deviation in zip(columns, row["values"], deviations, strict=True)}

    return Printed(table["label"], (first, last), {key: figures(row) for key, row in rows.items()},
                   {key: row["line"] for key, row in rows.items()})
