"""One run of a grid: its flags, its name, the folder that its configuration gives it, and what lies there."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from protocore.bench.labels import meaningless
from protocore.config import SIZES, Resolved, Settings, flag, plural
from protocore.data.benchmarks import open_stream
from protocore.errors import UserError, shown
from protocore.methods import METHODS, method_named
from protocore.registry import near
from protocore.runs.configure import configure
from protocore.runs.folder import RunFolder, differences
from protocore.runs.result import Result

MOST_CELLS = 10_000  # of a grid
LONGEST = 120  # characters of a name
_WHERE = ("benchmark", "data_root", "image_size", "strict", "validate")  # what decides the pictures of a stream


@dataclass(frozen=True)
class Cell:
    """One run of a grid. `flags` are as `configure` takes them; `label` is what the grid calls it, without its seed."""

    flags: Mapping[str, Any]
    label: str = field(default="", compare=False)

    def __hash__(self) -> int:
        return hash(json.dumps(self.flags, sort_keys=True, default=str))

    @property
    def seed(self) -> int:
        return int(self.flags.get("seed") or 0)

    @property
    def name(self) -> str:
        """Short and readable; unique within a grid."""
        return f"{self.label or _label(self.flags, _said(self.flags))}-s{self.seed}"

    def config(self) -> Resolved:
        """Its settings, all of them; an error names the cell."""
        try:
            return configure(dict(self.flags))
        except UserError as error:
            raise type(error)(f"{self.name}: {error}") from None


def cells_of(methods: Sequence[str], benchmarks: Sequence[str], *, seeds: Sequence[int] = (0,),
             sizes: Sequence[Mapping[str, Any]] = ({},), fixed: Mapping[str, Any] | None = None) -> list[Cell]:
    """The product of methods, benchmarks, sizes and seeds, each with the `fixed` flags; seed by seed.

    A size is a mapping such as {"spc": 5}; a method without exemplars has one cell whatever the sizes. A fixed option
    goes to the methods that have it; where none has it, it is an error.
    """
    fixed = {key.replace("-", "_"): value for key, value in (fixed or {}).items()}
    return product({"method": methods, "benchmark": benchmarks}, sizes, seeds, fixed)


def product(axes: Mapping[str, Sequence[Any]], sizes: Sequence[Mapping[str, Any]], seeds: Sequence[int],
            fixed: Mapping[str, Any], label: str | None = None) -> list[Cell]:
    """Cells of any axes. `label` is a pattern such as "{method}-{spc}"; without one, what varies is in the names."""
    count = len(sizes) * len(seeds)
    for values in axes.values():
        count *= len(values)
    if count > MOST_CELLS:
        raise UserError(f"{count:,} cells are more than {plural(MOST_CELLS, 'cell')} of one grid; give fewer methods, "
                        "benchmarks, sizes or seeds")
    options = {name: _options(name) for name in axes["method"]}
    every = set().union(*options.values())
    _check_known([*fixed, *axes], options)
    varied = [name for name, values in axes.items() if len(values) > 1 or name == "method"]
    found: dict[Cell, None] = {}
    for seed in seeds:
        for values in itertools.product(*axes.values()):
            mine = dict(zip(axes, values, strict=True))
            method = str(mine["method"])
            aside = {*(every - options[method]), *meaningless(method_named(method))}
            for size in [size for size in sizes if not aside & size.keys()] or [{}]:
                flags = {k: v for k, v in {**mine, **fixed, **size}.items() if k not in aside and v is not None}
                names = [*varied, *(SIZES if len(sizes) > 1 else ())]
                known = _filled(label, flags) if label else _label(flags, [n for n in names if n in flags])
                found.setdefault(Cell({**flags, "seed": seed}, known))
    return list(found)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, the first of its kind, and a name of its own: where two share one, flags set them apart."""
    cells = list(dict.fromkeys(cells))
    count: dict[str, int] = {}
    for cell in cells:
        count[cell.name] = count.get(cell.name, 0) + 1
    return [cell if count[cell.name] == 1 else replace(cell, label=_label(cell.flags, _said(cell.flags)))
            for cell in cells]


def run_folder(cell: Cell, runs: Path) -> RunFolder:
    return RunFolder.of(runs, cell.config())


def folder_of(cell: Cell, runs: Path) -> Path:
    """Where its run lies: by the content of its configuration, so that grids share the cells that they share."""
    return run_folder(cell, runs).path


def stored(cell: Cell, runs: Path) -> Result | None:
    """The finished result of this cell, if it is there, whole, and of the data that are here."""
    config = cell.config()
    result = RunFolder.of(runs, config).finished()
    if result is None or differences(asdict(result), config):
        return None
    digest = data_of(config)
    return result if digest is None or result.data_digest in (None, digest) else None


def data_of(config: Resolved) -> str | None:
    """The digest of its data; None where they are not on this machine."""
    return _digest(*(getattr(config.settings, name) for name in _WHERE))


@functools.lru_cache(maxsize=64)
def _digest(*where: Any) -> str | None:
    try:
        return open_stream(Settings(**dict(zip(_WHERE, where, strict=True)))).digest
    except UserError:
        return None


def _options(method: str) -> set[str]:
    return {f.name for f in fields(method_named(method).Options)}


def _check_known(names: Sequence[str], options: Mapping[str, set[str]]) -> None:
    known = {f.name for f in fields(Settings)}.union(*options.values())
    for name in names:
        if name in known:
            continue
        owners = [other for other in METHODS if name in _options(other)]
        meant = near(name, known)
        way = f"it is one of {', '.join(owners)}" if owners else f"did you mean {flag(meant)}?" if meant else \
            "`protocore run METHOD --help` names those that there are"
        raise UserError(f"{shown(flag(name))[1:-1]} is not an option of {', '.join(options)}; {way}")


def _said(flags: Mapping[str, Any]) -> list[str]:
    """What the flags say, the seed and the places of the machine aside."""
    return ["method", *(k for k in flags if k not in ("method", "seed", "data_root", "threads"))]


def _label(flags: Mapping[str, Any], names: Sequence[str]) -> str:
    words = []
    for name in dict.fromkeys(names):
        value = flags.get(name, "protocore" if name == "method" else None)
        words.append(str(value) if name in ("method", "benchmark") else f"{name.replace('_', '-')}-{value}")
    return _safe("-".join(words))


def _filled(pattern: str, flags: Mapping[str, Any]) -> str:
    """The pattern with `{setting}` as the flags have it."""
    def value(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        if name not in flags:
            raise UserError(f"the name {pattern!r} asks for {{{match[1]}}}, which this grid does not set")
        return str(flags[name])

    return _safe(re.sub(r"\{([A-Za-z][A-Za-z_-]*)\}", value, pattern))


def _safe(text: str) -> str:
    """As a part of the name of a file; what is cut off a long one is in a few digits at its end."""
    name = re.sub(r"[^A-Za-z0-9._+-]+", "_", text).lstrip(".") or "_"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
