"""A parser of the command line that takes flags before, between and after the other words."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from protocore.errors import UserError, shown


@dataclass
class Sorted:
    """Words by what they are: plain ones, flags with their values (`--seed=1`), and flags that nobody knows."""

    plain: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def sort_words(words: Sequence[str], takes: Mapping[str, bool]) -> Sorted:
    """`takes`: which flags there are, and whether a value follows."""
    found, i = Sorted(), 0
    while i < len(words):
        word, i = words[i], i + 1
        name, equals, _ = word.partition("=")
        if not word.startswith("-"):
            found.plain.append(word)
        elif name not in takes:
            found.unknown.append(name)
        elif takes[name] and not equals and i < len(words) and not words[i].startswith("--"):
            found.flags.append(f"{word}={words[i]}")  # one word: argparse would take -1e5 for a flag
            i += 1
        else:
            found.flags.append(word)
    return found


class Parser(argparse.ArgumentParser):
    """No flag is guessed from its beginning, and one that is not known names the one that was meant."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (`{self.prog} --help` explains)")

    def takes(self) -> dict[str, bool]:
        """The flags that there are, and whether a value follows."""
        return {text: action.nargs != 0 for text, action in self._option_string_actions.items()}

    def parse_known_args(  # type: ignore[override]  # its overloads say the same
            self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:  # else the words belong to a command below
            takes = self.takes()
            found = sort_words(words, takes)
            if found.unknown:
                self.error(f"unknown flag {self.known_as(found.unknown[0], takes)}")
            # argparse gives up on a word that may be left out as soon as it meets a flag.
            words = [*found.plain, *found.flags]
        parsed, rest = super().parse_known_args(words, namespace)
        if rest and self._subparsers is None:
            self.error(f"{shown(rest[0])} is one word too many")
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's own says nothing where its help could not be written."""
        (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = {"command": "command", "verb": "command"}.get(action.dest, "choice")
            self.error(f"unknown {what} {self.known_as(str(value), action.choices)} (known: "
                       f"{', '.join(map(str, action.choices))})")

    @staticmethod
    def known_as(name: str, known: Iterable[str]) -> str:
        """An unknown name as errors say it, with the known one that is near."""
        from protocore.registry import near

        meant = near(name, known)
        return f"{shown(name)[1:-1]}{f'; did you mean {meant}?' if meant else ''}"


def whole(least: int, most: int) -> Callable[[str], int]:
    """What argparse calls to read a whole number between two limits."""
    return _within(int, "a whole number", least, most)


def number(least: float, most: float) -> Callable[[str], float]:
    return _within(float, "a number", least, most)


def a_folder(path: Path, name: str) -> Path:
    """Where a command puts several files: that there is a file in its place is told before anything is run."""
    there = next((place for place in (path, *path.parents) if place.exists()), path)
    if there.is_file():
        raise UserError(f"{name} {there} is a file: give a folder, which gets several files")
    return path


def _within(kind: Callable[[str], Any], words: str, least: float, most: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {words}") from None
        if not least <= value <= most:  # NaN is neither
            raise argparse.ArgumentTypeError(f"{shown(text)[1:-1]} must be at least {least:,} and at most {most:,}")
        return value

    return read
