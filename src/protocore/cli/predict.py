"""`protocore predict`: what pictures show."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.cli.parser import number, whole
from protocore.cli.working import Bar, add_file, add_quiet, safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocore.field.asking import Prediction

UNKNOWN = "(unknown)"


def add_predict(commands: Any) -> None:
    predict = commands.add_parser(
        "predict", help="what pictures show, by a learner of your own classes",
        description="Name what pictures show, with probabilities. Pictures that cannot be read are named, too; if none "
        "can, it is an error.")
    add_file(predict)
    predict.add_argument("pictures", nargs="+", metavar="PICTURES", help="picture files, or folders of them")
    predict.add_argument("--top", type=whole(1, 10**6), default=1, metavar="INT", help="so many classes for each "
                         "picture, the most likely first (default: 1)")
    predict.add_argument("--unknown", type=number(0, 1), metavar="RATE", help="say when a picture shows none of the "
                         "classes; RATE is the share of pictures of known classes that may be called so by mistake, as "
                         "0.05")
    predict.add_argument("--json", action="store_true", help="for programs")
    predict.add_argument("--csv", type=Path, metavar="FILE", help="write a table: file, then class and probability, "
                         "as many as --top says")
    add_quiet(predict)
    predict.set_defaults(do=_predict)


def _predict(arguments: argparse.Namespace) -> int:
    from protocore.errors import DataError
    from protocore.field.keeper import Keeper
    from protocore.files import write_atomic

    with Bar(arguments.quiet or arguments.json) as bar:
        found = Keeper(arguments.learner).predict([Path(word) for word in arguments.pictures], top=arguments.top,
                                                  unknown=arguments.unknown, report=bar)
    if all(one.problem for one in found):
        raise DataError("no picture could be read:\n" + "\n".join(f"  {one.path}: {one.problem}" for one in found[:10])
                        if found else "there are no pictures; name files, or folders with pictures")
    if arguments.csv:
        write_atomic(arguments.csv, _table(found, arguments.top).encode())
        print(f"{arguments.csv}: {len(found):,} lines")
    if arguments.json:
        print(json.dumps([one.to_json() for one in found]))
    elif not arguments.csv:
        for one in found:
            print(_line(one))
    return 0


def _line(one: Prediction) -> str:
    if one.problem:
        return f"{safe(str(one.path))}: cannot be read ({safe(one.problem)})"
    said = ", ".join(f"{safe(name)} {_percent(chance)}"
                     for name, chance in zip(one.names, one.probabilities, strict=True))
    return f"{safe(str(one.path))}: {f'{UNKNOWN}, nearest ' if one.unknown else ''}{said}"


def _percent(chance: float) -> str:
    """Nothing is certain, so that nothing is rounded to that."""
    return "over 99.9 %" if chance >= 0.9995 else f"{100 * chance:.1f} %"


def _table(found: Sequence[Prediction], top: int) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    width = max([len(one.names) for one in found], default=top)
    titles = [f"{what}{k or ''}" for k in (0, *range(2, width + 1)) for what in ("class", "probability")]
    table.writerow(["file", *titles, "unknown", "problem"])
    for one in found:
        pairs = [value for pair in zip(one.names, one.probabilities, strict=True) for value in pair]
        table.writerow([one.path, *pairs, *[""] * (2 * width - len(pairs)), int(one.unknown), one.problem or ""])
    return text.getvalue()
