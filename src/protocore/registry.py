"""Tables of things with names, which other packages add to: methods, codecs, backbones, benchmarks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from protocore.errors import UserError, shown

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to things of one kind; what ships with the package comes first.

    Others add to it with `register`, or by an entry point of the group `protocore.KINDs` in their own package, whose
    module is imported when the table is first asked for a name that is not there, or is listed.
    """

    def __init__(self, kind: str, things: Iterable[tuple[str, T]] = ()) -> None:
        self.kind = kind
        self._things: dict[str, T] = dict(things)
        self._asked = False

    def register(self, name: str, thing: T, *, replace: bool = False) -> T:
        """Add a thing under a name that is free; `replace` takes the place of another one."""
        if not _NAME.fullmatch(name):
            raise UserError(f"{shown(name)} is no name for a {self.kind}: letters, digits, '_', '.', '+' and '-'")
        there = self._things.get(name)
        if there is not None and there is not thing and not replace:
            raise UserError(f"there is a {self.kind} named {name!r} already; choose another name, or say replace=True")
        self._things[name] = thing
        return thing

    def named(self, name: str, more: str = "") -> T:
        """The thing of this name, or an error that names what is near and what is known."""
        if name in self:
            return self._things[name]
        hint = near(name, self)
        known = ", ".join([*self, *([more] if more else [])])
        raise UserError(f"unknown {self.kind} {shown(name)}{f'; did you mean {hint}?' if hint else ''} "
                        f"(known: {known})")

    def _load(self) -> None:
        """Whatever installed packages announce, once; one that cannot be imported is named."""
        if self._asked:
            return
        self._asked = True
        for point in entry_points(group=f"protocore.{self.kind}s"):
            try:
                thing = point.load()
            except Exception as error:  # somebody else's module: anything can go wrong in it
                raise UserError(f"the {self.kind} {point.name!r} of an installed package cannot be imported "
                                f"({type(error).__name__}: {error}); mend or uninstall that package") from error
            self.register(point.name, thing)

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            self._load()
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._things:
            self._load()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._things)

    def __len__(self) -> int:
        self._load()
        return len(self._things)


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant: one that begins so, else one spelled much like it."""
    words = list(known)
    begins = [w for w in words if word and w.startswith(word)]
    return min(begins, key=len) if begins else next(iter(difflib.get_close_matches(word, words, n=1)), None)

