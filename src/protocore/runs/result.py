"""What a run left behind, typed: written as JSON, and read again with a schema, whoever wrote the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocore.config import Settings, convert
from protocore.errors import DataError, UserError, shown
from protocore.files import read_json
from protocore.learn.metrics import METRICS, Matrix, final_accuracy, forward_transfer
from protocore.memory.ledger import Entry, Ledger
from protocore.schema import Fields, Scalar, plain

RESULT = "result.json"
FORMAT = 1
LONG_LIST = 20  # class names: more of them are not kept in the small form
_WAY_OUT = "run it again or restore the file"
_OPTIONAL = ("weights", "training_pictures", "wall_seconds", "device_memory_bytes", "energy_joules", "steps", "flops")


@dataclass(frozen=True)
class Scores:
    """Accuracies in percent: R[i][j] on task j's classes after task i, and what is read off them."""

    R: Matrix
    A_T: float
    A_L: float | None = None
    A_mean: float | None = None
    forgetting: float | None = None
    more: Mapping[str, float | None] = field(default_factory=dict)  # metrics that others have registered
    # Where it was asked for: accuracy on tasks 2, 3... right before each was learned, and of an untrained network.
    forward_transfer: float | None = None
    ahead: Sequence[float] = ()
    untrained: Sequence[float] = ()

    @classmethod
    def of(cls, r: Matrix, ahead: Sequence[float] = (), untrained: Sequence[float] = ()) -> Scores:
        found = {name: metric(r) for name, metric in METRICS.items()}
        own = {name: found.pop(name) for name in ("A_L", "A_mean", "forgetting")}
        del found["A_T"]
        return cls(r, final_accuracy(r), **own, more=found, forward_transfer=forward_transfer(ahead, untrained),
                   ahead=ahead, untrained=untrained)


@dataclass(frozen=True)
class Result:
    """A finished run. `settings`, `options` and `sources` are those of its configuration, by name."""

    command: str
    settings: Mapping[str, Any]
    options: Mapping[str, Scalar]
    sources: Mapping[str, str]
    tasks: int
    classes: int
    class_incremental: Scores
    task_incremental: Scores
    ledger: Ledger
    seconds: Mapping[str, float]
    class_names: Sequence[str] = ()  # empty in the small form of many classes
    per_class: Sequence[Mapping[str, float]] = ()
    data_digest: str | None = None
    weights: str | None = None  # sha256 of those that the network began with, where it was trained before
    training_pictures: int | None = None  # of all tasks together; what an older version did not say is not there
    code_version: str = ""
    machine: Mapping[str, Scalar] = field(default_factory=dict)
    decoder_pays_from: int | None = None  # classes from which the codec's shared bytes are less than what it saves
    bytes_after_each_task: Sequence[int] = ()
    images_per_second: float = 0.0
    peak_memory_bytes: int = 0
    resident_after_each_task: Sequence[int] = ()
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # sha256 of what was written beside it, by name
    # Costs; what the machine does not tell, or an older version did not measure, is not in the file.
    wall_seconds: float | None = None
    device_memory_bytes: int | None = None  # the most that was allocated on the GPU
    energy_joules: Mapping[str, float] | None = None  # of the whole package, dram or gpu while it ran
    steps: int | None = None  # of training
    flops: Mapping[str, float] = field(default_factory=dict)  # step, learn (all steps), predict (one picture)

    @property
    def method(self) -> str:
        return self.settings["method"]

    @property
    def benchmark(self) -> str:
        return self.settings["benchmark"]

    @property
    def bytes_kept(self) -> int:
        return self.ledger.total

    @property
    def saw_everything(self) -> bool:
        """An upper bound such as `joint`, which is measured once, after all the data."""
        return len(self.class_incremental.R) < self.tasks

    @property
    def keeps_nothing(self) -> bool:
        """A memory file that is a header and nothing else, and nothing beside it."""
        return sum(e.rows for e in self.ledger.entries) <= 1

    @property
    def decoder_bytes(self) -> int:
        """Bytes kept once for any number of classes, beside the memory."""
        return sum(e.bytes for e in self.ledger.entries if e.kind == "decoder")

    @property
    def exemplars(self) -> dict[str, int]:
        """How many exemplars are kept, by what they are: synthetic, coded (a compressed real picture) or real."""
        found: dict[str, int] = {}
        for e in self.ledger.entries:
            if e.kind == "exemplars" and e.name.endswith("/labels"):
                found[e.origin or "real"] = found.get(e.origin or "real", 0) + e.rows
        return found

    @property
    def threads(self) -> int | None:
        threads = self.machine.get("threads")
        return threads if isinstance(threads, int) else None

    @property
    def processes(self) -> int:
        """How many learned it together."""
        processes = self.machine.get("processes")
        return processes if isinstance(processes, int) and not isinstance(processes, bool) else 1

    @property
    def precision(self) -> str | None:
        """In which numbers it was computed; None where an old result does not say."""
        precision = self.machine.get("precision")
        return precision if isinstance(precision, str) else None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(self)}
        for name in _OPTIONAL:
            if not document[name]:
                del document[name]
        for scores in (document["class_incremental"], document["task_incremental"]):
            if not self.class_incremental.untrained:
                for name in ("forward_transfer", "ahead", "untrained"):
                    del scores[name]
        document["ledger"] = self.ledger.to_json()
        document["bytes_kept"] = self.bytes_kept
        return document

    def small(self) -> dict[str, Any]:
        """The compact form for a repository: no accuracy by class, no long lists of names, no path of the machine."""
        full = self.to_json()
        left_out = ("per_class", "settings", "options", "files")
        kept = {k: _rounded(v) for k, v in full.items() if k not in left_out}
        if len(self.class_names) > LONG_LIST:
            del kept["class_names"]
        kept["sources"] = {k: v for k, v in self.sources.items() if v != "default" and k != "data_root"}
        # Not rounded: a learning rate of 0.0001 must survive.
        kept["settings"] = {k: v for k, v in self.settings.items() if k != "data_root"}
        kept["options"] = dict(self.options)
        return {k: kept[k] for k in full if k in kept}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value


