"""`protocore new`: a learner's file, before any class is known."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protocore.cli.parser import Parser, sort_words
from protocore.cli.run import GROUPS, add_flags, takes
from protocore.cli.working import add_file
from protocore.config import Settings, flag


def add_new(commands: Any, words: Sequence[str] = ()) -> None:
    """The command, with the options of the method that its words name."""
    new: Parser = commands.add_parser(
        "new", help="begin a learner of your own pictures: one file that lives for months",
        argument_default=argparse.SUPPRESS, usage="protocore new LEARNER [FLAGS]",
        description="Make a learner's file. Nothing needs to be known of the classes to come: network and method are "
        "chosen by a trial on the first pictures that it learns, unless you name them here.",
        epilog="Then: `protocore learn LEARNER FOLDER`, with a folder of pictures for each class.")
    add_file(new)
    add_settings(new, words)
    new.set_defaults(do=_new)


def add_settings(command: Parser, words: Sequence[str]) -> None:
    """Flags of what a learner in the field can be told, with the options of the method that is named."""
    command.add_argument("--method", metavar="STR", help="which method learns; see `protocore list methods` (default: "
                         "chosen by a trial)")
    command.add_argument("--seed", metavar="INT", help="drives everything random (default: 0)")
    command.add_argument("--image-size", metavar="INT", help="side in pixels that pictures are scaled to")
    for group, title in GROUPS.items():
        if group != "data":
            add_flags(command.add_argument_group(title), Settings, group)
    if words and command.prog.endswith(f" {words[0]}"):
        _add_options(command, words[1:])


def _add_options(new: Parser, words: Sequence[str]) -> None:
    """Flags of the options of the method that --method names; without one there are none."""
    found = sort_words(words, new.takes())
    given = [word.partition("=")[2] for word in found.flags if word.startswith("--method=")]
    if not given and not found.unknown:
        return
    from protocore.methods import METHODS, method_named

    if given:
        method = method_named(given[-1])
        if dataclasses.fields(method.Options):
            add_flags(new.add_argument_group(f"options of {method.name}"), method.Options, "method")
        return
    known = new.takes() | {name: value for m in METHODS.values() for name, value in takes(m).items()}
    for word in sort_words(words, known).flags:
        name = word.partition("=")[0]
        if name not in new.takes():
            owners = ", ".join(m.name for m in METHODS.values() if name in takes(m))
            new.error(f"{name} is an option of {owners}; name the method with {flag('method')}")


def _new(arguments: argparse.Namespace) -> int:
    from protocore.config import format_bytes
    from protocore.field.keeper import Keeper

    given = {name: value for name, value in vars(arguments).items() if name not in ("command", "do", "learner")}
    keeper = Keeper.new(Path(arguments.learner), **given)
    budget = keeper.document.given.get("budget")
    room = f", with {format_bytes(int(budget))} of memory" if isinstance(budget, int) else ""
    print(f"{keeper.path}: a new learner{room}; teach it with `protocore learn {keeper.quoted} FOLDER`")
    return 0
