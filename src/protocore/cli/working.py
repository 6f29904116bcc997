"""What the commands of learners in the field share: the path of the file, a bar with the time left, lists of files."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.field.report import Report

if TYPE_CHECKING:
    from protocore.field.document import Skip

LISTED = 10  # skipped files that are named
REDRAW = 0.1  # seconds


def add_file(command: Any) -> None:
    command.add_argument("learner", type=Path, metavar="LEARNER", help="the learner's file, as signs.learner")


def add_quiet(command: Any) -> None:
    command.add_argument("--quiet", action="store_true", help="no progress")


class Bar(Report):
    """A bar for the part that is under way, with the time left, where it can move; notes as lines."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True, quiet=quiet)
        self.bar = Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                            TimeRemainingColumn(), console=self.console, transient=True,
                            disable=quiet or not self.console.is_terminal)
        self.what = ""
        self.item: Any = None
        self.drawn = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.bar.disable:  # rich would print an empty line
            self.bar.stop()

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def progress(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if self.bar.disable or (what == self.what and done < of and now - self.drawn < REDRAW):
            return
        if what != self.what:
            if self.item is not None:
                self.bar.remove_task(self.item)
            self.bar.start()
            self.what, self.item = what, self.bar.add_task(what, total=of)
        self.drawn = now
        self.bar.update(self.item, completed=done, total=of)


def tell_skipped(skipped: Sequence[Skip]) -> None:
    """Which files were left out, to standard error: the first ones by name, all of them by number; those that were
    learned before by number alone, as they are no matter."""
    from protocore.config import plural
    from protocore.field.sources import BEFORE

    left = [skip for skip in skipped if skip.why != BEFORE]
    if left:
        print(f"left out: {plural(len(left), 'file')}", file=sys.stderr)
    for skip in left[:LISTED]:
        print(f"  {safe(skip.file)}: {safe(skip.why)}", file=sys.stderr)
    if len(left) > LISTED:
        print(f"  and {len(left) - LISTED:,} more (--json lists them all)", file=sys.stderr)
    if len(left) < len(skipped):
        print(f"passed over: {plural(len(skipped) - len(left), 'picture')} {BEFORE}", file=sys.stderr)


def safe(text: str) -> str:
    """A name of a stranger's file as a terminal may see it."""
    from protocore.errors import printable

    return printable(text, 300).replace("\n", "\\n")