def read_result(path: Path) -> Result:
    """What a finished run left: from its folder or from a result file, every field checked."""
    file = path / RESULT if path.is_dir() else path
    if not file.exists():
        raise DataError(_missing(path))
    return result_of(read_json(file), file)


def result_of(document: Any, name: object) -> Result:
    """A result of JSON from anywhere; `name` is what errors call it."""
    if not isinstance(document, dict) or "format" not in document:
        raise DataError(f"{name}: not the result of a run; give a run's folder or its {RESULT}")
    if document["format"] != FORMAT:
        raise DataError(f"{name}: has format {shown(document['format'])}, this protocore reads format {FORMAT}; "
                        "use the version that wrote it, or run it again")
    f = Fields(document, name, _WAY_OUT)
    names = f.maybe(f.texts, "class_names", [])
    settings = _settings(f)
    entries = [_entry(row, lossless=settings["codec"] == "pixels") for row in f.objects("ledger")]
    return Result(
        command=f.text("command"), settings=settings, options=f.scalars("options"),
        sources={key: str(value) for key, value in f.scalars("sources").items()}, tasks=f.whole("tasks"),
        classes=_classes(f, names),
        class_incremental=_scores(f, "class_incremental"), task_incremental=_scores(f, "task_incremental"),
        ledger=Ledger(tuple(entries)), seconds=f.number_table("seconds"), class_names=names,
        per_class=[{key: row.number(key) for key in row.values} for row in f.maybe(f.objects, "per_class", [])],
        data_digest=f.maybe(f.text, "data_digest", None), weights=f.maybe(f.text, "weights", None),
        training_pictures=f.maybe(f.whole, "training_pictures", None),
        code_version=f.maybe(f.text, "code_version", ""), machine=f.maybe(f.scalars, "machine", {}),
        decoder_pays_from=f.maybe(f.whole, "decoder_pays_from", None),
        bytes_after_each_task=f.maybe(f.wholes, "bytes_after_each_task", []),
        images_per_second=f.maybe(f.number, "images_per_second", 0.0),
        peak_memory_bytes=f.maybe(f.whole, "peak_memory_bytes", 0),
        resident_after_each_task=f.maybe(f.wholes, "resident_after_each_task", []),
        notes=f.maybe(f.texts, "notes", []),
        files={name: str(value) for name, value in f.maybe(f.scalars, "files", {}).items()},
        wall_seconds=f.maybe(f.number, "wall_seconds", None),
        device_memory_bytes=f.maybe(f.whole, "device_memory_bytes", None),
        energy_joules=f.maybe(f.number_table, "energy_joules", None), steps=f.maybe(f.whole, "steps", None),
        flops=f.maybe(f.number_table, "flops", {}))


def _missing(path: Path) -> str:
    if not path.is_dir():
        return f"{path}: there is no such run; give a run's folder or its {RESULT}"
    if (path / "checkpoint.safetensors").exists():
        return f"{path}: this run is not finished; give its `protocore run` command again and it goes on"
    return f"{path}: holds no {RESULT}, so no finished run; give the folder of one"


def _settings(f: Fields) -> dict[str, Any]:
    """The settings of the run, each of its kind; those that an older version did not have are at their default."""
    stored = f.scalars("settings")
    known = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name in ("method", "benchmark"):
        f.fields("settings").text(name)
    for name in known.keys() & stored.keys():
        try:
            stored[name] = convert(Settings, name, stored[name])
        except UserError as error:
            raise DataError(f"{f.name}: damaged, {error}; {_WAY_OUT}") from None
    return known | stored


def _scores(f: Fields, key: str) -> Scores:
    scores = f.fields(key)
    r = scores.matrix("R")
    own = {name: scores.maybe(scores.number, name, None) for name in ("A_L", "A_mean", "forgetting",
                                                                        "forward_transfer")}
    more = scores.fields("more") if "more" in scores.values else Fields({}, f.name, f.way_out)
    return Scores(r, scores.number("A_T"), **own,
                  more={plain(name): more.maybe(more.number, name, None) for name in more.values},
                  ahead=scores.maybe(scores.numbers, "ahead", []),
                  untrained=scores.maybe(scores.numbers, "untrained", []))


def _entry(row: Fields, *, lossless: bool) -> Entry:
    """A row of the ledger; where an older version did not say what it is, its name tells."""
    name, kind, origin = row.text("name"), row.maybe(row.text, "kind", ""), row.maybe(row.text, "origin", None)
    if not kind and "exemplars/" in name:
        kind, first = "exemplars", name.partition(" ")[0]
        origin = first if first in ("synthetic", "coded") else "real" if lossless else "coded"
    elif not kind and name.startswith("decoder"):
        kind = "decoder"
    return Entry(name, row.whole("bytes"), row.whole("rows"), row.truth("shared"), kind, origin)


def _classes(f: Fields, names: list[str]) -> int:
    classes = f.maybe(f.whole, "classes", len(names))
    if not classes or not f.whole("tasks"):
        f.refuse("classes", "the number of classes", classes)
    return classes
