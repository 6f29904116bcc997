"""`protocore test`: how good a learner is on pictures whose classes are known."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.parser import number
from protocore.cli.working import Bar, add_file, add_quiet, safe, tell_skipped

if TYPE_CHECKING:
    from protocore.field.asking import Tested

PAIRS = 10  # of confused classes that are named


def add_test(commands: Any) -> None:
    test = commands.add_parser(
        "test", help="how good a learner is on pictures whose classes are known",
        description="Accuracy, which classes are taken for which, which are weak and want more pictures, and how far "
        "the probabilities are off. The pictures must be others than those that were learned.")
    add_file(test)
    test.add_argument("pictures", nargs="+", metavar="PICTURES", help="as `protocore learn` takes them")
    test.add_argument("--class", dest="name", metavar="NAME", help="what all these pictures show")
    test.add_argument("--unknown", type=number(0, 1), metavar="RATE", help="test --unknown of `predict`, too: on "
                      "pictures of known classes, and on those of folders whose names the learner does not know")
    test.add_argument("--json", action="store_true", help="for programs")
    add_quiet(test)
    test.set_defaults(do=_test)


def _test(arguments: argparse.Namespace) -> int:
    from protocore.field.keeper import Keeper

    with Bar(arguments.quiet or arguments.json) as bar:
        tested = Keeper(arguments.learner).test([Path(word) for word in arguments.pictures], name=arguments.name,
                                                unknown=arguments.unknown, report=bar)
    if arguments.json:
        print(json.dumps(tested.to_json()))
    else:
        _tell(tested)
    return 0


def _tell(tested: Tested) -> None:
    from rich.table import Table
    from rich.text import Text

    from protocore.cli.terminal import Terminal
    from protocore.config import plural

    tell_skipped(tested.skipped)
    console = Terminal()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("class", "right", "of", "learned from", ""):
        table.add_column(title, justify="left" if title in ("class", "") else "right")
    for name, of in sorted(tested.classes.items(), key=lambda item: item[1].accuracy):
        table.add_row(Text(safe(name)), f"{of.right}", f"{of.pictures}", f"{of.learned}",
                      Text(f"weak: {of.weak}" if of.weak else ""))
    console.print(table)
    for true, said, count in tested.confused[:PAIRS]:
        print(f"{plural(count, 'picture')} of {safe(true)} taken for {safe(said)}")
    if len(tested.confused) > PAIRS:
        print(f"and {len(tested.confused) - PAIRS} more pairs (--json lists them all)")
    print(f"{100 * tested.accuracy:.1f} % of {plural(tested.pictures, 'picture')} right; probabilities are off by "
          f"{100 * tested.calibration_error:.1f} points (expected calibration error)")
    if tested.false_alarms is not None and tested.unknown is not None:
        caught = "" if tested.caught is None else f", and {100 * tested.caught:.1f} % of those of unknown classes"
        print(f"--unknown {tested.unknown:g}: {100 * tested.false_alarms:.1f} % of pictures of known classes were "
              f"called unknown{caught}")
    if tested.strangers:
        few = ", ".join(f"{safe(name)} ({n})" for name, n in list(tested.strangers.items())[:10])
        print(f"not counted, as the learner does not know them: {few}{', …' if len(tested.strangers) > 10 else ''}")
