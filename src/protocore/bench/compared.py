"""Runs from anywhere, ready to be compared: those of one protocol together, and the seeds of one kind in a group."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from protocore.bench.labels import run_labels
from protocore.config import plural
from protocore.errors import DataError, UserError, printable
from protocore.files import MOST_JSON, parse_json, read_bytes
from protocore.memory.ledger import HEADER
from protocore.methods import METHODS
from protocore.runs.folder import BESIDE_THE_POINT
from protocore.runs.result import RESULT, Result, result_of

MOST_RUNS = 2000
MOST_CLASSES = 10**7
DEEPEST = 4  # folders within folders
NOT_RESULTS = ("config.json", "health.json")
OF_A_SEED = ("seed", "class_order")  # runs that differ in these repeat each other
SIZES = ("spc", "capacity", "budget")  # runs that differ in these are points of one line


@dataclass(frozen=True)
class Run:
    """A finished run: what it left, in which file, and its folder where that is there."""

    result: Result
    file: Path
    sha256: str
    folder: Path | None = None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the seeds of a group."""

    mean: float
    deviation: float | None  # None: one value says nothing of it
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.1f} ± {self.deviation:.1f}"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed (and the class order that comes with it) only."""

    label: str
    line: str  # the memory that it is a size of
    runs: tuple[Run, ...]

    @property
    def results(self) -> list[Result]:
        return [run.result for run in self.runs]

    @property
    def first(self) -> Result:
        return self.runs[0].result

    @property
    def is_level(self) -> bool:
        """It saw all the data, or its memory is an empty file: a level to hold the others against, of no size."""
        return self.first.saw_everything or not any(e.kind != "header" and e.name != HEADER and not e.shared
                                                    for e in self.first.ledger.entries)

    @property
    def accuracy(self) -> Spread:
        found = self.over_seeds(lambda r: r.class_incremental.A_T)
        assert found is not None
        return found

    def over_seeds(self, value: Callable[[Result], float | None]) -> Spread | None:
        """Of the runs that have the value."""
        return Spread.of([v for r in self.results if (v := value(r)) is not None])

    def bytes(self, *, decoder: bool = False) -> float:
        """Bytes kept, the mean over the seeds; with the decoder that all classes share, or without."""
        return statistics.fmean(r.bytes_kept + decoder * r.decoder_bytes for r in self.results)


@dataclass(frozen=True)
class Protocol:
    """What runs must share to be held against each other: the data, how they are cut, and the preset."""

    name: str
    groups: tuple[Group, ...]

    @property
    def rivals(self) -> list[Group]:
        return [g for g in self.groups if not g.is_level]

    @property
    def levels(self) -> list[Group]:
        return [g for g in self.groups if g.is_level]

    @property
    def first(self) -> Result:
        return self.groups[0].first


