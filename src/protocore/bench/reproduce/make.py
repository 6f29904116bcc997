"""A table from its runs: which of them are stored, which are to be made, and the files in the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protocore.bench.cells import Cell, Outcome, folder_of, stored
from protocore.bench.cells.small import Shelf
from protocore.bench.reproduce import maps, pictures
from protocore.bench.reproduce.exhibits import Exhibit
from protocore.bench.reproduce.filling import Filled, fill
from protocore.bench.reproduce.scales import Need, Scale, chosen, here, needs, title_of
from protocore.bench.reproduce.sheets import curve_of, sheets_of
from protocore.bench.reproduce.writers import Document, csv_text, latex, markdown
from protocore.files import write_atomic
from protocore.runs.folder import RunFolder
from protocore.runs.result import Result

CSV = ("table", "scale", "row", "method", "exemplars", "benchmark", "measure", "ours", "deviation", "seeds", "paper",
       "paper_deviation", "difference", "command")
DIGITS = 6  # decimals in a CSV file
# How numbers are to be read: what says how many seeds there are, and what the marks mean.
MARKDOWN = "; how many in brackets", "Best in bold, second best underlined"
LATEX = "", "Best in red, second best in blue and underlined"


@dataclass(frozen=True)
class Plan:
    """`wanted`: every run of the table. `asked`: of them, those that the user wants now. `left_out`: benchmarks of the
    paper without data here."""

    exhibit: Exhibit
    scale: Scale
    runs: Path
    wanted: tuple[Need, ...]
    asked: tuple[Need, ...]
    results: Mapping[Cell, Result]
    left_out: tuple[str, ...]

    @property
    def cells(self) -> list[Cell]:
        """What is asked for, each run once."""
        return list(dict.fromkeys(need.cell for need in self.asked))

    @property
    def todo(self) -> list[Cell]:
        """Not stored, and there are data for it."""
        return list(dict.fromkeys(need.cell for need in self.asked
                                  if need.cell not in self.results and need.benchmark not in self.left_out))

    def and_now(self, made: Iterable[Outcome]) -> Plan:
        """With what has been run since."""
        return replace(self, results={**self.results} | {o.cell: o.result for o in made if o.result})

    @property
    def without_data(self) -> list[Cell]:
        return [cell for cell in self.cells if cell not in self.results and cell not in self.todo]


def plan(exhibit: Exhibit, scale: Scale, runs: Path, *, seeds: Sequence[int] | None = None, root: str | None = None,
         only: str | None = None, benchmarks: str | None = None, shelf: Shelf | None = None) -> Plan:
    """What is stored of a table, and what is missing. Seeds that are stored count, whether they are asked for or not;
    a small result on the `shelf` is as good as a run folder.

    >>> from pathlib import Path
    >>> from protocore.bench.reproduce.exhibits import EXHIBITS
    >>> from protocore.bench.reproduce.scales import SCALES
    >>> made = plan(EXHIBITS["memory-size"], SCALES["smoke"], Path("no-such-folder"))
    >>> len(made.cells), len(made.todo), made.left_out
    (8, 8, ())
    """
    usual = scale.seeds[:1] if exhibit.picture == "maps" else scale.seeds  # one run is drawn
    every = needs(exhibit, scale, sorted({*usual, *(seeds or ())}), root)
    asked = chosen([need for need in every if seeds is None or need.seed in seeds], exhibit, only, benchmarks)
    results: dict[Cell, Result] = {}
    for cell in dict.fromkeys(need.cell for need in every):
        if (result := _stored(exhibit, cell, runs, shelf)) is not None:
            results[cell] = result
    left_out = [benchmark for benchmark in exhibit.benchmarks if not here(scale, benchmark, root)]
    return Plan(exhibit, scale, runs, tuple(every), tuple(asked), results, tuple(left_out))


def _stored(exhibit: Exhibit, cell: Cell, runs: Path, shelf: Shelf | None) -> Result | None:
    """Of a map also its records, which a result does not vouch for and a small one has not."""
    if exhibit.picture == "maps":
        return stored(cell, runs) if RunFolder(folder_of(cell, runs)).records.exists() else None
    return stored(cell, runs) or (shelf.get(cell) if shelf else None)


def write(made: Plan, out: Path, words: str) -> list[Path]:
    """Markdown, CSV, LaTeX, PNG and SVG of what is stored; `words` is the command that is named in them."""
    exhibit = made.exhibit
    filled = fill(exhibit, made.scale, made.wanted, made.results, made.left_out)
    files = [out / f"{exhibit.name}.{kind}" for kind in ("md", "csv", "tex", "png", "svg")]
    picture = files[3]
    if exhibit.picture == "maps":
        way = _way(made, filled)
        maps.maps_figure(way, picture, f"{exhibit.title} (scale {made.scale.name})")
        sheets = [maps.way_sheet(way, title_of(made.scale, exhibit.benchmarks[0]))]
        table = csv_text(("kind", "class", "step", "x", "y", "to_prototype"), maps.way_rows(way) if way else [])
    else:
        draw = {"dots": pictures.dots_figure, "lines": pictures.lines_figure, "curves": pictures.curves_figure}
        draw[exhibit.picture](filled, picture)
        sheets, table = sheets_of(filled), csv_text(CSV, _csv_rows(filled))
    document = Document(exhibit.name, exhibit.title, sheets, _lines(filled, words, MARKDOWN), picture.name)
    printed = latex(replace(document, lines=_lines(filled, words, LATEX)))
    for file, text in zip(files, (markdown(document), table, printed), strict=False):
        write_atomic(file, text.encode())
    return files


def _way(made: Plan, filled: Filled) -> maps.Way | None:
    """Of the first seed that is stored."""
    for need in made.wanted:
        for result in filled.runs(need.row, need.benchmark)[:1]:
            folder = RunFolder(folder_of(need.cell, made.runs))
            if result.settings["seed"] == need.seed:
                return maps.way_of(folder.records, tuple(map(str, result.class_names)))
    return None


def _lines(filled: Filled, words: str, reading_of: tuple[str, str]) -> list[str]:
    exhibit, scale = filled.exhibit, filled.scale
    counts, marks = reading_of
    first, last = filled.paper.lines
    seeds = ", ".join(map(str, filled.seeds))
    reading = f"Mean ± standard deviation over the seeds {seeds}, those that are stored{counts}." \
        if len(filled.seeds) > 1 and exhibit.picture != "maps" else f"One run each, seed {seeds.partition(',')[0]}."
    if exhibit.picture != "maps":
        reading += f" {marks}. Δ: ours less the paper's."
    methods = {row.flags["method"] for row in exhibit.rows}
    return [f"Made by `{words}`. Scale `{scale.name}`: {scale.words}.", reading, *exhibit.notes,
            *(note for method, note in scale.notes.items() if method in methods),
            f"Paper: {filled.paper.label}, lines {first} to {last} of its source.", *filled.parts, *filled.holes()]


def _csv_rows(filled: Filled) -> list[tuple[object, ...]]:
    """A row a number, missing ones too."""
    exhibit, rows = filled.exhibit, []
    for row in exhibit.rows:
        for column in exhibit.columns:
            runs = filled.runs(row, column.benchmark)
            ours, theirs = filled.ours(row, column), filled.theirs(row, column)
            front = (exhibit.name, filled.scale.name, row.key, row.name, row.size, column.benchmark)
            command = runs[0].command if runs else ""
            if exhibit.picture == "curves":
                rows += [(*front, f"after_task_{k}", _round(value.mean), _round(value.deviation), value.seeds, "", "",
                          "", command) for k, value in curve_of(filled, row, column.benchmark).items()]
            rows.append((*front, column.measure, _round(ours and ours.mean), _round(ours and ours.deviation),
                         ours.seeds if ours else 0, theirs.value if theirs else "",
                         "" if theirs is None or theirs.deviation is None else theirs.deviation,
                         _round(ours.mean - theirs.value) if ours and theirs else "", command))
    return rows


def _round(value: float | None) -> float | str:
    return "" if value is None else round(value, DIGITS)
