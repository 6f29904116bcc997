"""Errors a user can act on. The command line prints them without a traceback and exits with 2.

Whatever a message quotes may come from a hostile file: `UserError` makes every message printable and cuts it short,
and `shown` quotes a single value without ever building its whole text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

LONGEST_MESSAGE = 4000  # characters
LONGEST_VALUE = 80
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, direction marks, surrogates, line separators
_JOINERS = "\u200c\u200d"  # they are part of emoji and of several scripts, and draw nothing by themselves


def printable(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """The text with everything that could steer a terminal written as an escape, cut short in the middle."""
    if len(text) > longest:
        text = f"{text[: longest * 2 // 3]}…{text[-longest // 4 :]}"
    return "".join(c if c == "\n" or c in _JOINERS or unicodedata.category(c) not in _HIDDEN else
                   c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text)


def shown(value: Any, longest: int = LONGEST_VALUE) -> str:
    """A value of any kind and size as a quotation: printable, at most about `longest` characters, made at once."""
    return printable(_quoted(value, longest, depth=0), longest).replace("\n", "\\n")


def _quoted(value: Any, longest: int, depth: int) -> str:
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= longest else repr(value[:longest]) + "…"
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return repr(value)
    if isinstance(value, int):  # Python refuses to write out numbers of more than some thousand digits
        bits = value.bit_length()
        return repr(value) if bits < 256 else f"a whole number of {bits:,} bits"
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        kind = "{}" if isinstance(value, Mapping | set | frozenset) else "()" if isinstance(value, tuple) else "[]"
        if depth == 2 and len(value):
            return f"{kind[0]}…{kind[1]}"
        parts = []
        for item in value:
            if len(parts) == 4 or sum(map(len, parts)) > longest:
                parts.append("…")
                break
            text = _quoted(item, longest, depth + 1)
            parts.append(f"{text}: {_quoted(value[item], longest, depth + 1)}" if isinstance(value, Mapping) else text)
        return kind[0] + ", ".join(parts) + kind[1]
    return f"a {type(value).__name__}"


class UserError(Exception):
    """A mistake of the caller: the message names the flag or file, the value met, and the way out."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(str(message)))


class DataError(UserError):
    """A data set that is missing, damaged, or not what its name says."""


class BudgetError(UserError):
    """The next class does not fit into the bytes that were given."""


class HeldError(UserError):
    """Another process is working in this folder."""


class LostError(UserError):
    """Another process of this run is gone; `aloud` in the one that noticed first, which is to say so."""

    def __init__(self, message: object = "", *, aloud: bool = True) -> None:
        super().__init__(message)
        self.aloud = aloud


class SealError(RuntimeError):
    """A method touched the data of a task after that task was closed."""
