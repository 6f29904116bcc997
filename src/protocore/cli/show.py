"""The `protocore list`, `show` and `health` commands."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from protocore.cli.run import name_files, tell_notes
from protocore.errors import UserError


def list_(arguments: argparse.Namespace) -> int:
    from protocore.backbones import BACKBONES
    from protocore.codecs import CODECS
    from protocore.data.benchmarks import BENCHMARKS
    from protocore.methods import METHODS

    tables: dict[str, dict[str, str]] = {
        "methods": {name: f"{' '.join((m.__doc__ or '').split())} ({m.paper})" for name, m in METHODS.items()},
        "benchmarks": {name: b.summary for name, b in BENCHMARKS.items()}
        | {"folder:PATH": "your own pictures, one folder a class; tasks of --classes-per-task"},
        "backbones": {name: b.description for name, b in BACKBONES.items()},
        "codecs": {name: line for name, (_, line) in CODECS.items()},
    }
    chosen = {k: v for k, v in tables.items() if arguments.what in (None, k)}
    details = {name: {"paper": m.paper, "keeps": m.keeps, "bytes_a_class_on_cifar100": m.class_bytes,
                      "fits": list(m.fits), "checks": m.checks} for name, m in METHODS.items()}
    if arguments.json:
        print(json.dumps(chosen | ({"method_details": details} if "methods" in chosen else {})))
        return 0
    from rich.console import Console
    from rich.table import Table

    if arguments.what == "methods":
        table = Table(title="methods (bytes a class: CIFAR-100, its default number of exemplars a class as pixels, "
                      "which is 20, and 1 for protocore)", title_justify="left", box=None, pad_edge=False)
        for heading in ("name", "paper", "keeps", "bytes a class", "fits", "checks"):
            table.add_column(heading, justify="right" if heading.startswith("bytes") else "left",
                             no_wrap=heading in ("name", "fits"), overflow="fold")
        for name, m in METHODS.items():
            size = "all data" if m.class_bytes is None else f"{m.class_bytes:,}"
            table.add_row(f"[bold]{name}[/]", m.paper, m.keeps, size, "\n".join(m.fits), m.checks)
            table.add_section()
        Console().print(table)
        return 0
    for title, rows in chosen.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, line in rows.items():
            table.add_row(name, line)
        Console().print(table)
    return 0


def show(arguments: argparse.Namespace) -> int:
    from protocore.runs.results import read_result

    result = read_result(Path(arguments.run))
    if arguments.json:
        print(json.dumps(result))
        return 0
    from rich.console import Console

    from protocore.bench.tables import config_table, ledger_table, matrix_table, summary_table

    console = Console()
    console.print(summary_table([result]))
    console.print(matrix_table(result["class_incremental"]["R"]))
    console.print(ledger_table(result))
    console.print(config_table(result, all=arguments.all))
    tell_notes(console, result)
    console.print(f"Again: {result['command']}", soft_wrap=True, highlight=False)
    if Path(arguments.run).is_dir():
        name_files(console, Path(arguments.run))
    return 0


def health(arguments: argparse.Namespace) -> int:
    from protocore.bench.health import health as measure
    from protocore.bench.tables import health_table

    if arguments.steps < 1:
        raise UserError(f"--steps {arguments.steps} must be at least 1")
    report = measure(arguments.run, data_root=arguments.data_root, steps=arguments.steps)
    if arguments.json:
        print(json.dumps(report))
        return 0
    from rich.console import Console

    console = Console()
    console.print(health_table(report))
    console.print(f"A network trained on the data just now ({report['fresh_steps']} steps) gets "
                  f"{report['fresh_network_test_accuracy']:.1f} % of the test pictures right.", highlight=False)
    for name in ("health.json", "health.png"):
        console.print(f"  {arguments.run / name}", soft_wrap=True)
    return 0
