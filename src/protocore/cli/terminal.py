"""Where tables and lines are printed."""

from __future__ import annotations

from rich.console import Console


class Terminal(Console):
    """A console that leaves it to the program what a reader means who has seen enough; rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
