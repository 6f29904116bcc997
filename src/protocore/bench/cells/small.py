"""Small results that are kept, in a repository for example: a JSON file a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from protocore.bench.cells.cell import Cell, data_of, folder_of
from protocore.bench.cells.engine import Outcome
from protocore.bench.compared import below
from protocore.files import write_json
from protocore.runs.folder import differences
from protocore.runs.result import Result, read_result

REPRODUCED = "reproduced"  # the folder of results that `protocore reproduce` puts on a shelf


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


class Shelf:
    """Small results below a folder, in whichever folder of it and of whatever name: those of grids serve a table of the
    paper. What is `put` there goes to a folder of its own, under the name of its run's folder.

    `left_out` says which files cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found, self.left_out = below(folder)
        self.results: dict[tuple[object, ...], list[Result]] = {}
        for run in found:
            self._add(run.result)

    def get(self, cell: Cell) -> Result | None:
        """The result of this very cell, of the data that are here where they are."""
        config = cell.config()
        s = config.settings
        for result in self.results.get((s.method, s.benchmark, s.seed), ()):
            if not differences(asdict(result), config) and result.data_digest in (None, data_of(config) or
                                                                                  result.data_digest):
                return result
        return None

    def put(self, cell: Cell, result: Result) -> None:
        """Written once: what is there already stays as it is."""
        if self.get(cell) is None:
            write_json(self.folder / REPRODUCED / f"{folder_of(cell, Path()).name}.json", result.small())
            self._add(result)

    def _add(self, result: Result) -> None:
        key = (result.method, result.benchmark, result.settings["seed"])
        self.results.setdefault(key, []).append(result)


def split(cells: Sequence[Cell], folder: Path) -> tuple[list[Outcome], list[Cell]]:
    """The cells whose small result is kept, and the others."""
    found, rest = [], []
    for cell in cells:
        if result := kept(cell, folder):
            found.append(Outcome(cell, "stored", result))
        else:
            rest.append(cell)
    return found, rest
