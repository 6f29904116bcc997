"""`protocore list`: methods, benchmarks, backbones and codecs, a few words each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from protocore.methods import Method

KINDS = ("methods", "benchmarks", "backbones", "codecs")
_METHODS_LEGEND = ("\na class: bytes kept for each class of CIFAR-100 with the default number of exemplars (20, and 1 "
                   "for protocore) as pixels")


def add_list(commands: Any) -> None:
    listing = commands.add_parser("list", help="methods, benchmarks, backbones and codecs, a few words each")
    listing.add_argument("what", nargs="?", choices=KINDS)
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(do=_list)


def _list(arguments: argparse.Namespace) -> int:
    from protocore.backbones import BACKBONES, SOURCES
    from protocore.codecs import CODECS
    from protocore.data.benchmarks import BENCHMARKS
    from protocore.methods import METHODS, bytes_a_class

    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{' '.join((m.__doc__ or '').split())} ({m.paper})" for name, m in METHODS.items()},
        "benchmarks": {name: b.summary for name, b in BENCHMARKS.items()}
        | {"folder:PATH": "your own pictures, one folder a class; tasks of --classes-per-task"},
        "backbones": {name: b.description for name, b in BACKBONES.items()}
        | {f"{kind}:{what}": description for kind, (what, description) in SOURCES.items()},
        "codecs": {name: info.description for name, info in CODECS.items()},
    }
    chosen = {kind: lines for kind, lines in tables.items() if arguments.what in (None, kind)}
    if arguments.json:
        details = {name: {"paper": m.paper, "keeps": m.keeps, "bytes_a_class_on_cifar100": bytes_a_class(m),
                          "fits": list(m.fits), "checks": m.checks} for name, m in METHODS.items()}
        print(json.dumps(chosen | ({"method_details": details} if "methods" in chosen else {})))
        return 0
    from protocore.cli.terminal import Terminal

    console = Terminal()
    if arguments.what == "methods":
        console.print(_methods(METHODS))
        console.print(_METHODS_LEGEND, highlight=False)
        return 0
    for title, rows in chosen.items():
        _print(console, title, rows)
    return 0


def _methods(methods: Mapping[str, type[Method]]) -> Table:
    """A block of a few whole lines a method: columns for all of it would break every word in a terminal."""
    from rich.table import Table
    from rich.text import Text

    from protocore.methods import bytes_a_class

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("a class", justify="right", no_wrap=True)
    table.add_column("paper, what is kept, streams, checks")
    for name, m in methods.items():
        kept = bytes_a_class(m)
        size = "all data" if kept is None else f"{kept:,}"
        more = f"\nkeeps {m.keeps}; fits {', '.join(m.fits)}\nchecks: {m.checks}"
        table.add_row(Text(name), size, Text.assemble(m.paper, (more, "dim")))
    return table


def _print(console: Console, title: str, rows: Mapping[str, str]) -> None:
    """A heading, the names in bold, what is said about each beside it."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(title, style="bold underline"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in rows.items():
        table.add_row(Text(name), Text(text))
    console.print(table)
    console.print()
