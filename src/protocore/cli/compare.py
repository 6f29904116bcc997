"""`protocore compare`: a grid of methods, benchmarks, sizes and seeds, planned first, then run on every core."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.parser import Parser, a_folder, number, sort_words, whole
from protocore.cli.run import GROUPS, add_flags, seeds_in, takes
from protocore.config import SIZES, Settings
from protocore.errors import UserError

if TYPE_CHECKING:
    from protocore.bench.cells import Cell, Outcome, Plan

_OWN = ("command", "do", "methods", "benchmarks", "seeds", "grid", "only", "runs", "results", "workers", "engine",
        "address", "dry_run", "no_measure", "checkpoint_seconds", "json", "quiet")


def add_compare(commands: Any, words: Sequence[str] = ()) -> None:
    compare: Parser = commands.add_parser(
        "compare", help="run a grid: several methods, benchmarks, sizes, seeds", argument_default=argparse.SUPPRESS,
        usage="protocore compare --methods A,B --benchmarks X,Y [--seeds 0..4] [--spc 1,5,20 | --budget 100KB,310KB] "
        "[FLAGS]\n       protocore compare --grid FILE.toml [FLAGS]",
        description="Plan a grid of runs and show the plan, then run it in several processes, one thread each. What is "
        "finished is never run again; the same command goes on after an interruption; a failed run is reported with "
        "its log and the others go on.",
        epilog="Every flag of `protocore run` may be added and holds for all runs; --spc, --capacity and --budget take "
        "lists. An option of one method goes to that method.")
    compare.add_argument("--methods", metavar="LIST", help="as in er,derpp,protocore")
    compare.add_argument("--benchmarks", metavar="LIST", help="as in digits,cifar100-10 (default: digits)")
    compare.add_argument("--seeds", type=seeds_in, metavar="LIST", help="as in 0,1,2 or 0..4 (default: 0)")
    compare.add_argument("--grid", type=Path, metavar="FILE", help="a grid in a TOML file; flags win over it")
    compare.add_argument("--only", metavar="PATTERN", help="of all that, the runs whose name is like this: 'er-*'")
    compare.add_argument("--runs", "--out", default="runs", metavar="FOLDER", dest="runs",
                         help="folder of run folders; grids that share it share their runs (default: runs)")
    compare.add_argument("--results", type=Path, metavar="FOLDER", help="write each result in its small form to "
                         "FOLDER/NAME.json; runs that have one there are not run")
    compare.add_argument("--workers", type=whole(0, 1024), default=0, metavar="N",
                         help="runs at a time (default: one for each core, or for each GPU)")
    compare.add_argument("--engine", default="pool", choices=("pool", "ray"),
                         help="pool: processes on this machine; ray: a Ray cluster (default: pool)")
    compare.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster: auto, HOST:PORT or ray://HOST:PORT "
                         "(default: one on this machine, for this grid)")
    compare.add_argument("--dry-run", action="store_true", default=False, help="show the plan and run nothing")
    compare.add_argument("--no-measure", action="store_true", default=False, help="do not measure how long runs take")
    compare.add_argument("--checkpoint-seconds", type=number(0, 10**9), default=30.0, metavar="FLOAT",
                         help="seconds between two checkpoints of a run (default: 30)")
    compare.add_argument("--json", action="store_true", default=False, help="print plan and results as JSON")
    compare.add_argument("--quiet", action="store_true", default=False, help="no plan and no progress")
    for group, title in {"run": "run", **GROUPS}.items():
        add_flags(compare.add_argument_group(title), Settings, group, skip=("method", "benchmark", "seed"))
    if words and words[0] == "compare":
        _add_options(compare, words[1:])
    compare.set_defaults(do=_compare)


def _add_options(compare: Parser, words: Sequence[str]) -> None:
    """Flags of methods' own options, those that are used; no method is loaded where none is."""
    unknown = set(sort_words(words, compare.takes()).unknown)
    if not unknown:
        return
    from protocore.methods import METHODS

    group = compare.add_argument_group("options of methods")
    for method in METHODS.values():
        there = compare.takes()
        fields = [f.name for f in dataclasses.fields(method.Options)]
        wanted = {name for name in fields if {*takes(method, name)} & unknown and not {*takes(method, name)} & {*there}}
        add_flags(group, method.Options, "method", skip=[name for name in fields if name not in wanted])


