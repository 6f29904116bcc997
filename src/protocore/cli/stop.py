"""How a run is asked to stop."""

from __future__ import annotations

import signal
from typing import Any


class Stop:
    """Ctrl-C asks the run to write its checkpoint and stop; a second one stops at once.

    Of several processes each is asked by the terminal, and once more by torchrun, which passes on SIGTERM, too: there
    any number of times is one.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._asked = False
        self._several = several
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        return self._asked

    def _handle(self, number: int, frame: Any) -> None:
        if self._asked and not self._several:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM) if self._several else (signal.SIGINT,):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
