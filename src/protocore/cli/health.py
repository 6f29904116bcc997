"""`protocore health`: how good and how private the exemplars of a finished run are."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from protocore.cli.parser import whole


def add_health(commands: Any) -> None:
    health = commands.add_parser("health", help="how good and how private the exemplars of a finished run are")
    health.add_argument("run", type=Path, help="a run's folder")
    health.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    health.add_argument("--steps", type=whole(1, 10**9), default=600, help="training steps of the fresh network (600)")
    health.add_argument("--json", action="store_true", help="for programs")
    health.set_defaults(do=_health)


def _health(arguments: argparse.Namespace) -> int:
    from protocore.bench.health import health as measure
    from protocore.bench.tables import health_table

    report = measure(arguments.run, data_root=arguments.data_root, steps=arguments.steps)
    if arguments.json:
        print(json.dumps(report))
        return 0
    from protocore.cli.terminal import Terminal

    console = Terminal()
    console.print(health_table(report))
    console.print(f"A network trained on the data just now ({report['fresh_steps']} steps) gets "
                  f"{report['fresh_network_test_accuracy']:.1f} % of the test pictures right.", highlight=False)
    for name in ("health.json", "health.png"):
        console.print(f"  {arguments.run / name}", soft_wrap=True)
    return 0
