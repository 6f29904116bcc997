"""`protocore demo`: three methods on the embedded digits, at equal bytes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

BUDGET = 3700  # bytes that a memory may have
DEMO: tuple[dict[str, Any], ...] = (
    {"method": "finetune"},
    {"method": "er", "budget": BUDGET, "codec": "pixels"},
    {"method": "protocore", "budget": BUDGET, "codec": "vqgan:4"},
)


def add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="learn the embedded digits with three methods; a table and a page")
    demo.add_argument("--runs", default="runs", help="folder of run folders (default: runs)")
    demo.add_argument("--open", action="store_true", help="open the page in the browser")
    demo.set_defaults(do=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from protocore.bench import figures
    from protocore.bench.tables import summary_table
    from protocore.cli.execute import execute
    from protocore.cli.report import write_report
    from protocore.cli.terminal import Terminal
    from protocore.runs.configure import configure

    runs = Path(arguments.runs)
    done = [execute(configure({**flags, "benchmark": "digits"}), runs, again=True) for flags in DEMO]
    results = [run.result for run in done]
    console = Terminal()
    console.print(f"The digits 0 to 9 in five tasks of two. Both memories may have {BUDGET:,} bytes: er keeps "
                  "pictures as they are, protocore keeps codes of them. finetune keeps nothing.\n", highlight=False)
    console.print(summary_table(results, width=console.width))
    figures.accuracy_curves(results, runs / "demo-accuracy.png")
    console.print("Pictures:")
    for picture in [*sorted(runs.glob("demo-*.png")), *(p for run in done for p in sorted(run.folder.glob("*.png")))]:
        console.print(f"  {picture}", soft_wrap=True)
    write_report([run.folder for run in done], runs / "demo-report.html", title="ProtoCore: the demo",
                 opened=arguments.open)
    return 0
