"""The process behind a slot: it loads the library once, and forks for every job that comes on its standard input.

It never computes, so it has one thread and may be forked. A line is a job, `stop` (passed on to the worker) or `kill`;
the end of the input ends it, and its worker with it. On standard output are the worker's events and, after each job,
`{"event": "exit", "code": ...}`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any

from protocore.bench.cells import worker

# What every run loads sooner or later: the job, and what torch loads when an optimiser is made.
EVERY_RUN = ("protocore.runs.job", "protocore.runs.configure", "rich.progress", "torch._dynamo")
OF_BENCHMARK = {"digits": ("sklearn.datasets",)}  # they come with scikit-learn, which takes a second to load
LOOK = 0.05  # seconds between two looks whether the worker has ended


class Lines:
    """Lines of standard input, as they come; read by hand, so that `select` knows what is left."""

    def __init__(self) -> None:
        self.data, self.ended = b"", False

    def next(self, timeout: float | None) -> bytes | None:
        """The next line; None where none comes in time, or none any more."""
        while b"\n" not in self.data and not self.ended:
            if timeout is not None and not select.select([0], [], [], timeout)[0]:
                return None
            part = os.read(0, 1 << 16)
            self.ended = not part
            self.data += part
        line, found, self.data = self.data.partition(b"\n")
        return line + b"\n" if found else None


class Forked:
    """A worker that is a fork of this process; where forks of large libraries are not safe, a process from nothing."""

    def __init__(self, job: dict[str, Any]) -> None:
        reading, self.cord = os.pipe()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        if sys.platform == "linux":
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self.cord)
                _become_worker(reading, log)
        else:
            self.process = subprocess.Popen([sys.executable, "-m", "protocore.bench.cells.worker"], stdin=reading,
                                            stderr=log)
            self.pid = self.process.pid
        os.close(reading)
        os.close(log)

    def tell(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            os.write(self.cord, line)

    def ended(self) -> int | None:
        """Its exit code, once it has one."""
        if self.process is not None:
            return self.process.poll()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None


def _become_worker(reading: int, log: int) -> None:
    """In the fork: input from the cord, errors to the log, events to where this process wrote its own."""
    code = 1
    try:
        os.dup2(reading, 0)
        os.dup2(log, 2)
        os.close(reading)
        os.close(log)
        code = worker.main()
        sys.stderr.flush()
    finally:
        os._exit(code)  # what the parent registered for its own end is not for its fork


def serve() -> int:
    lines = Lines()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (line := lines.next(None)) is not None:
        if line in (b"stop\n", b"kill\n"):  # for a worker that has ended meanwhile
            continue
        job = json.loads(line)
        if sys.platform == "linux":
            for name in (*EVERY_RUN, *OF_BENCHMARK.get(str(job["flags"].get("benchmark")), ())):
                importlib.import_module(name)
        forked = Forked(job)
        forked.tell(line)
        while (code := forked.ended()) is None:
            said = lines.next(LOOK)
            if said == b"kill\n" or lines.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(forked.pid, signal.SIGKILL)
            elif said:
                forked.tell(said)
        os.close(forked.cord)
        with contextlib.suppress(BrokenPipeError):  # who began it is gone: then its input has ended, too
            os.write(1, (json.dumps({"event": "exit", "code": code}) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(serve())
