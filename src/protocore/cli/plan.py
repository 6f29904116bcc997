"""`protocore plan`: what a budget will mean, before anything is learned."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protocore.cli.new import add_settings
from protocore.cli.parser import Parser, whole
from protocore.cli.working import Bar, add_quiet

if TYPE_CHECKING:
    from protocore.field.plan import Planned


def add_plan(commands: Any, words: Sequence[str] = ()) -> None:
    plan: Parser = commands.add_parser(
        "plan", help="what a budget will mean, before anything is learned",
        argument_default=argparse.SUPPRESS, usage="protocore plan --classes INT --pictures INT [FLAGS]",
        description="How many exemplars of how many bytes a budget holds, how long learning takes by steps that are "
        "measured on this machine, and how much memory the process needs. Without --backbone, for a frozen network and "
        "for training from scratch: which of them `protocore new` takes is seen on the first pictures.")
    plan.add_argument("--classes", type=whole(1, 10**6), required=True, metavar="INT", help="how many there will be")
    plan.add_argument("--pictures", type=whole(1, 10**6), required=True, metavar="INT", help="to learn of each class")
    plan.add_argument("--json", action="store_true", default=False, help="for programs")
    add_quiet(plan)
    add_settings(plan, words)
    plan.set_defaults(do=_plan)


_NOT_SETTINGS = ("command", "do", "classes", "pictures", "json", "quiet")


def _plan(arguments: argparse.Namespace) -> int:
    from protocore.field.plan import plan

    given = {name: value for name, value in vars(arguments).items() if name not in _NOT_SETTINGS}
    with Bar(getattr(arguments, "quiet", False) or arguments.json) as bar:
        found = plan(arguments.classes, arguments.pictures, given, bar)
    if arguments.json:
        print(json.dumps([one.to_json() for one in found]))
    else:
        for one in found:
            _tell(one)
    return 0 if any(one.fits for one in found) else 1


def _tell(one: Planned) -> None:
    from protocore.config import format_bytes, plural

    network = f"frozen {one.backbone}" if one.frozen else f"{one.backbone} from scratch"
    print(f"{one.method} on {network}, {plural(one.classes, 'class')} of {plural(one.pictures, 'picture')}, "
          f"{one.image_size} x {one.image_size} pixels:")
    if not one.fits:
        print(f"  does not fit: {one.problem}")
        return
    budget = f" of {format_bytes(one.budget)}" if one.budget else ""
    print(f"  memory    {format_bytes(one.kept)}{budget}, {format_bytes(one.bytes_a_class)} a class")
    if one.exemplars:
        decoder = f"; the decoder, once: {format_bytes(one.decoder)}" if one.decoder else ""
        print(f"  exemplars {one.exemplars:,} of {plural(one.exemplar_bytes, 'byte')} at most, "
              f"{one.exemplars // one.classes:,} a class{decoder}")
    print(f"  time      {_clock(one.seconds)} for all at once, {_clock(one.seconds_a_class)} for one more class")
    print(f"  process   {format_bytes(one.peak_memory)} at its peak")


def _clock(seconds: float) -> str:
    if seconds < 0.1:
        return "less than 0.1 s"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
