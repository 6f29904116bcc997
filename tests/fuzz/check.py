"""What must hold for every input: an error that a user can act on or none, in little time and little memory."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from fuzz.targets import Target
from protocore.errors import LONGEST_MESSAGE, UserError, printable

MOST_SECONDS = 2.0  # of processor time, for one input
MOST_BYTES = 300 << 20  # by which the process may grow, for one input
_STUCK = 20  # seconds after which the process ends itself, with a traceback: some loops answer to no signal
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Finding(Exception):
    """Something that a reader must not do; `key` is alike for findings of one cause."""

    def __init__(self, what: str, key: str) -> None:
        super().__init__(what)
        self.key = key


def warm(target: Target, folder: Path) -> None:
    """Read the sound files once: the first reading imports and builds what later ones find."""
    for data in target.seeds:
        list(target.read(target.place(folder, data)) or ())


def check(target: Target, data: bytes, folder: Path) -> str | None:
    """Read this input; the message of the error, None where it was read, or `Finding`."""
    path = target.place(folder, data)
    before, begun = _resident(), time.process_time()
    _forget_peak()
    faulthandler.dump_traceback_later(_STUCK, exit=True)
    message = None
    told: list[str] = []
    try:
        for text in target.read(path) or ():
            told.append(text)  # also what came before an error
    except UserError as error:
        message = str(error)
        told.append(message)
        if len(message) > LONGEST_MESSAGE:
            raise Finding(f"a message of {len(message):,} characters", "words") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise Finding(traceback.format_exc(limit=-12), _cause(error)) from None
    finally:
        faulthandler.cancel_dump_traceback_later()
    taken, grown = time.process_time() - begun, _peak() - before
    if taken > MOST_SECONDS:
        raise Finding(f"{taken:.1f} s, where {MOST_SECONDS} are allowed ({message})", "time")
    if grown > MOST_BYTES:
        raise Finding(f"{grown >> 20} MB more memory, where {MOST_BYTES >> 20} are allowed ({message})", "memory")
    _check_words(told)
    return message


def _check_words(told: Iterable[str]) -> None:
    for text in told:
        if not text or text != printable(text, len(text)):
            raise Finding(f"a message that is empty or not printable: {text[:200]!r}", "words")


def _cause(error: BaseException) -> str:
    """The kind of error and the innermost line of the package that it passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "protocore" in f.filename]
    where = f"{Path(frames[-1].filename).stem}-{frames[-1].lineno}" if frames else "elsewhere"
    return f"{type(error).__name__}-{where}"


def _resident() -> int:
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
    return _peak()


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:  # where the system allows it
        file.write("5")


def _peak() -> int:
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (10 if sys.platform == "linux" else 0)
