"""`protocore show`: what a stored run was and what came out, or which runs there are."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_show(commands: Any) -> None:
    show = commands.add_parser("show", help="what a stored run was and what came out, or which runs there are")
    show.add_argument("run", nargs="?", default="runs", help="a run's folder or its result.json; or a folder of runs, "
                      "which are listed, newest first (default: runs)")
    show.add_argument("folder", nargs="?", help="with `show runs FOLDER`: the folder of runs")
    show.add_argument("--all", action="store_true", help="every setting, also those left at their default")
    show.add_argument("--json", action="store_true", help="for programs")
    show.set_defaults(do=_show)


def _show(arguments: argparse.Namespace) -> int:
    from protocore.cli.execute import name_files, tell_notes
    from protocore.runs.result import read_result

    result = read_result(Path(arguments.run))
    if arguments.json:
        print(json.dumps(result.to_json()))
        return 0
    from protocore.bench.tables import config_table, ledger_table, matrix_table, summary_table
    from protocore.cli.terminal import Terminal

    console = Terminal()
    console.print(summary_table([result], width=console.width))
    console.print(matrix_table(result.class_incremental.R))
    console.print(ledger_table(result))
    console.print(config_table(result, all=arguments.all))
    tell_notes(console, result)
    console.print(f"Again: {result.command}", soft_wrap=True, highlight=False, markup=False)
    if Path(arguments.run).is_dir():
        name_files(console, Path(arguments.run))
    return 0
