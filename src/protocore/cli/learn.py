"""`protocore learn`: pictures into a learner's file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.parser import number
from protocore.cli.stop import Stop
from protocore.cli.working import Bar, add_file, add_quiet, safe, tell_skipped

if TYPE_CHECKING:
    from protocore.field.learning import Learned


def add_learn(commands: Any) -> None:
    learn = commands.add_parser(
        "learn", help="teach a learner new classes, or more of those that it knows",
        description="Learn pictures. FOLDER has a folder of pictures for each class, named after it; or give pictures "
        "of one class and its name, or a CSV file with a line `file,label` for each picture. Pictures that were "
        "learned before are passed over, and what cannot be used is listed.",
        epilog="If it is stopped or killed the file is as it was before, and the same command goes on where it stood.")
    add_file(learn)
    learn.add_argument("pictures", nargs="+", metavar="PICTURES", help="a folder of a folder a class, a CSV file, or "
                       "with --class pictures and folders of them")
    learn.add_argument("--class", dest="name", metavar="NAME", help="what all these pictures show")
    learn.add_argument("--checkpoint-seconds", type=number(0, 10**9), default=30.0, metavar="FLOAT",
                       help="seconds between two checkpoints of long work (default: 30)")
    learn.add_argument("--json", action="store_true", help="for programs")
    add_quiet(learn)
    learn.set_defaults(do=_learn)


def _learn(arguments: argparse.Namespace) -> int:
    from protocore.field.keeper import Keeper
    from protocore.field.report import Interrupted

    keeper = Keeper(arguments.learner)
    keeper.checkpoint_seconds = arguments.checkpoint_seconds
    try:
        with Stop() as stop, Bar(arguments.quiet or arguments.json) as bar:
            learned = keeper.learn([Path(word) for word in arguments.pictures], name=arguments.name, report=bar,
                                   stop=stop.asked)
    except Interrupted:
        print("protocore: stopped; the file is as it was, and the same command goes on from the checkpoint beside it",
              file=sys.stderr)
        return 130
    if arguments.json:
        print(json.dumps(learned.to_json()))
    else:
        _tell(learned)
    return 0


def _tell(learned: Learned) -> None:
    from protocore.config import format_bytes, plural
    from protocore.field.sources import BEFORE

    tell_skipped(learned.skipped)
    for note in learned.notes:
        print(f"Note: {safe(note)}", file=sys.stderr)
    if not learned.new and not learned.more:
        left = any(skip.why != BEFORE for skip in learned.skipped)
        print(f"nothing new: every picture{' that can be used' if left else ''} was learned before")
        return
    for counts, what in ((learned.new, "new class"), (learned.more, "known class")):
        if counts:
            named = [f"{safe(name)} ({n})" for name, n in counts.items()]
            few = ", ".join(named[:20]) + (", …" if len(named) > 20 else "")
            print(f"{plural(sum(counts.values()), 'picture')} of {plural(len(counts), what)}: {few}")
    if learned.weak:
        print(f"weak, learned from few pictures: {', '.join(map(safe, learned.weak))}")
    budget = f" of {format_bytes(learned.budget)}" if learned.budget else ""
    print(f"{format_bytes(learned.kept)}{budget} kept; {learned.seconds:.0f} s")