def _compare(arguments: argparse.Namespace) -> int:
    from protocore.bench.cells import check_engine, estimate, run_cells
    from protocore.bench.cells.show import Progress, grid_table, plan_table, plan_words, reasons
    from protocore.bench.cells.small import keep, split
    from protocore.cli.terminal import Terminal

    flags = {k: v for k, v in vars(arguments).items() if k not in _OWN and v is not None}
    threads = int(flags["threads"]) if str(flags.get("threads", "")).isdecimal() else 1
    address = getattr(arguments, "address", None)
    check_engine(arguments.engine, address)
    runs, folder = a_folder(Path(arguments.runs), "--runs"), getattr(arguments, "results", None)
    cells = _cells(arguments, flags)
    for cell in cells:  # a mistake should not wait for its turn
        cell.config()
    kept, rest = split(cells, a_folder(folder, "--results")) if folder else ([], cells)
    plan = estimate(rest, runs, arguments.workers, threads=threads, measure=not arguments.no_measure)
    console, said = Terminal(), Terminal(stderr=True)
    if not (arguments.quiet or arguments.json):
        if rest:
            console.print(plan_table(plan))
        if kept:
            console.print(f"{len(kept)} more are kept in {folder}.", highlight=False, markup=False)
        for line in (*reasons(plan), plan_words(plan)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if arguments.dry_run:
        if arguments.json:
            print(json.dumps({"plan": _plan(plan)}))
        return 0

    class Keeping(Progress):
        """Writes small results as they come: what is done is not lost with the rest."""

        def ends(self, outcome: Outcome) -> None:
            if folder:
                keep(outcome, folder)
            super().ends(outcome)

        def _say(self, text: str) -> None:
            if not arguments.quiet:
                super()._say(text)

    with Keeping(rest, plan, said) as progress:
        outcomes = run_cells(rest, runs, workers=arguments.workers, engine=arguments.engine, threads=threads,
                             listener=progress, every=arguments.checkpoint_seconds, address=address)
    outcomes = kept + outcomes
    if arguments.json:
        print(json.dumps({"plan": _plan(plan), "runs": [_told(outcome, runs) for outcome in outcomes]}))
    else:
        if any(outcome.result for outcome in outcomes):
            console.print(grid_table(outcomes))
        console.print(f"Runs: {runs}", soft_wrap=True, highlight=False, markup=False)
    return _end(outcomes, said)


def _end(outcomes: Sequence[Outcome], said: Any) -> int:
    """The failed ones once more, where they can be seen; and the exit code."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    for outcome in failed:
        said.print(f"protocore: {outcome.cell.name} failed: {outcome.error}; its log: {outcome.log}", soft_wrap=True,
                   highlight=False, markup=False)
    if stopped := sum(outcome.state == "stopped" for outcome in outcomes):
        said.print(f"protocore: stopped with {stopped} of {len(outcomes)} runs to do; the same command goes on from "
                   "there", soft_wrap=True, highlight=False, markup=False)
        return 130
    return 1 if failed else 0


def _cells(arguments: argparse.Namespace, flags: dict[str, Any]) -> list[Cell]:
    from protocore.bench.cells import cells_of
    from protocore.bench.cells.grid_file import read_grid

    methods, benchmarks, seeds, grid = (getattr(arguments, name, None)
                                        for name in ("methods", "benchmarks", "seeds", "grid"))
    if grid is not None:
        if methods or benchmarks:
            raise UserError("--grid has its own methods and benchmarks: leave out --methods and --benchmarks, or "
                            "choose among its runs with --only")
        cells = read_grid(grid, seeds=seeds, more=flags)
    else:
        if not methods:
            raise UserError("which methods? give --methods A,B or --grid FILE (`protocore list methods` names them)")
        given = [name for name in SIZES if name in flags]
        if len(given) > 1:
            raise UserError(f"--{given[0]} and --{given[1]} both say how much is kept; give one of them")
        sizes = [{name: value} for name in given for value in _list(str(flags.pop(name)), f"--{name}")] or [{}]
        cells = cells_of(_list(methods, "--methods"), _list(benchmarks or "digits", "--benchmarks"),
                         seeds=seeds or [0], sizes=sizes, fixed=flags)
    only = getattr(arguments, "only", None)
    chosen = [cell for cell in cells if only is None or fnmatchcase(cell.label, only) or fnmatchcase(cell.name, only)]
    if not chosen:
        raise UserError(f"--only {only!r} is like the name of no run; there are "
                        f"{', '.join(dict.fromkeys(cell.label for cell in cells[:20]))}")
    return chosen


def _list(text: str, name: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UserError(f"{name} {text!r} has an empty place; write for example {name} A,B")
    return list(dict.fromkeys(words))


def _plan(plan: Plan) -> Mapping[str, Any]:
    return {"runs": plan.runs, "stored": plan.stored, "todo": plan.todo, "unknown": plan.unknown,
            "workers": plan.workers, "seconds": round(plan.seconds, 1), "memory": plan.memory, "kept": plan.kept,
            "kinds": [dataclasses.asdict(kind) for kind in plan.kinds]}


def _told(outcome: Outcome, runs: Path) -> Mapping[str, Any]:
    from protocore.bench.cells import folder_of

    r = outcome.result
    return {"name": outcome.cell.name, "state": outcome.state, "folder": str(folder_of(outcome.cell, runs)),
            "log": str(outcome.log) if outcome.log else None, "error": outcome.error or None,
            "seconds": round(outcome.seconds, 1), "A_T": r.class_incremental.A_T if r else None,
            "bytes_kept": r.bytes_kept if r else None}
