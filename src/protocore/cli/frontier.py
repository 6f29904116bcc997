"""`protocore frontier`: accuracy against bytes as pictures, a CSV file, and one number a memory."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from protocore.cli.parser import a_folder
from protocore.cli.report import add_runs
from protocore.errors import UserError


def add_frontier(commands: Any) -> None:
    frontier = commands.add_parser("frontier", help="accuracy against bytes: pictures, a CSV file, one number a memory")
    add_runs(frontier)
    frontier.add_argument("--out", type=Path, default=Path("frontier"), help="folder to write to (default: frontier)")
    frontier.set_defaults(do=_frontier)


def _frontier(arguments: argparse.Namespace) -> int:
    from protocore.bench.compared import gather, protocols
    from protocore.bench.csvs import csv_of
    from protocore.bench.frontier import frontier_rows
    from protocore.bench.frontier_figure import frontier_figure
    from protocore.bench.frontier_table import frontier_table
    from protocore.cli.terminal import Terminal
    from protocore.files import write_atomic

    out = a_folder(arguments.out, "--out")
    runs, left_out = gather(arguments.runs or [Path("runs")])
    for words in left_out:
        print(f"left out: {words}", file=sys.stderr)
    parts = protocols(runs)
    drawn = [part for part in parts if part.rivals]
    if not drawn:
        raise UserError("none of these runs keeps anything, so there are no bytes to draw accuracy against; give a run "
                        "with a memory, e.g. of er")
    console, files = Terminal(), [out / "frontier.csv"]
    write_atomic(files[0], csv_of(frontier_rows(parts)))
    taken: set[str] = set()
    for part in drawn:
        console.print(frontier_table(part))
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", part.name).strip("-.")[:80] or "runs"
        while name in taken:
            name += "-"
        taken.add(name)
        for kind in ("png", "svg"):
            files.append(out / f"{name}.{kind}")
            frontier_figure(part, files[-1])
    for path in files:
        console.print(f"  {path}", soft_wrap=True, markup=False, highlight=False)
    return 0
