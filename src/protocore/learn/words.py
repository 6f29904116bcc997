"""Errors in the words of Python: what the command line calls `--budget 64KB` is `budget=64KB` to a caller."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager

from protocore.config import Settings, kind_of
from protocore.errors import UserError

_FLAG = re.compile(r"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?: ([A-Z]+\b|'[^']*'|[0-9][^\s;)]*[^\s;,.:)]|[0-9]))?")


def in_python(text: str, options: type | None = None) -> str:
    """The text with every flag of `Settings` and of the method's options written as an argument."""
    classes = [cls for cls in (Settings, options) if cls is not None]
    kinds = {f.name: kind_of(cls, f.name)[0] for cls in classes for f in dataclasses.fields(cls)}

    def argument(found: re.Match[str]) -> str:
        negated, name, value = found[1], found[2].replace("-", "_"), found[3]
        if name not in kinds:
            return found[0]
        if kinds[name] is bool:
            return f"{name}={not negated}" + (f" {value}" if value else "")
        return f"{name}={value}" if value else name

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