def gather(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The finished runs in these run folders, folders of runs and result files; and what was left out, in words."""
    runs: dict[str, Run] = {}
    left_out: list[str] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: there is no such run; give a run's folder, a folder of runs, or a result file")
        found = _within(path, left_out, DEEPEST) if path.is_dir() and not (path / RESULT).exists() else [_read(path)]
        for run in found:
            runs.setdefault(run.sha256, run)  # given twice, it counts once
        if len(runs) > MOST_RUNS:
            raise UserError(f"{path}: more than {MOST_RUNS:,} runs; give fewer folders")
    if not runs:
        said = f" ({'; '.join(left_out[:3])})" if left_out else ""
        raise UserError(f"no finished run found{said}; `protocore run` makes one, or give the folder of one")
    once, again = _once(runs.values())
    return once, left_out + again


def _once(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """Runs of the same settings, seed and data are one, however often it was made: a seed counts once. The one with its
    folder stays, else the first; where the numbers are others, the one that is left out is named.
    """
    same: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        r = run.result
        same.setdefault((_protocol(r), _kind(r), *(r.settings[name] for name in OF_A_SEED)), []).append(run)
    once, again = [], []
    for made in same.values():
        stays = next((run for run in made if run.folder), made[0])
        once.append(stays)
        there, scores = stays.folder or stays.file, stays.result.class_incremental
        again += [printable(f"{run.folder or run.file}: the same settings, seed and data as {there} (A_T "
                            f"{run.result.class_incremental.A_T:.1f} here, {scores.A_T:.1f} there); a seed counts once",
                            400)
                  for run in made if run is not stays and run.result.class_incremental.R != scores.R]
    return once, again


def below(folder: Path) -> tuple[list[Run], list[str]]:
    """The same of one folder, which may hold none, or not be there."""
    left_out: list[str] = []
    return (_within(folder, left_out, DEEPEST) if folder.is_dir() else []), left_out


def _read(path: Path) -> Run:
    file = path / RESULT if path.is_dir() else path
    data = read_bytes(file, MOST_JSON)
    result = _sound(result_of(parse_json(data, file), file), file)
    folder = file.parent if file.name == RESULT else None
    return Run(result, file, hashlib.sha256(data).hexdigest(), folder)


def _sound(result: Result, file: Path) -> Result:
    """The result, if its numbers can be compared: accuracies are percentages, of as many tasks as it says."""
    for scores in (result.class_incremental, result.task_incremental):
        means = (v for v in (scores.A_T, scores.A_L, scores.A_mean) if v is not None)
        told = [*means, *(v for row in scores.R for v in row)]
        lengths = [len(row) for row in scores.R]
        if not all(0 <= v <= 100.001 for v in told) or lengths[-1] != result.tasks or max(lengths) > result.tasks:
            raise DataError(f"{file}: damaged, its accuracies are not percentages of {plural(result.tasks, 'task')}; "
                            "run it again or restore the file")
    costs = [*result.seconds.values(), result.images_per_second]
    if not all(0 <= v < 1e12 for v in costs) or result.classes > MOST_CLASSES:
        raise DataError(f"{file}: damaged, its costs or its number of classes cannot be; run it again or restore the "
                        "file")
    return result


def _within(folder: Path, left_out: list[str], deeper: int) -> list[Run]:
    """Runs and stored results below a folder. Other JSON files are none of ours; a damaged result is left out."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if (path / RESULT).exists():
                _take(path, found, left_out)
            elif (path / "config.json").exists():
                left_out.append(printable(f"{path.name}: not finished"))
            elif deeper:
                found += _within(path, left_out, deeper - 1)
        elif path.suffix == ".json" and path.name not in NOT_RESULTS and path.is_file() and _looks_like_one(path):
            _take(path, found, left_out)
    return found


def _take(path: Path, found: list[Run], left_out: list[str]) -> None:
    try:
        found.append(_read(path))
    except DataError as error:
        left_out.append(printable(str(error), 400))


def _looks_like_one(path: Path) -> bool:
    try:
        document = parse_json(read_bytes(path, MOST_JSON), path)
    except DataError:
        return True  # reading it again says what is wrong
    return isinstance(document, dict) and "class_incremental" in document


def protocols(runs: Sequence[Run]) -> list[Protocol]:
    """The runs by protocol, in the order in which they came."""
    parts: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        parts.setdefault(_protocol(run.result), []).append(run)
    firsts = [part[0].result for part in parts.values()]
    return [Protocol(name, _groups(part)) for name, part in zip(_apart(firsts), parts.values(), strict=True)]


def _apart(firsts: Sequence[Result]) -> list[str]:
    """A name a protocol; those of one name have with it what sets them apart, and nothing else."""
    short = [_name(r) for r in firsts]
    names = []
    for name, r in zip(short, firsts, strict=True):
        words = [_more(other) for other, same in zip(firsts, short, strict=True) if same == name]
        telling: list[int] = []
        for k in range(len(words[0])):  # what sets apart more of them than those before it
            before, after = ({tuple(w[i] for i in chosen) for w in words} for chosen in (telling, [*telling, k]))
            if len(after) > len(before):
                telling.append(k)
        names.append(", ".join([name, *filter(None, (_more(r)[k] for k in telling))]))
    return [name if names.count(name) == 1 else f"{name} #{names[:i].count(name) + 1}" for i, name in enumerate(names)]


def _protocol(r: Result) -> tuple[object, ...]:
    same = ("benchmark", "preset", "online", "blurry", "images_per_class", "classes_per_task", "image_size")
    return (*(r.settings[name] for name in same), r.tasks, r.classes, r.data_digest)


def _name(r: Result) -> str:
    s = r.settings
    words = [r.benchmark, f"preset {s['preset']}" if s["preset"] != "default" else "", "online" if s["online"] else "",
             "validation images" if s.get("validate") else ""]
    return ", ".join(filter(None, words))


def _more(r: Result) -> tuple[str, ...]:
    """What may set apart two protocols of one name, a word for each."""
    def given(name: str, words: str) -> str:
        value = r.settings.get(name)
        return words.format(value) if value else ""

    return (plural(r.tasks, "task"), plural(r.classes, "class"), given("images_per_class", "{} images a class"),
            given("image_size", "{0} x {0} pixels"), given("classes_per_task", "{} classes a task"),
            given("blurry", "blurry {}"), f"data {r.data_digest[:8]}" if r.data_digest else "data not known")


def _groups(runs: Sequence[Run]) -> tuple[Group, ...]:
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(_kind(run.result), []).append(run)
    parts = [sorted(part, key=lambda run: run.result.settings["seed"]) for part in kinds.values()]
    names = _names([_alike(part[0].result) for part in parts])
    lines = _names([_sizeless(part[0].result) for part in parts])
    return tuple(Group(name, line, tuple(part)) for name, line, part in zip(names, lines, parts, strict=True))


def _names(results: list[Result]) -> list[str]:
    """Labels; equal results have equal ones, and different results never."""
    kinds = list({_kind(r): r for r in results}.values())
    labels = run_labels(kinds)
    known = {_kind(r): label if labels.count(label) == 1 else f"{label} #{labels[:i].count(label) + 1}"
             for i, (r, label) in enumerate(zip(kinds, labels, strict=True))}
    return [known[_kind(r)] for r in results]


def _kind(r: Result) -> str:
    """What makes a run another one than that of another seed; an option that an older version did not have is as the
    preset has it now."""
    method = METHODS.get(r.method)
    known = {} if method is None else {f.name: f.default for f in fields(method.Options)}
    preset = {} if method is None else method.presets.get(r.settings.get("preset", "default"), {})
    now = known | {k: v for k, v in preset.items() if k in known}
    values = {k: v for k, v in {**now, **r.settings, **r.options}.items() if k not in (*BESIDE_THE_POINT, *OF_A_SEED)}
    return repr(sorted(values.items(), key=lambda item: item[0]))


def _alike(r: Result) -> Result:
    return replace(r, settings={**r.settings, **dict.fromkeys(OF_A_SEED)})


def _sizeless(r: Result) -> Result:
    """The memory without its size: how much is stored, and at which rate the codec codes."""
    codec = str(r.settings["codec"]).partition(":")[0]
    return replace(_alike(r), settings={**r.settings, **dict.fromkeys((*OF_A_SEED, *SIZES)), "codec": codec})
