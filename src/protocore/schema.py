"""JSON of any origin, read field by field: each is of the kind that is asked for, or an error says which is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from protocore.errors import DataError, printable, shown

T = TypeVar("T")
Scalar = str | int | float | bool | None
LARGEST = 2**63  # no count, size or label of ours is larger
LONGEST_TEXT = 100_000  # characters of a text that is taken over


class Fields:
    """A JSON object. `name` is the file and `way_out` what the user can do, for the errors.

    Texts are made printable as they are read: what comes from a file may be shown in a terminal.
    """

    def __init__(self, value: Any, name: object, way_out: str, where: str = "") -> None:
        self.name, self.way_out, self.where = name, way_out, where
        if not isinstance(value, dict):
            self.refuse(where.rstrip(".") or "the file", "an object", value)
        self.values: dict[str, Any] = value

    def refuse(self, what: str, wanted: str, met: Any) -> NoReturn:
        raise DataError(f"{self.name}: damaged, {what} is {shown(met)} where {wanted} belongs; {self.way_out}")

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise DataError(f"{self.name}: damaged, {self.where}{key} is missing; {self.way_out}")
        return self.values[key]

    def _of(self, key: str, wanted: str, holds: Callable[[Any], bool]) -> Any:
        value = self.get(key)
        if not holds(value):
            self.refuse(f"{self.where}{key}", wanted, value)
        return value

    def _list(self, key: str, wanted: str, holds: Callable[[Any], bool]) -> list[Any]:
        return self._of(key, wanted, lambda value: isinstance(value, list) and all(map(holds, value)))

    def fields(self, key: str) -> Fields:
        return Fields(self.get(key), self.name, self.way_out, f"{self.where}{key}.")

    def whole(self, key: str) -> int:
        """A whole number from 0."""
        return self._of(key, "a whole number from 0", is_whole)

    def number(self, key: str) -> float:
        return float(self._of(key, "a number", is_number))

    def text(self, key: str) -> str:
        return plain(self._of(key, "a text", lambda value: isinstance(value, str)))

    def truth(self, key: str) -> bool:
        return self._of(key, "true or false", lambda value: isinstance(value, bool))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        rows = self._of(key, "a list", lambda value: isinstance(value, list))
        return [Fields(row, self.name, self.way_out, f"{self.where}{key}[{i}].") for i, row in enumerate(rows)]

    def wholes(self, key: str) -> list[int]:
        return self._list(key, "a list of whole numbers from 0", is_whole)

    def numbers(self, key: str) -> list[float]:
        return [float(value) for value in self._list(key, "a list of numbers", is_number)]

    def texts(self, key: str) -> list[str]:
        return [plain(value) for value in self._list(key, "a list of texts", lambda v: isinstance(v, str))]

    def labels(self, key: str) -> list[Scalar]:
        """A list of texts, numbers, true, false and null, exactly as they were written: names of classes."""
        return self._list(key, "a list of labels", is_scalar)

    def matrix(self, key: str) -> list[list[float]]:
        """Rows of numbers, none of them empty."""
        rows = self._list(key, "a list of rows of numbers",
                          lambda row: isinstance(row, list) and bool(row) and all(map(is_number, row)))
        if not rows:
            self.refuse(f"{self.where}{key}", "a list of rows of numbers", rows)
        return [[float(value) for value in row] for row in rows]

    def number_table(self, key: str) -> dict[str, float]:
        """An object of numbers."""
        table = self.fields(key)
        return {plain(name): table.number(name) for name in table.values}

    def scalars(self, key: str) -> dict[str, Scalar]:
        """An object of texts, numbers, true, false and null: settings."""
        table = self.fields(key)
        return {plain(name): table.scalar(name) for name in table.values}

    def scalar(self, key: str) -> Scalar:
        value = self._of(key, "a text, a number, true, false or null", is_scalar)
        return plain(value) if isinstance(value, str) else value

    def maybe(self, read: Callable[[str], T], key: str, default: T) -> T:
        """`read(key)`, or the default where the field is not there or null: what older files did not have."""
        return default if self.values.get(key) is None else read(key)


def plain(text: str) -> str:
    """A text of a file as it may be shown and kept."""
    return printable(text, LONGEST_TEXT)


def is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or is_number(value)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
