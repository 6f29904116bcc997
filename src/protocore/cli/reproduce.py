"""`protocore reproduce`: each table and figure of the paper by one command."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.bench.reproduce.exhibits import EXHIBITS
from protocore.cli.parser import a_folder, whole
from protocore.cli.run import seeds_in
from protocore.config import flag
from protocore.errors import UserError

if TYPE_CHECKING:
    from protocore.bench.cells import Cell, Outcome
    from protocore.bench.cells import Plan as Estimate
    from protocore.bench.cells.small import Shelf
    from protocore.bench.reproduce.make import Plan

MEASURE = 60.0  # seconds that the list of tables takes at most to measure what runs will take


def add_reproduce(commands: Any) -> None:
    command = commands.add_parser(
        "reproduce", help="make a table or figure of the paper again, beside the paper's own numbers",
        description="Run what a table or figure of the paper needs and is not stored yet, and write it: Markdown, CSV, "
        "LaTeX, PNG and SVG, ours beside the paper's. Without NAME: which there are, what is stored, what is missing, "
        "and how long the rest takes here.",
        epilog="A run is stored in a folder named after its settings: tables that share runs share their results, and "
        "the same command again goes on where it was stopped.")
    command.add_argument("name", nargs="?", metavar="NAME", choices=tuple(EXHIBITS),
                         help=f"one of {', '.join(EXHIBITS)}")
    command.add_argument("--scale", default="fast", choices=("paper", "fast", "smoke"),
                         help="paper: the printed protocol, for GPUs; fast: what cores finish overnight; smoke: a "
                         "minute on embedded data (default: fast)")
    command.add_argument("--seeds", type=seeds_in, metavar="LIST", help="seeds to run, as in 0,1,2 or 0..2 (default: "
                         "0..2, smoke: 0); others that are stored are in the table all the same")
    command.add_argument("--only", metavar="ROWS", help="run these rows of the table only, as in er,protocore-*")
    command.add_argument("--benchmarks", metavar="LIST", help="run these benchmarks of it only, as in cifar100-*")
    command.add_argument("--workers", type=whole(0, 1024), default=0, metavar="N",
                         help="processes at a time, one thread each (default: one a core or GPU)")
    command.add_argument("--engine", default="pool", choices=("pool", "ray"),
                         help="where they run: processes of this machine, or a Ray cluster (default: pool)")
    command.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster, as in ray://head:10001")
    command.add_argument("--dry-run", action="store_true", help="say what would be run and how long it takes")
    command.add_argument("--stored", action="store_true", help="run nothing, write the table of what is stored")
    command.add_argument("--runs", default="runs", metavar="FOLDER", help="folder of run folders (default: runs)")
    command.add_argument("--out", metavar="FOLDER", help="where the table goes (default: reproduced/SCALE in --runs)")
    command.add_argument("--results", type=Path, metavar="FOLDER", help="small results below FOLDER count as stored, "
                         "those of `protocore compare --results` too; new ones go to FOLDER/reproduced")
    command.add_argument("--data-root", metavar="FOLDER", help="folder of the data sets (else PROTOCORE_DATA)")
    command.set_defaults(do=_reproduce)


def _reproduce(arguments: argparse.Namespace) -> int:
    return _list(arguments) if arguments.name is None else _make(arguments)


def _shelf(arguments: argparse.Namespace) -> Shelf | None:
    from protocore.bench.cells.small import Shelf

    folder = arguments.results
    if folder and arguments.stored and not folder.exists():
        raise UserError(f"--results {folder}: there is no such folder, and --stored runs nothing that could go there")
    shelf = Shelf(a_folder(folder, "--results")) if folder else None
    for words in shelf.left_out if shelf else ():
        print(f"protocore: left out: {words}", file=sys.stderr)
    return shelf


def _plan(arguments: argparse.Namespace, name: str, shelf: Shelf | None) -> Plan:
    from protocore.bench.reproduce.make import plan
    from protocore.bench.reproduce.scales import SCALES

    chosen = {"only": arguments.only, "benchmarks": arguments.benchmarks} if arguments.name else {}
    return plan(EXHIBITS[name], SCALES[arguments.scale], Path(arguments.runs), seeds=arguments.seeds,
                root=arguments.data_root, shelf=shelf, **chosen)


def _list(arguments: argparse.Namespace) -> int:
    for name in ("only", "benchmarks", "out", "dry_run", "stored"):
        if getattr(arguments, name):
            raise UserError(f"{flag(name)} is about one table or figure: name it, as in `protocore reproduce main`")
    from protocore.bench.cells import estimate, show
    from protocore.bench.reproduce.scales import SCALES
    from protocore.bench.reproduce.words import MOST_REASONS, left_out_words, list_table
    from protocore.cli.terminal import Terminal

    shelf = _shelf(arguments)
    plans = {name: _plan(arguments, name, shelf) for name in EXHIBITS}
    scale, runs = SCALES[arguments.scale], Path(arguments.runs)
    # From the end of each table, as its last rows are quick to measure.
    todo = by_turns(dict.fromkeys(cell for made in plans.values() for cell in reversed(made.todo)))
    known = {cell: result for made in plans.values() for cell, result in made.results.items()}
    reasons: list[str] = []
    if todo and not scale.quick:
        print("Measuring what runs take on this machine, for a minute at most...", file=sys.stderr)
        reasons = show.reasons(estimate(todo, runs, arguments.workers, limit_of_all=MEASURE, like=known))
    times = {name: estimate(made.todo, runs, arguments.workers, measure=False, like=known)
             for name, made in plans.items()}
    console = Terminal()
    console.print(list_table(scale, plans, times))
    for line in [*left_out_words(plans.values()), *reasons[:MOST_REASONS]]:
        console.print(line, highlight=False, markup=False)
    return 0


def by_turns(cells: Iterable[Cell]) -> list[Cell]:
    """One of each benchmark, then the next of each: where time ends, something is known of all of them."""
    turns: dict[str, list[Cell]] = {}
    for cell in cells:
        turns.setdefault(str(cell.flags["benchmark"]), []).append(cell)
    return [cell for turn in itertools.zip_longest(*turns.values()) for cell in turn if cell is not None]


def _make(arguments: argparse.Namespace) -> int:
    from protocore.bench.cells import check_engine, estimate
    from protocore.bench.reproduce.make import write
    from protocore.bench.reproduce.words import left_out_words, plan_words
    from protocore.cli.terminal import Terminal

    check_engine(arguments.engine, arguments.address)
    runs = a_folder(Path(arguments.runs), "--runs")
    out = a_folder(Path(arguments.out), "--out") if arguments.out else runs / "reproduced" / arguments.scale
    console = Terminal()
    shelf = _shelf(arguments)
    made = _plan(arguments, arguments.name, shelf)
    failed: list[Outcome] = []
    if not arguments.stored:
        time = estimate(made.todo, made.runs, arguments.workers, measure=not made.scale.quick, like=made.results)
        for line in [*plan_words(made, time), *left_out_words([made])]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if arguments.dry_run:
            return 0
        if shelf and made.exhibit.picture != "maps":
            for cell, result in made.results.items():
                shelf.put(cell, result)
        outcomes = _run(made, time, arguments, shelf)
        failed = [outcome for outcome in outcomes if outcome.state == "failed"]
        made = made.and_now(outcomes)
    files = write(made, out, f"protocore reproduce {arguments.name} --scale {arguments.scale}")
    console.print(files[0].read_text(encoding="utf-8"), highlight=False, markup=False, soft_wrap=True)
    for file in files:
        console.print(f"  {file}", highlight=False, markup=False, soft_wrap=True)
    for outcome in failed:
        log = f" (log: {outcome.log})" if outcome.log else ""
        print(f"protocore: {outcome.cell.name} failed: {outcome.error}{log}", file=sys.stderr)
    return 1 if failed else 0


def _run(made: Plan, time: Estimate, arguments: argparse.Namespace, shelf: Shelf | None) -> list[Outcome]:
    """What is to be run; stopped by Ctrl-C, the same command goes on."""
    from protocore.bench.cells import run_cells
    from protocore.bench.cells.show import Progress
    from protocore.cli.terminal import Terminal

    class Keeping(Progress):
        """Puts small results on the shelf as they come: what is done is not lost with the rest."""

        def ends(self, outcome: Outcome) -> None:
            if shelf and outcome.result and made.exhibit.picture != "maps":
                shelf.put(outcome.cell, outcome.result)
            super().ends(outcome)

    if not made.todo:
        return []
    with Keeping(made.todo, time, Terminal(stderr=True)) as progress:
        outcomes = run_cells(made.todo, made.runs, workers=arguments.workers, engine=arguments.engine,
                             address=arguments.address, listener=progress)
    if any(outcome.state == "stopped" for outcome in outcomes):
        print(f"protocore: stopped; what is done is in {made.runs}, and the same command goes on", file=sys.stderr)
        raise SystemExit(130)
    return outcomes
