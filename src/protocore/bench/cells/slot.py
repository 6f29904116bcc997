"""A place where one cell at a time runs, each in a process of its own with its own log.

Behind it is a process (`server`) that has loaded the library and forks for every cell, so that a cell does not wait for
imports and still has its process, its peak memory and its end to itself. All of it dies with whoever holds the slot.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LOG = "log.txt"  # in the folder of the run
_SOURCE = str(Path(__file__).parents[3])  # where the package is


@dataclass(frozen=True)
class Job:
    """What a worker is told: everything here can be written as JSON."""

    flags: Mapping[str, Any]
    runs: str
    log: str
    threads: int = 1
    every: float = 30.0  # seconds between two checkpoints

    def line(self) -> bytes:
        return (json.dumps(asdict(self), default=str) + "\n").encode()


class Slot:
    """Jobs one after the other. `ask` and `kill` may be called from other threads."""

    def __init__(self, threads: int = 1, environment: Mapping[str, str] | None = None,
                 stands: str | None = None) -> None:
        self.stands = stands  # the folder that relative paths begin at; None: that of this process
        self.environment = environment_for(threads) | dict(environment or {})
        self.server: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()

    def run(self, job: Job, hear: Callable[[dict[str, Any]], None]) -> int:
        """Hear what the worker says until it ends; the code that it ends with, below 0 where a signal killed it."""
        Path(job.log).parent.mkdir(parents=True, exist_ok=True)
        server = self._ready()
        assert server.stdout is not None
        self._tell(job.line())
        for line in server.stdout:
            event = json.loads(line)
            if event["event"] == "exit":
                return int(event["code"])
            hear(event)
        code = server.wait()
        self.close()
        return code or 1

    def ask(self) -> None:
        """The worker writes its checkpoint and ends."""
        self._tell(b"stop\n")

    def kill(self) -> None:
        self._tell(b"kill\n")

    def close(self) -> None:
        """The server has nothing to lose; a worker that is still there ends with it."""
        with self.lock:
            server, self.server = self.server, None
        if server is not None:
            server.kill()
            server.wait()
            for pipe in (server.stdin, server.stdout):
                with contextlib.suppress(OSError):  # a word to it that was on its way
                    if pipe is not None:
                        pipe.close()

    def _ready(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.server is None or self.server.poll() is not None:
                # A session of its own: Ctrl-C is for the parent, who lets each worker write its checkpoint.
                self.server = subprocess.Popen(
                    [sys.executable, "-m", "protocore.bench.cells.server"], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, start_new_session=True, env=self.environment,
                    cwd=self.stands)
            return self.server

    def _tell(self, line: bytes) -> None:
        with self.lock, contextlib.suppress(OSError, ValueError):  # it has ended by itself
            if self.server is not None and self.server.stdin is not None:
                self.server.stdin.write(line)
                self.server.stdin.flush()


def environment_for(threads: int) -> dict[str, str]:
    """That of this process, with the threads, and this very code first."""
    path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": path}
