"""Small results of a grid that are kept, in a repository for example: a JSON file a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from protocore.bench.cells.cell import Cell
from protocore.bench.cells.engine import Outcome
from protocore.files import write_json
from protocore.runs.folder import differences
from protocore.runs.result import Result, read_result


def path_of(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.name}.json"


def kept(cell: Cell, folder: Path) -> Result | None:
    """The small result of this very cell; one that was made with other settings is none of it."""
    path = path_of(cell, folder)
    result = read_result(path) if path.exists() else None
    return None if result is None or differences(asdict(result), cell.config()) else result


def keep(outcome: Outcome, folder: Path) -> None:
    """Written once: a file of the same run stays as it is, one of other settings is replaced."""
    if outcome.result is not None and kept(outcome.cell, folder) is None:
        write_json(path_of(outcome.cell, folder), outcome.result.small())


def split(cells: Sequence[Cell], folder: Path) -> tuple[list[Outcome], list[Cell]]:
    """The cells whose small result is kept, and the others."""
    found, rest = [], []
    for cell in cells:
        if result := kept(cell, folder):
            found.append(Outcome(cell, "stored", result))
        else:
            rest.append(cell)
    return found, rest
