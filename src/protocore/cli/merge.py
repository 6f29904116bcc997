"""`protocore merge`: the learners of two devices as one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from protocore.cli.working import LISTED, safe


def add_merge(commands: Any) -> None:
    merge = commands.add_parser(
        "merge", help="make one learner of two with the same frozen network",
        description="A new file with the classes of two learners, as two devices have learned them. Both must have the "
        "same frozen network, method and settings, the budget apart, which is the first one's; classes are matched by "
        "name, and both files stay as they are.")
    for name in ("first", "second"):
        merge.add_argument(name, type=Path, metavar=name.upper(), help="a learner's file")
    merge.add_argument("--out", type=Path, required=True, metavar="LEARNER", help="the file to write")
    merge.add_argument("--json", action="store_true", help="for programs")
    merge.set_defaults(do=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    from protocore.config import format_bytes, plural
    from protocore.field.merging import merge

    merged = merge(arguments.first, arguments.second, arguments.out)
    if arguments.json:
        print(json.dumps(merged.to_json()))
        return 0
    budget = f" of {format_bytes(merged.budget)}" if merged.budget else ""
    print(f"{merged.path}: {plural(len(merged.classes), 'class')}, {format_bytes(merged.kept)}{budget} kept")
    if merged.cut:
        left, had = merged.cut
        print(f"Note: of {had:,} numbers of a feature vector {left:,} are kept: the fewer of both files, or what the "
              "budget of the first has room for; `protocore test` tells what that costs")
    if merged.twice:
        named = ", ".join(f"{safe(name)} ({count})" for name, count in [*merged.twice.items()][:LISTED])
        print(f"Note: both had learned {plural(sum(merged.twice.values()), 'picture')}, which count double now: {named}"
              + (", …" if len(merged.twice) > LISTED else ""))
    return 0
