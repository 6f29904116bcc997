"""Errors in the words of Python: what the command line calls `--budget 64KB` is `budget=64KB` to a caller."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

from protocore.config import Settings, kind_of
from protocore.errors import UserError

_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
                   r"(?: ([A-Z]+\b|'[^']*'|[0-9][^\s;)]*[^\s;,.:)]|[0-9]|[a-z]+))?")


def in_python(text: str, options: type | None = None) -> str:
    """The text with every flag written as an argument; a word behind one is its value if it can be."""
    known = {f.name: (kind_of(cls, f.name)[0], f.metadata.get("choices", ()))
             for cls in (Settings, options) if cls is not None for f in dataclasses.fields(cls)}

    def argument(found: re.Match[str]) -> str:
        name, value = found[2].replace("-", "_"), found[3] or ""
        kind, choices = known.get(name, (str, ()))
        behind = f" {value}" if value else ""
        if kind is bool:
            return f"{name}={not found[1]}{behind}"
        return f"{name}={value}" if value in choices or (value and not re.fullmatch("[a-z]+", value)) else name + behind

    return _FLAG.sub(argument, text)


@contextmanager
def python_words(wanted: bool, options: type | None = None) -> Iterator[None]:
    """Errors inside the block speak of arguments, if that is wanted."""
    try:
        yield
    except UserError as error:
        if not wanted:
            raise
        raise type(error)(in_python(str(error), options)) from error.__cause__
