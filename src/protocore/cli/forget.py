"""`protocore forget`: a class leaves a learner's file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from protocore.cli.parser import whole
from protocore.cli.working import add_file


def add_forget(commands: Any) -> None:
    forget = commands.add_parser(
        "forget", help="take a class out of a learner",
        description="Take a class out of everything that is kept of it: exemplars, prototype, statistics, its row of "
        "the head, its line of the history. A certificate says what is gone and what cannot be told.")
    add_file(forget)
    forget.add_argument("name", metavar="CLASS", help="its name, as `protocore show LEARNER` lists it")
    forget.add_argument("--unlearn-steps", type=whole(0, 10**6), default=0, metavar="INT", help="steps of training "
                        "that make a network that was trained on the class forget it as well, 100 or more (default: 0)")
    forget.add_argument("--pictures", type=Path, action="append", default=[], metavar="PATH", help="pictures of the "
                        "class that were learned, to measure with (else its exemplars): a file or a folder; may be "
                        "given several times")
    forget.add_argument("--held-out", type=Path, action="append", default=[], metavar="PATH", help="pictures of the "
                        "class that were not learned, for the membership test")
    forget.add_argument("--certificate", type=Path, metavar="FILE", help="write the certificate there as JSON, too")
    forget.add_argument("--json", action="store_true", help="for programs")
    forget.set_defaults(do=_forget)


def _forget(arguments: argparse.Namespace) -> int:
    from protocore.field.keeper import Keeper
    from protocore.files import write_json

    certificate = Keeper(arguments.learner).forget(
        arguments.name, pictures=arguments.pictures, held_out=arguments.held_out,
        unlearn_steps=arguments.unlearn_steps)
    if arguments.certificate:
        write_json(arguments.certificate, certificate.to_json())
    print(json.dumps(certificate.to_json()) if arguments.json else certificate.text())
    return 0
