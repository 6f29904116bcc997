"""Seconds by part of the work: each moment belongs to one part at most, so that their sum is no more than the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """A stack of parts: the innermost one has the time. `wait` lets a device finish what it was given, so that its
    time goes to the part that asked for it."""

    def __init__(self, now: Callable[[], float] = time.perf_counter, wait: Callable[[], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.wait = wait
        self._now = now
        self._open: list[str | None] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str | None, *, wait: bool = True) -> Iterator[None]:
        """The time until the end of the block is `name`'s, but for the parts inside it; None: nobody's.

        Without `wait` a device is not waited for: for what comes after every step.
        """
        self._turn(wait)
        self._open.append(name)
        try:
            yield
        finally:
            self._turn(wait)
            self._open.pop()

    def _turn(self, wait: bool) -> None:
        """What has passed since the last turn goes to the part that is open."""
        if wait and self.wait is not None:
            self.wait()
        now = self._now()
        name = self._open[-1] if self._open else None
        if name is not None:
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
