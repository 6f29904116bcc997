"""The command line. Words in, words out: nothing is computed here."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from protocore.cli.data import add_data
from protocore.cli.decoder import add_decoder
from protocore.cli.pack import add_pack
from protocore.cli.run import add_run, demo, method_in
from protocore.cli.show import health, list_, show
from protocore.errors import UserError
from protocore.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `protocore` command."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Waiting threads that spin make two threads on a busy two-core machine eleven times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"protocore: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nprotocore: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"protocore: {error.filename}: {error.strerror}; give a path that can be read and written",
              file=sys.stderr)
        return 2


def _dispatch(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="protocore", description="Continual learning of new classes with a memory counted in bytes.",
        epilog="`protocore COMMAND --help` explains a command; `protocore run METHOD --help` a method's options too.",
    )
    parser.add_argument("--version", action="version", version=f"protocore {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_run(commands, method_in(words))
    digits = commands.add_parser("demo", help="learn the embedded digits with three methods; a table and pictures")
    digits.add_argument("--runs", default="runs", help="folder of run folders (default: runs)")
    digits.set_defaults(do=demo)
    listing = commands.add_parser("list", help="methods, benchmarks, backbones and codecs, one line each")
    listing.add_argument("what", nargs="?", choices=("methods", "benchmarks", "backbones", "codecs"))
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(do=list_)
    shown = commands.add_parser("show", help="what a stored run was and what came out")
    shown.add_argument("run", help="a run's folder, or its result.json")
    shown.add_argument("--all", action="store_true", help="every setting, also those left at their default")
    shown.add_argument("--json", action="store_true", help="for programs")
    shown.set_defaults(do=show)
    measured = commands.add_parser("health", help="how good and how private the exemplars of a finished run are")
    measured.add_argument("run", type=Path, help="a run's folder")
    measured.add_argument("--data-root", help="folder of the data sets (else PROTOCORE_DATA)")
    measured.add_argument("--steps", type=int, default=600, help="training steps of the fresh network (600)")
    measured.add_argument("--json", action="store_true", help="for programs")
    measured.set_defaults(do=health)
    add_data(commands)
    add_pack(commands)
    add_decoder(commands)
    arguments = parser.parse_args(words)
    return arguments.do(arguments)


if __name__ == "__main__":
    sys.exit(main())
