"""The command line. Words in, words out: nothing is computed here."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

from protocore.cli.audit import add_audit
from protocore.cli.compare import add_compare
from protocore.cli.completion import add_completion
from protocore.cli.data import add_data
from protocore.cli.decoder import add_decoder
from protocore.cli.demo import add_demo
from protocore.cli.export import add_export
from protocore.cli.forget import add_forget
from protocore.cli.frontier import add_frontier
from protocore.cli.health import add_health
from protocore.cli.learn import add_learn
from protocore.cli.listing import add_list
from protocore.cli.merge import add_merge
from protocore.cli.new import add_new
from protocore.cli.pack import add_pack
from protocore.cli.parser import Parser
from protocore.cli.plan import add_plan
from protocore.cli.predict import add_predict
from protocore.cli.report import add_report
from protocore.cli.reproduce import add_reproduce
from protocore.cli.run import add_run
from protocore.cli.serve import add_serve
from protocore.cli.show import add_show
from protocore.cli.test import add_test
from protocore.errors import LostError, UserError
from protocore.ranks import started
from protocore.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `protocore` command."""
    if started()[0]:  # of several processes the first speaks; a bug in another is told by Python itself
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            return _main(argv)
    return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # Waiting threads that spin make two threads on a busy two-core machine eleven times slower than one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.stdout is None:
        return _complain("cannot write to standard output: it is closed")
    try:
        try:
            return _dispatch(words)
        finally:
            sys.stdout.flush()
    except LostError as error:
        with redirect_stderr(sys.__stderr__):  # whichever process it is
            return _complain(str(error)) if error.aloud else 2
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _complain("stopped", 130)
    except BrokenPipeError:  # whoever read the output has seen enough, as `| head` does
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None:
            return _complain(f"{error.filename}: {error.strerror}; give a path that can be read and written")
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF):
            raise
        _drop_output()
        return _complain(f"cannot write to standard output ({error.strerror}); make room, or send it elsewhere")
    except MemoryError:
        return _complain(_TOO_LARGE)
    except RuntimeError as error:  # torch's own word for it
        if "allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        return _complain(_TOO_LARGE)


_TOO_LARGE = ("this machine has not enough memory for it; lower --width, --batch, --image-size, or what else makes the "
              "network or its batches large")


def _complain(text: str, code: int = 2) -> int:
    if sys.stderr is not None:
        print(f"protocore: {text}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """What is still in the buffer goes nowhere: Python would try to write it once more at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def make_parser(words: Sequence[str] = ()) -> Parser:
    """The parser of all commands; a method named in `words` brings its options."""
    parser = Parser(
        prog="protocore", description="Continual learning of new classes with a memory counted in bytes.",
        epilog="`protocore COMMAND --help` explains a command; `protocore run METHOD --help` a method's options too.",
    )
    parser.add_argument("--version", action="version", version=f"protocore {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_new(commands, words)
    for add in (add_learn, add_predict, add_test, add_merge, add_forget, add_audit, add_serve):
        add(commands)
    add_plan(commands, words)
    add_run(commands, words)
    add_compare(commands, words)
    for add in (add_demo, add_reproduce, add_list, add_show, add_report, add_frontier, add_health, add_data, add_pack,
                add_export, add_decoder, add_completion):
        add(commands)
    if words and words[0].startswith("-") and words[0] not in parser.takes():
        parser.error(f"{words[0]}: flags stand after a command, as in `protocore list --json`")
    return parser


def _dispatch(words: list[str]) -> int:
    arguments = make_parser(words).parse_args(words)
    processes = started()[1]
    if processes == 1:
        return arguments.do(arguments)
    if arguments.command != "run":
        raise UserError(f"{processes} processes were started together (torchrun), and only `protocore run` shares out "
                        f"its work; give `protocore {arguments.command}` by itself")
    from protocore.ranks.group import together

    with together():
        return arguments.do(arguments)
