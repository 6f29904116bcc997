"""One job after the other: a thread that hands orders to the worker and hears how they go on."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protocore.errors import UserError, shown
from protocore.serve.spool import Order, Spool
from protocore.serve.worker import GRACE

MOST_QUEUED = 100
REMEMBERED = 20  # jobs that are over
MOST_NOTES = 20  # of a job


@dataclass(frozen=True)
class Job:
    """An order and how it stands: queued, running, done or failed; `what`, `done` and `of` are of the current part."""

    order: Order
    state: str = "queued"
    what: str = ""
    done: int = 0
    of: int = 0
    notes: tuple[str, ...] = field(default=())
    result: Any = None  # what the learner said: Learned or a Certificate, as JSON
    error: str | None = None


class _Worker:
    """The process, begun when it is needed and again if it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen([sys.executable, "-m", "protocore.serve.worker"], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, start_new_session=True)
        return self.process

    def ask(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What it says until the order is over; it may die first."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: its output ends
            process.stdin.write((json.dumps(order) + "\n").encode())
            process.stdin.flush()
        for line in process.stdout:
            event = json.loads(line)
            yield event
            if event["event"] in ("done", "failed", "stopped"):
                return
        yield {"event": "died", "code": process.wait()}

    def leave(self) -> None:
        """It is told to write its checkpoint and go."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def end(self) -> None:
        if self.process is not None:
            try:
                self.process.wait(GRACE + 2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Jobs:
    """The queue. Orders are on disk from the moment they are accepted until they are over."""

    def __init__(self, learner: Path, spool: Spool) -> None:
        self.learner, self.spool = learner, spool
        self._jobs: dict[str, Job] = {order.id: Job(order) for order in spool.orders()}
        self._queue = deque(self._jobs)
        self._place = max((job.order.place for job in self._jobs.values()), default=0)
        self._changed = threading.Condition(threading.RLock())
        self._closing = False
        self._worker = _Worker()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        self._worker.start()  # torch takes its time to load
        self._thread.start()

    def close(self) -> None:
        """What runs stops at the next step with its checkpoint; the next server goes on with it."""
        with self._changed:
            self._closing = True
            self._worker.leave()
            self._changed.notify_all()
        self._worker.end()
        self._thread.join(GRACE)

    def learn(self) -> Job:
        """All that waits is to be learned; a `learn` that has not begun yet will take it along."""
        with self._changed:
            for job in self._jobs.values():
                if job.state == "queued" and job.order.what == "learn":
                    return job
            if not self.spool.counts():
                raise UserError("no pictures wait; put some on a class first")
            return self._put(Order("learn"))

    def forget(self, name: str) -> Job:
        with self._changed:
            job = self.forgetting(name) or self._put(Order("forget", name))
            self.spool.drop(name)
            return job

    def forgetting(self, name: str) -> Job | None:
        """The job that is to forget this class."""
        with self._changed:
            return next((job for job in self._jobs.values() if job.state in ("queued", "running")
                         and (job.order.what, job.order.name) == ("forget", name)), None)

    def all(self) -> list[Job]:
        """Those that run or wait, and the last ones that are over; oldest first."""
        with self._changed:
            return list(self._jobs.values())

    def get(self, id: str) -> Job | None:
        with self._changed:
            return self._jobs.get(id)

    def _put(self, order: Order) -> Job:
        if len(self._queue) >= MOST_QUEUED:
            raise UserError(f"{MOST_QUEUED} jobs wait already; wait until some are done")
        self._place += 1
        order = replace(order, place=self._place)
        self.spool.put(order)
        self._jobs[order.id] = Job(order)
        self._queue.append(order.id)
        self._changed.notify_all()
        return self._jobs[order.id]

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._queue))
                if self._closing:
                    return
                job = self._update(self._queue.popleft(), state="running")
            try:
                self._work(job)
            except (UserError, OSError) as error:  # of the spool: the disk is full, or a stranger was there
                self._update(job.order.id, state="failed", error=str(error))

    def _work(self, job: Job) -> None:
        order = job.order
        words: dict[str, Any] = {"what": order.what, "learner": str(self.learner), "name": order.name}
        if order.what == "learn":
            table = self.spool.take(order)
            if table is None:
                return self._over(order, "done")
            words["table"] = str(table)
        else:
            self.spool.drop(order.name)
        for event in self._worker.ask(words):
            match event:
                case {"event": "progress", "what": what, "done": done, "of": of}:
                    self._update(order.id, what=what, done=done, of=of)
                case {"event": "note", "text": text}:
                    notes = (*self._jobs[order.id].notes, self._plain(text))[-MOST_NOTES:]
                    self._update(order.id, notes=notes)
                case {"event": "done", "result": result}:
                    self._over(order, "done", result=self._plain(result))
                case {"event": "failed", "text": text}:
                    self._over(order, "failed", error=self._plain(text))
                case {"event": "died", "code": code} if not self._closing:
                    why = "it was killed; perhaps the memory of this machine was full" if code < 0 else f"code {code}"
                    self._over(order, "failed", error=f"the learning process ended ({why}); try again")

    def _plain(self, value: Any) -> Any:
        """Words of the learner without the spool's folder, of which nobody outside knows."""
        if isinstance(value, str):
            return value.replace(f"{self.spool.folder}/", "")
        if isinstance(value, dict):
            return {name: self._plain(one) for name, one in value.items()}
        return [self._plain(one) for one in value] if isinstance(value, list) else value

    def _over(self, order: Order, state: str, **more: Any) -> None:
        (self.spool.done if state == "done" else self.spool.failed)(order)
        with self._changed:
            self._update(order.id, state=state, **more)
            over = [id for id, job in self._jobs.items() if job.state in ("done", "failed")]
            for id in over[:-REMEMBERED]:
                del self._jobs[id]

    def _update(self, id: str, **more: Any) -> Job:
        with self._changed:
            self._jobs[id] = replace(self._jobs[id], **more)
            return self._jobs[id]


def unknown_job(id: str) -> str:
    return f"there is no job {shown(id)}; those that are over are remembered until {REMEMBERED} others are"
