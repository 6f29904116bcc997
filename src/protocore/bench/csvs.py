"""CSV files for people who open them in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute


def csv_of(rows: Sequence[dict[str, Any]]) -> bytes:
    """A CSV file that a spreadsheet takes for data and never for a formula."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return out.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return "" if value is None else value
