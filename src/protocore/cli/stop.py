"""How a run is asked to stop."""

from __future__ import annotations

import signal
from typing import Any


class Stop:
    """Ctrl-C asks the run to write its checkpoint and stop; a second one stops at once."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        return self._asked

    def _handle(self, number: int, frame: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> Stop:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
