"""Grid files: what does not fit on a line, in TOML, read without trust."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protocore.bench.cells.cell import Cell, product, unique
from protocore.config import MOST_CONFIG, SIZES
from protocore.errors import UserError, shown
from protocore.files import read_bytes
from protocore.schema import LARGEST
from protocore.seeds import parse_seeds

GRID = "grid"
LISTS = {"methods": "method", "benchmarks": "benchmark"}
EXAMPLES = {"methods": "er", "benchmarks": "digits"}
MOST_VALUES = 1000  # of a list
_SINGULAR = {"method": "methods", "benchmark": "benchmarks", "seed": "seeds"}


def read_grid(path: Path, *, seeds: Sequence[int] | None = None, more: Mapping[str, Any] | None = None) -> list[Cell]:
    """The cells of a grid file; `seeds` take the place of its own, and the flags of `more` win over its settings."""
    try:
        table = _read(path)
        entries = table.pop(GRID, None)
        if entries is None:
            entries = [{}]
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise UserError("`grid` is not a list of tables; write [[grid]] above each")
        cells: list[Cell] = []
        for number, entry in enumerate(entries, 1):
            try:
                cells += _cells({**_plain(table), **_plain(entry)}, seeds, more or {})
            except UserError as error:
                raise UserError(f"entry {number}: {error}" if len(entries) > 1 else error) from None
    except UserError as error:
        text = str(error)
        raise UserError(f"--grid {text}" if text.startswith(str(path)) else f"--grid {path}: {text}") from None
    return unique(cells)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_bytes(path, MOST_CONFIG).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot be read ({error}); save it as UTF-8") from None
    if any(line.count(".") > 64 or line.count("[") > 64 for line in text.splitlines()):
        raise UserError("has a line of more than 64 dots or brackets; write `setting = value` lines")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid TOML ({shown(str(error), 200)})") from None


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _cells(entry: dict[str, Any], seeds: Sequence[int] | None, more: Mapping[str, Any]) -> list[Cell]:
    for key, meant in _SINGULAR.items():
        if key in entry:
            raise UserError(f"`{key}` is not a key of a grid; write `{meant} = [...]`")
    label = entry.pop("name", None)
    if label is not None and not isinstance(label, str):
        raise UserError(f"name {shown(label)} is not a text such as \"{{method}}-{{spc}}\"")
    own = entry.pop("seeds", [0])
    given = {LISTS.get(key, key): _values(key, value) for key, value in entry.items()}
    for key, word in LISTS.items():
        if word not in given:
            raise UserError(f"`{key}` is missing; write for example {key} = [\"{EXAMPLES[key]}\"]")
    given |= {key: [value] for key, value in more.items()}
    sizes = [{name: value} for name in SIZES for value in given.pop(name, ())] or [{}]
    if sum(name in entry for name in SIZES) > 1:
        raise UserError(f"says how much is kept in several ways; give one of {', '.join(SIZES)}")
    axes = {key: values for key, values in given.items() if len(values) > 1 or key in LISTS.values()}
    fixed = {key: values[0] for key, values in given.items() if key not in axes}
    return product(axes, sizes, _seeds(own) if seeds is None else seeds, fixed, label)


def _values(key: str, value: Any) -> list[Any]:
    """A list stays one, a word or number becomes one; nothing else has a meaning here."""
    values = value if isinstance(value, list) else [value]
    if not values or len(values) > MOST_VALUES:
        raise UserError(f"`{key}` has {len(values):,} values; give 1 to {MOST_VALUES:,}")
    for one in values:
        if not isinstance(one, str | int | float) or (isinstance(one, int) and abs(one) >= LARGEST):
            raise UserError(f"`{key}` has {shown(one)} where a text, a number, true or false belongs")
        if key in LISTS and not isinstance(one, str):
            raise UserError(f"`{key}` has {shown(one)} where a name belongs")
    return values


def _seeds(value: Any) -> list[int]:
    """A number, a list of them, or a text such as "0..4"."""
    if isinstance(value, str):
        return parse_seeds(value)
    values = value if isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**63:
            raise UserError(f"seeds has {shown(one)}, which is no seed; write for example seeds = [0, 1] or \"0..4\"")
    return parse_seeds(",".join(map(str, values))) if values else _none()


def _none() -> list[int]:
    raise UserError("seeds is empty; write for example seeds = [0, 1] or \"0..4\"")
