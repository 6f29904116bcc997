"""The process of one cell, forked by `server` (or started as `python -m protocore.bench.cells.worker`).

It reads its job from standard input, one line of JSON, and then listens there: `stop` asks it to write its checkpoint
and end, and the end of the input means that whoever began it is gone, so it goes too. On standard output it says how it
goes on, a line of JSON an event; what is written for people goes to standard error, which is the log of the cell.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

if TYPE_CHECKING:
    from protocore.learn.evaluate import Row
    from protocore.runs.folder import RunFolder

ORPHAN = 3  # exit code of a worker whose parent is gone
EVERY = 0.5  # seconds between two words about steps
WAIT = 0.5  # between two looks whether another process has left the folder


@dataclass(frozen=True)
class Voice:
    """Says events to the parent."""

    number: int  # of the file that they are written to

    def say(self, event: str, **more: Any) -> None:
        try:
            os.write(self.number, (json.dumps({"event": event, **more}) + "\n").encode())
        except BrokenPipeError:  # the parent is gone
            os._exit(ORPHAN)


def main() -> int:
    voice = Voice(os.dup(1))
    os.dup2(2, 1)  # whatever a library prints belongs into the log
    job, rest = _line()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop, rest), daemon=True).start()
    from protocore.errors import UserError

    try:
        voice.say("end", state=_work(job, voice, stop))
        return 0
    except UserError as error:
        text, code = str(error), 2
    except Exception as error:  # this process does nothing else: its log is where an error of any kind belongs
        traceback.print_exc()
        text, code = f"{type(error).__name__}: {error}", 1
    _log(f"failed: {text}")
    voice.say("failed", text=text[:2000])
    return code


def _line() -> tuple[dict[str, Any], bytes]:
    """The job, and what came behind it. Read by hand: the other thread would lock a buffered reader while it waits."""
    data = b""
    while b"\n" not in data:
        part = os.read(0, 1 << 16)
        if not part:
            os._exit(ORPHAN)
        data += part
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def _listen(stop: threading.Event, data: bytes) -> None:
    while True:
        if b"stop\n" in data:
            stop.set()
            data = b""
        part = os.read(0, 1 << 10)
        if not part:
            os._exit(ORPHAN)
        data += part


def _work(job: dict[str, Any], voice: Voice, stop: threading.Event) -> str:
    """How it ended: done, stored (somebody else has done it) or stopped."""
    from rich.console import Console

    from protocore.errors import HeldError
    from protocore.runs.configure import command_of, configure
    from protocore.runs.folder import RunFolder
    from protocore.runs.job import Interrupted, run, stored
    from protocore.runs.reporters import RunProgress

    config = configure({"threads": job["threads"], **job["flags"]})
    folder = RunFolder.of(Path(job["runs"]), config)
    if stored(config, folder):
        return "stored"
    teller = _teller(voice, folder, command_of(config))
    waits = False
    while not stop.is_set():
        try:
            run(config, folder, reporters=[teller, RunProgress(console=Console(stderr=True, force_terminal=False))],
                checkpoint_seconds=float(job["every"]), stop=stop.is_set, keep_stored=True)
            return "done" if teller.begun else "stored"
        except HeldError as error:
            if not waits:
                _log(f"waits: {error}")
                voice.say("waits")
            waits = True
            time.sleep(WAIT)
        except Interrupted:
            _log("stopped; its checkpoint is written")
            return "stopped"
    return "stopped"


def _teller(voice: Voice, folder: RunFolder, command: str) -> Any:
    from protocore.runs.reporters import Reporter

    class Teller(Reporter):
        """Tells the parent how far the run is; the beginning also to the log."""

        begun = False
        at, tasks, said = 0, 1, 0.0

        def data(self, notes: Sequence[str]) -> None:
            self.begun = True
            goes_on = folder.checkpoint.exists()
            _log(f"{'goes on' if goes_on else 'begins'}: {command}")
            voice.say("begins", goes_on=goes_on)

        def task(self, index: int, of: int, classes: int) -> None:
            self.at, self.tasks = index, of
            voice.say("share", share=index / of)

        def step(self, done: int, of: int, loss: SupportsFloat) -> None:
            now = time.monotonic()
            if now - self.said >= EVERY:
                self.said = now
                voice.say("share", share=(self.at + done / of) / self.tasks)

        def row(self, index: int, row: Row, kept: int) -> None:
            voice.say("share", share=(index + 1) / self.tasks)

    return Teller()


def _log(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
