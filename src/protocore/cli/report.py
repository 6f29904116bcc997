"""`protocore report`: stored runs as one page of HTML."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from protocore.config import format_bytes, plural
from protocore.errors import UserError


def add_report(commands: Any) -> None:
    report = commands.add_parser("report", help="stored runs as one page of HTML: who wins at which bytes, and why")
    add_runs(report)
    report.add_argument("--out", type=Path, default=Path("report.html"),
                        help="the file to write (default: report.html)")
    report.add_argument("--title", help="heading of the page (default: the benchmarks)")
    report.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA): originals of exemplars")
    report.add_argument("--open", action="store_true", help="open it in the browser")
    report.set_defaults(do=_report)


def add_runs(parser: Any) -> None:
    """The runs that a command compares."""
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUNS", help="run folders, folders of runs, or stored "
                        "result files (default: runs)")


def checked_page(out: Path) -> Path:
    """Where a page may be written."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: give the name of a file in it, e.g. {out / 'report.html'}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: a page is HTML; give a name that ends in .html")
    return out


def _report(arguments: argparse.Namespace) -> int:
    write_report(arguments.runs or [Path("runs")], checked_page(arguments.out), title=arguments.title,
                 data_root=arguments.data_root, opened=arguments.open)
    return 0


def write_report(paths: list[Path], out: Path, *, title: str | None = None, data_root: str | None = None,
                 opened: bool = False) -> None:
    """Write the page and say where it is."""
    from protocore.bench.compared import gather
    from protocore.bench.report import report
    from protocore.files import write_atomic

    runs, left_out = gather(paths)
    for words in left_out:
        print(f"left out: {words}", file=sys.stderr)
    page = report(runs, title=title, left_out=left_out, data_root=data_root).encode()
    write_atomic(out, page)
    print(f"Report of {plural(len(runs), 'run')}: {out} ({format_bytes(len(page))})")
    if opened and not webbrowser.open(out.resolve().as_uri()):
        print(f"no browser was found; open {out.resolve().as_uri()}", file=sys.stderr)
