"""`protocore audit`: what a learner's file gives away of the pictures that it learned."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from protocore.cli.working import Bar, add_file, add_quiet


def add_audit(commands: Any) -> None:
    audit = commands.add_parser(
        "audit", help="what a learner's file gives away of the pictures that it learned",
        description="A page for whoever decides whether the file may leave the house: what is in it in plain words, "
        "the training picture that is nearest to each exemplar, and whether its answers tell which pictures were "
        "learned. The page is one file that asks nothing of any network.")
    add_file(audit)
    audit.add_argument("pictures", type=Path, metavar="PICTURES", help="what it learned from, a folder a class")
    audit.add_argument("--held-out", type=Path, metavar="FOLDER", help="pictures of the same classes that it did not "
                       "learn: needed to test whether one can tell which ones it learned")
    audit.add_argument("--out", type=Path, default=Path("audit.html"), metavar="FILE",
                       help="the page to write (default: audit.html)")
    audit.add_argument("--json", action="store_true", help="for programs: every number, beside the page")
    add_quiet(audit)
    audit.set_defaults(do=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    from protocore.bench.audit.measure import audit
    from protocore.bench.audit.page import page, sentences
    from protocore.cli.report import checked_page
    from protocore.files import write_atomic

    out = checked_page(arguments.out)
    with Bar(arguments.quiet or arguments.json) as bar:
        found, about, training = audit(arguments.learner, arguments.pictures, arguments.held_out, bar)
    write_atomic(out, page(found, about, training).encode())
    if arguments.json:
        print(json.dumps(found.to_json()))
        return 0
    for words in sentences(found):
        print(words)
    print(f"Page: {out}")
    return 0
