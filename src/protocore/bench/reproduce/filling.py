"""From stored results to the numbers of a table: ours, the paper's, the difference, and which are missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocore.bench.cells import Cell
from protocore.bench.paper import Figure, Printed, printed
from protocore.bench.reproduce.exhibits import STREAMS, Column, Exhibit, Row
from protocore.bench.reproduce.measures import MEASURES
from protocore.bench.reproduce.scales import Need, Scale, title_of
from protocore.config import plural
from protocore.data.benchmarks import open_stream, source_named
from protocore.errors import DataError
from protocore.runs.configure import configure
from protocore.runs.result import Result

BEST, SECOND = "best", "second"


@dataclass(frozen=True)
class Value:
    """Mean and deviation over so many seeds."""

    mean: float
    deviation: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Value | None:
        if not values:
            return None
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Filled:
    """A table with what is stored; `results` by row and benchmark, one a seed."""

    exhibit: Exhibit
    scale: Scale
    seeds: tuple[int, ...]
    results: dict[tuple[str, str], list[Result]]
    left_out: tuple[str, ...] = ()  # benchmarks without data
    parts: tuple[str, ...] = ()  # of which data sets only a part is here
    paper: Printed = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "paper", printed(self.exhibit.name))

    def runs(self, row: Row, benchmark: str) -> list[Result]:
        return self.results.get((row.key, benchmark), [])

    def ours(self, row: Row, column: Column) -> Value | None:
        found = (MEASURES[column.measure].of(result) for result in self.runs(row, column.benchmark))
        return Value.of([value for value in found if value is not None])

    def theirs(self, row: Row, column: Column) -> Figure | None:
        return self.paper.at(row.key, column.key)

    def marks(self, column: Column) -> tuple[dict[str, str], dict[str, str]]:
        """Row -> best or second best, of ours and of the paper's."""
        measure = MEASURES[column.measure]
        ours = {row.key: measure.as_shown(value.mean) for row in self.exhibit.rows if (value := self.ours(row, column))}
        theirs = {row.key: figure.value for row in self.exhibit.rows if (figure := self.theirs(row, column))}
        return ranked(ours, measure.down), ranked(theirs, measure.down)

    def holes(self) -> list[str]:
        """In words: which runs are missing, and of which there are fewer seeds than were asked for."""
        lines = []
        for benchmark in self.exhibit.benchmarks:
            counts = [(named(row), len(self.runs(row, benchmark))) for row in self.exhibit.rows]
            none = [name for name, count in counts if not count]
            some = [f"{name} ({count})" for name, count in counts if 0 < count < len(self.seeds)]
            where = title_of(self.scale, benchmark)
            if none:
                whole = len(none) == len(counts)
                lines.append(f"Missing on {where}: {'every run' if whole else ', '.join(none)}"
                             f"{', as its data are not here' if benchmark in self.left_out else ''}.")
            if some:
                lines.append(f"Fewer than {plural(len(self.seeds), 'seed')} on {where}: {', '.join(some)}.")
        return lines


def named(row: Row) -> str:
    return f"{row.name} {row.size}" if row.size and row.size not in row.name else row.name


def ranked(values: dict[str, float], down: bool) -> dict[str, str]:
    """The best of two or more, the second best of three or more; equals share a place."""
    if len(values) < 2:
        return {}
    places = sorted(set(values.values()), reverse=not down)
    marks = {key: BEST for key, value in values.items() if value == places[0]}
    if len(values) > 2 and len(places) > 1:
        marks |= {key: SECOND for key, value in values.items() if value == places[1]}
    return marks


def fill(exhibit: Exhibit, scale: Scale, wanted: Iterable[Need], stored: Mapping[Cell, Result],
         left_out: Sequence[str] = ()) -> Filled:
    """The results of these runs where they belong in the table; several rows may name one run."""
    results: dict[tuple[str, str], list[Result]] = {}
    seeds: dict[int, None] = {}
    for need in wanted:
        seeds[need.seed] = None
        if result := stored.get(need.cell):
            results.setdefault((need.row.key, need.benchmark), []).append(result)
    return Filled(exhibit, scale, tuple(seeds), results, tuple(left_out), tuple(_parts(exhibit, scale, results)))


def _parts(exhibit: Exhibit, scale: Scale, results: dict[tuple[str, str], list[Result]]) -> list[str]:
    """Which benchmarks were learned in part: fewer classes than the paper's, or fewer pictures than were published."""
    lines = []
    for benchmark in exhibit.benchmarks:
        runs = [run for (_, on), found in results.items() if on == benchmark for run in found]
        if not runs or benchmark in scale.streams or "tasks" in exhibit.shared:
            continue
        stream, classes = STREAMS[benchmark], {run.classes for run in runs}
        said = []
        if classes != {stream.classes}:
            said.append(f"{' or '.join(f'{n:,}' for n in sorted(classes))} of {stream.classes:,} classes in "
                        f"{' or '.join(f'{n}' for n in sorted({run.tasks for run in runs}))} tasks")
        if pictures := _pictures(runs[0]):
            said.append(pictures)
        if said:
            lines.append(f"{stream.title}, T = {stream.tasks}: a part of it, {', '.join(said)}.")
    return lines


def _pictures(run: Result) -> str:
    """`20,000 of 100,000 training pictures`, where there were fewer than was published; as the run says, or as the data
    do that are here."""
    of, count = source_named(run.benchmark).counts[0], run.training_pictures
    if count is None:
        count = _here(run)
    return "" if count is None or count >= of else f"{count:,} of {of:,} training pictures"


def _here(run: Result) -> int | None:
    """How many pictures the run would learn now; None where its data are not here."""
    settings = {key: run.settings[key] for key in ("benchmark", "data_root", "image_size", "images_per_class")
                if run.settings.get(key) is not None}
    try:
        have = open_stream(configure(settings).settings)
    except DataError:
        return None
    return sum(map(have.task_size, range(len(have))))
