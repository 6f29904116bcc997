"""Who is told how long work goes on."""

from __future__ import annotations


class Report:
    """Tells nobody; a subclass says what it wants to say."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def progress(self, what: str, done: int, of: int) -> None:
        """So many of so many are done of a part of the work."""


class Interrupted(Exception):
    """The work was asked to stop; its checkpoint is written."""
