"""What is said about tables before their runs are made."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from rich.table import Table

from protocore.bench.cells import Plan as Estimate
from protocore.bench.cells import show
from protocore.bench.reproduce.exhibits import STREAMS
from protocore.bench.reproduce.make import Plan
from protocore.bench.reproduce.scales import Scale
from protocore.bench.tables import NONE, new_table
from protocore.config import format_bytes, plural
from protocore.data.benchmarks import BENCHMARKS

MOST_REASONS = 4  # why times are not known


def time_words(time: Estimate, scale: Scale, usual: Mapping[str, float]) -> str:
    """How long what is missing takes; what nobody has measured is guessed by what is `usual` on its benchmark, or said.
    """
    if not time.todo:
        return NONE
    if scale.quick:
        return "a minute at most"
    if not time.unknown:
        return show.duration(time.seconds)
    if (guess := time.guess(usual)) is not None:
        return f"{show.duration(guess)}, {time.unknown} of {time.todo} guessed"
    known = time.todo - time.unknown
    return f"{show.duration(time.seconds)} + {time.unknown} not measured" if known else "not measured"


def usual_seconds(plans: Iterable[Plan], times: Iterable[Estimate]) -> dict[str, float]:
    """What a run takes on each benchmark: the mean over the kinds of runs of which that is known."""
    known: dict[tuple[str, str], float] = {}
    for made in plans:
        known |= {(cell.config().settings.benchmark, cell.label): result.wall_seconds
                  for cell, result in made.results.items() if result.wall_seconds}
    for time in times:
        known |= {(kind.benchmark, kind.name): kind.cost.seconds for kind in time.kinds if kind.cost}
    found: dict[str, list[float]] = {}
    for (benchmark, _), seconds in known.items():
        found.setdefault(benchmark, []).append(seconds)
    return {benchmark: statistics.fmean(seconds) for benchmark, seconds in found.items()}


def list_table(scale: Scale, plans: Mapping[str, Plan], times: Mapping[str, Estimate]) -> Table:
    table = new_table(f"Tables and figures of the paper, scale {scale.name}")
    for name in ("name", "runs", "stored", "to run", "no data", "time"):
        table.add_column(name, justify="left" if name in ("name", "time") else "right", no_wrap=name != "time")
    usual = usual_seconds(plans.values(), times.values())
    for name, made in plans.items():
        known = sum(cell in made.results for cell in made.cells)
        table.add_row(name, str(len(made.cells)), str(known), str(len(made.todo)), str(len(made.without_data)),
                      time_words(times[name], scale, usual))
    workers = max((time.workers for time in times.values() if time.todo), default=0)
    shared = f" Tables share runs, so that the times, with {workers} at a time, do not add up." if workers else ""
    unknown = any(time.unknown for time in times.values()) and not scale.quick
    more = " A guess is the mean of other runs on the benchmark." if unknown else ""
    words = f"{scale.words[0].upper()}{scale.words[1:]}.{shared}{more}"
    table.caption, table.caption_justify = (
        f"{words} `protocore reproduce NAME --scale {scale.name}` makes one.", "left")
    return table


def plan_words(made: Plan, time: Estimate) -> list[str]:
    """How many runs there are and are stored; what those cost that are to be made."""
    known = sum(cell in made.results for cell in made.cells)
    lines = [f"{made.exhibit.name}, scale {made.scale.name}: {plural(len(made.cells), 'run')}, {known} of them stored, "
             f"{len(made.todo)} to run."]
    if made.todo and not made.scale.quick:
        lines.append(f"To run: {show.plan_words(time)}" + (
            f" The largest memory of a run has {format_bytes(time.kept)}." if time.kept else ""))
        lines += show.reasons(time)[:MOST_REASONS]
    return lines


def left_out_words(plans: Iterable[Plan]) -> list[str]:
    """Which data sets are not here, and how they are had."""
    missing = dict.fromkeys(benchmark for made in plans for benchmark in made.left_out)
    lines = []
    for benchmark in missing:
        source = BENCHMARKS[benchmark].source
        how = f"; `protocore data get {source.name}` downloads it" if source and source.url else ""
        stream = STREAMS[benchmark]
        lines.append(f"{stream.title}, T = {stream.tasks}: left out, its data are not here{how}.")
    return lines
