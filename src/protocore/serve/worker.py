"""The process that changes the learner's file, so that the page stays alive while it learns.

It reads orders from standard input, a line of JSON each, and says on standard output how they go on. The end of the
input means that the server is gone or wants to stop: then it writes its checkpoint and goes, too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
import traceback
from typing import Any

from protocore.field.report import Report

GRACE = 8.0  # seconds for a checkpoint once nobody asks any more
ORPHAN = 3  # exit code of a worker that had to leave its work
EVERY = 0.1  # seconds between two words about the same part


class Voice(Report):
    """Says to the server what a Report is told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last = ("", 0.0)

    def say(self, event: str, **more: Any) -> None:
        try:
            os.write(self.number, (json.dumps({"event": event, **more}) + "\n").encode())
        except BrokenPipeError:  # the end of the input says the same
            return

    def note(self, text: str) -> None:
        if text:
            self.say("note", text=text)

    def progress(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if what != self.last[0] or done == of or now - self.last[1] >= EVERY:
            self.last = what, now
            self.say("progress", what=what, done=done, of=of)


def main() -> None:
    voice = Voice(os.dup(1))
    os.dup2(2, 1)  # what a library prints is none of our words
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then says so
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    stop = threading.Event()
    threading.Thread(target=_listen, args=(orders, stop), daemon=True).start()
    from protocore.errors import UserError
    from protocore.field.report import Interrupted

    while (order := orders.get()) is not None:
        try:
            voice.say("done", result=_work(order, voice, stop))
        except Interrupted:
            voice.say("stopped")
        except UserError as error:
            voice.say("failed", text=str(error))
        except Exception as error:  # the server must hear of it, whatever it is
            traceback.print_exc()
            voice.say("failed", text=f"{type(error).__name__}: {str(error)[:1000]}")
    os._exit(0)  # torch takes seconds to tidy up what goes anyway


def _listen(orders: queue.SimpleQueue[dict[str, Any] | None], stop: threading.Event) -> None:
    with open(0, "rb", closefd=False) as lines:
        for line in lines:
            orders.put(json.loads(line))
    stop.set()
    orders.put(None)
    time.sleep(GRACE)
    os._exit(ORPHAN)


def _work(order: dict[str, Any], voice: Voice, stop: threading.Event) -> Any:
    from protocore.field.keeper import Keeper

    keeper = Keeper(order["learner"])
    keeper.patience = float("inf")  # another process may teach it for hours; the page says who
    if order["what"] == "learn":
        return keeper.learn([order["table"]], report=voice, stop=stop.is_set).to_json()
    name = order["name"]
    return keeper.forget(name).to_json() if name in keeper.document.classes else None


if __name__ == "__main__":
    main()
