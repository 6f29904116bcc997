"""`protocore show`: what is in a learner's file, what a stored run was and what came out, or which runs there are."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from protocore.errors import UserError, shown
from protocore.learn.metrics import PEERS


def add_show(commands: Any) -> None:
    show = commands.add_parser("show", help="what is in a learner's file, what came out of a run, or which runs there "
                               "are")
    show.add_argument("run", nargs="?", default="runs", help="a learner's file; a run's folder or its result.json; or "
                      "a folder of runs, which are listed, newest first (default: runs)")
    show.add_argument("folder", nargs="?", help="with `show runs FOLDER`: the folder of runs")
    show.add_argument("--all", action="store_true", help="every setting, also those left at their default; of "
                      "a learner the whole history")
    show.add_argument("--pictures", type=Path, metavar="FILE", help="of a learner: draw the pictures of its memory")
    show.add_argument("--as", dest="as_peer", choices=PEERS, metavar="PEER", help="forgetting and transfer as others "
                      f"define them, beside ours: {', '.join(PEERS)}")
    show.add_argument("--json", action="store_true", help="for programs")
    show.set_defaults(do=_show)


def _show(arguments: argparse.Namespace) -> int:
    path = Path(arguments.run)
    if arguments.folder is not None and arguments.run != "runs":
        raise UserError(f"{shown(arguments.folder)} is one word too many: give one run, or `runs FOLDER`")
    if arguments.folder is not None or arguments.run == "runs" or _holds_runs(path):
        return _show_runs(Path(arguments.folder or path), arguments.json)
    if path.suffix.lower() == ".learner" or (path.is_file() and path.suffix.lower() != ".json"):
        from protocore.cli.show_learner import show_learner

        return show_learner(path, arguments.json, arguments.all, arguments.pictures)
    if arguments.pictures is not None:
        raise UserError(f"--pictures: {path} is no learner's file; a run has its pictures in its folder")
    return _show_run(path, arguments.json, arguments.all, arguments.as_peer)


def _holds_runs(path: Path) -> bool:
    """A folder that is no run itself, but has folders."""
    from protocore.runs.folder import RunFolder

    folder = RunFolder(path)
    files = (folder.result, folder.checkpoint, path / "config.json")
    return path.is_dir() and not any(p.exists() for p in files) and any(p.is_dir() for p in path.iterdir())


def _show_runs(root: Path, as_json: bool) -> int:
    from protocore.bench.overview import labels_of, runs_in, runs_table
    from protocore.cli.terminal import Terminal

    runs = runs_in(root)
    if as_json:
        print(json.dumps([run.to_json(label) for run, label in zip(runs, labels_of(runs), strict=True)]))
    elif runs:
        Terminal().print(runs_table(root, runs))
    else:
        print(f"{root}: no runs yet; `protocore run` makes one")
    return 0


def _show_run(path: Path, as_json: bool, everything: bool, peer: str | None) -> int:
    from protocore.cli.execute import name_files, tell_notes
    from protocore.runs.result import read_result

    result = read_result(path)
    from protocore.bench.costs import costs_table, peer_json, peer_table

    if as_json:
        print(json.dumps(result.to_json() | ({"as": peer_json(result, peer)} if peer else {})))
        return 0
    from protocore.bench.tables import config_table, ledger_table, matrix_table, summary_table
    from protocore.cli.terminal import Terminal

    console = Terminal()
    for table in (summary_table([result], width=console.width), matrix_table(result.class_incremental.R),
                  *([peer_table([result], peer)] if peer else []), ledger_table(result), costs_table(result),
                  config_table(result, all=everything)):
        console.print(table)
        console.print()
    tell_notes(console, result)
    console.print(f"Again: {result.command}", soft_wrap=True, highlight=False, markup=False)
    if path.is_dir():
        name_files(console, path)
    return 0
