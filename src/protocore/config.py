"""The words of the user: every setting of a run, its help text, and where its value came from."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any

from protocore.errors import DataError, UserError, shown

MOST_CONFIG = 64 << 10  # bytes of a file of settings: all that there are, many times over
MOST_SCALARS = 2000  # words and numbers in one
MOST = 10**9  # of any number that has no limit of its own


def option(default: Any, help: str, *, group: str = "method", choices: Iterable[str] = (), least: float | None = None,
           above: float | None = None, most: float | None = None, below: float | None = None) -> Any:
    """A field of `Options` that the command line shows as a flag with this help text; numbers lie within its limits."""
    limits = {"at least": least, "more than": above, "at most": most, "less than": below}
    return field(default=default, metadata={
        "help": help, "group": group, "choices": tuple(choices),
        "limits": {words: limit for words, limit in limits.items() if limit is not None}})


class Options:
    """What a frozen dataclass of `option`s inherits: a value outside its limits is an error that names the flag."""

    def __post_init__(self) -> None:
        for known in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value, limits = getattr(self, known.name), known.metadata.get("limits", {})
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not {"at most", "less than"} & limits.keys():
                limits = {**limits, "at most": MOST}
            if not {"at least", "more than"} & limits.keys():
                limits = {"at least": -MOST, **limits}
            if not all(_HOLDS[words](value, limit) for words, limit in limits.items()):
                said = " and ".join(f"{words} {limit:,}" for words, limit in limits.items())
                raise UserError(f"{flag(known.name)} {shown(value)} must be {said}")


_HOLDS = {"at least": operator.ge, "more than": operator.gt, "at most": operator.le, "less than": operator.lt}


MOST_BYTES = 10**18  # of a budget: numbers of 64 bits hold it


def parse_bytes(text: str | int) -> int:
    """`64KB`, `1.5 MB`, `2MiB` or a bare number of bytes. KB is 1,000 bytes, KiB 1,024."""
    if isinstance(text, int) and not isinstance(text, bool):
        size = text
    else:
        from decimal import Decimal

        match = re.fullmatch(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*(B|KB|MB|GB|KiB|MiB|GiB)?\s*", str(text),
                             re.IGNORECASE)
        if not match:
            raise UserError(f"--budget {shown(text)} is not a size; write for example 4096, 64KB, 1.5MB or 2MiB")
        unit = (match[2] or "B").lower()
        scale = 1024 if "i" in unit else 1000
        size = int(Decimal(match[1]) * scale ** "bkmg".index(unit[0]))  # 1.005KB is 1005 bytes, not 1004
    if not 0 < size <= MOST_BYTES:
        raise UserError(f"--budget {shown(text)} must be more than 0 and at most {MOST_BYTES:,} bytes")
    return size


def format_bytes(count: float) -> str:
    """Bytes as people read them, in the units that `parse_bytes` takes."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB"):
        count /= 1000
        if count < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.2f} GB"


def plural(count: int, word: str) -> str:
    """`1 class`, `2 classes`, `1,000 pictures`."""
    return f"{count:,} {word if count == 1 else word + ('es' if word.endswith('s') else 's')}"


@dataclass(frozen=True)
class Settings(Options):
    """Everything that decides the outcome of a run, apart from the method's own options."""

    method: str = option("protocore", "which method learns; see `protocore list methods`", group="run")
    benchmark: str = option("digits", "which stream it learns; see `protocore list benchmarks`", group="run")
    preset: str = option(
        "default", "bundle of settings", group="run", choices=("default", "fast", "cpu", "paper")
    )
    seed: int = option(0, "drives everything random: network, batches, augmentation, memory", group="run",
                       least=0, below=2**63)
    forward_transfer: bool = option(False, "measure every task before it is learned, too, and an untrained network on "
                                    "all of them: forward transfer (an evaluation more a task)", group="run")

    data_root: str | None = option(None, "folder of the data sets (else PROTOCORE_DATA)", group="data")
    class_order: str = option(
        "natural", "order of the classes: natural, 1993 (numpy's legacy seed, as PyCIL), or any other number",
        group="data",
    )
    classes_per_task: int | None = option(None, "classes that each task brings", group="data", least=1,
                                          most=10**6)
    tasks: int | None = option(None, "learn only the first N tasks", group="data", least=1, most=10**6)
    images_per_class: int | None = option(None, "use only the first N training images of a class", group="data",
                                          least=1)
    validate: int = option(0, "measure on the last N percent of each class's training images, which are then not "
                           "learned, in place of the test images: to choose settings by", group="data", least=0,
                           most=90)
    image_size: int | None = option(None, "side in pixels that picture files are scaled to; for a network that was "
                                    "trained before, any pictures (EfficientNet-Lite: 160)", group="data", least=4,
                                    most=4096)
    strict: bool = option(False, "folder: what cannot be used (a damaged picture, an empty folder) is an error; else "
                          "it is named and left out", group="data")
    augment: str = option(
        "none", "comma list of cropN (shift by up to N pixels), flip, rrc (random resized crop), or none",
        group="data",
    )
    online: bool = option(False, "one pass over the stream in small batches; no task identity", group="data")
    online_window: int = option(500, "online: samples between two visits of the method's end-of-task work",
                                group="data", least=1)
    blurry: int = option(0, "percent of each class's samples that come with the tasks of other classes",
                         group="data", least=0)

    spc: int | None = option(None, "exemplars kept per class", group="memory", least=1, most=10**6)
    capacity: int | None = option(None, "exemplars kept in all", group="memory", least=1)
    budget: int | None = option(None, "bytes for everything that is kept, e.g. 256KB", group="memory", least=1,
                                most=MOST_BYTES)
    codec: str = option("pixels", "how exemplars are stored; see `protocore list codecs`", group="memory")
    replay_space: str = option(
        "auto", "closes the gap between decoded exemplars and raw current images: mix passes half of each current "
        "batch through the codec and compares old with new classes on what looks decoded only, half compares them on "
        "all of it, codec passes everything through (test images too), raw nothing; auto: mix where the codec is lossy",
        group="memory", choices=("auto", "mix", "half", "codec", "raw"),
    )

    backbone: str = option("convnet", "feature extractor; see `protocore list backbones`", group="network")
    width: int | None = option(None, "filters of the first stage (each backbone has its own default)",
                               group="network", least=1, most=8192)
    norm: str | None = option(None, "normalisation layers", group="network", choices=("batch", "group"))
    weights: str | None = option(None, "FILE.safetensors with weights that the network begins with: a learner's file, "
                                 "or the state of a backbone", group="network")
    freeze: str = option("auto", "what of the network stays as it is: all (a picture is then learned as its features), "
                         "none, or the first N stages; auto: all of one that was trained before, else none",
                         group="network")
    head: str = option("linear", "classifier", group="network", choices=("linear", "cosine"))
    full_head: bool = option(False, "outputs for all classes of the benchmark from the start (else, and where nobody "
                             "knows how many there will be, they are added as classes arrive)", group="network")

    optimizer: str = option("adam", "optimiser, made anew for each task; muon turns convolutions and "
                            "leaves the rest to adam at lr / 100", group="training",
                            choices=("adam", "adamw", "sgd", "muon"))
    lr: float = option(1e-3, "learning rate", group="training", above=0)
    momentum: float = option(0.0, "momentum of sgd", group="training", least=0)
    weight_decay: float = option(0.0, "weight decay", group="training", least=0)
    schedule: str = option("constant", "constant, cosine, triangle (up in the first fifth, then down), "
                           "steps:E1,E2 (times 0.1 after these epochs), or "
                           "restarts (warm-up, then cosines of 1, 2, 4... epochs)",
                           group="training")
    epochs: int = option(6, "passes over each task", group="training", least=1)
    steps: int | None = option(None, "training steps a task, instead of --epochs", group="training", least=1)
    least_steps: int = option(0, "steps that a task takes at least: small data is passed over more often than --epochs "
                              "(folder: 300, unless --epochs or --steps is given)", group="training", least=0)
    batch: int = option(64, "current images in a batch", group="training", least=1, most=2**20)
    replay_batch: int = option(64, "replayed images in a batch", group="training", least=0, most=2**20)
    label_smoothing: float = option(0.0, "label smoothing of plain cross entropies", group="training", least=0, most=1)
    cflat: bool = option(False, "C-Flat: every step seeks a flat minimum (four forward and backward passes)",
                         group="training")
    cflat_rho: float = option(0.2, "C-Flat: radius ρ of its perturbations", group="training", least=0)
    cflat_lambda: float = option(0.2, "C-Flat: weight λ of the first-order flatness", group="training", least=0)
    cflat_first: bool = option(False, "C-Flat in the first task too (its authors start with the second)",
                               group="training")

    mirror: bool = option(False, "at prediction, scores are the mean of those of a picture and of its mirror image",
                          group="network")

    device: str = option("auto", "auto, cpu, cuda or mps", group="machine")
    precision: str = option("auto", "auto: bfloat16 where the device has units for it and "
                            "pictures are large enough to gain by it", group="machine",
                            choices=("auto", "float32", "bfloat16"))
    memory_format: str = option("auto", "layout of image tensors", group="machine",
                                choices=("auto", "contiguous", "channels_last"))
    threads: int | None = option(None, "processor threads (default: OMP_NUM_THREADS, else every core)",
                                 group="machine", least=1, most=1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blurry > 90:
            raise UserError(f"--blurry {self.blurry} leaves a task almost none of its own classes; give 0 to 90")
        if self.online and self.steps:
            raise UserError("--online sees each sample once, so --steps has no meaning; leave one of them out")
        if not re.fullmatch("auto|all|none|[1-9][0-9]{0,3}", self.freeze):
            raise UserError(f"--freeze {shown(self.freeze)}: give auto, all, none, or how many stages, from 1")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


_hints = functools.cache(typing.get_type_hints)  # --help asks for every field


def kind_of(cls: type, name: str) -> tuple[type, bool]:
    """The plain type of a field and whether None is allowed."""
    hint = _hints(cls)[name]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [m for m in typing.get_args(hint) if m is not type(None)]
        return members[0], True
    return hint, False


_KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def convert(cls: type, name: str, value: Any) -> Any:
    """A value from a flag, a file or Python as the field's type, or an error that names the flag."""
    kind, optional = kind_of(cls, name)
    choices = {f.name: f for f in dataclasses.fields(cls)}[name].metadata.get("choices", ())
    if value is None or (optional and isinstance(value, str) and value.lower() == "none"):
        if optional:
            return None
        raise UserError(f"{flag(name)} needs a value")
    if not isinstance(value, str | Real | PurePath) or (isinstance(value, bool) and kind is not bool):
        # What a file may hold where one word or number belongs: a list, a table, a date.
        raise UserError(f"{flag(name)} {shown(value)} is not {_KINDS[kind]}")
    if name == "budget":
        return parse_bytes(int(value) if isinstance(value, Integral) else str(value))
    if kind is bool:
        if isinstance(value, bool):
            return value
        word = str(value).lower() if isinstance(value, str) or value in (0, 1) else ""
        for words, meant in ((("true", "yes", "on", "1"), True), (("false", "no", "off", "0"), False)):
            if word in words:
                return meant
        raise UserError(f"{flag(name)} {shown(value)} is neither true nor false")
    try:
        result = kind(str(value)) if kind is int else kind(value)  # int(2.5) would be 2
        if kind is float and not math.isfinite(result):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{flag(name)} {shown(value)} is not {_KINDS[kind]}") from None
    if choices and result not in choices:
        raise UserError(f"{flag(name)} {shown(value)}: choose one of {', '.join(choices)}")
    return result


class Source(str):
    """Where a value came from, in words; `kind` says it for programs.

    Kinds: default, method, benchmark, budget (what goes with --budget), preset, online, network (what goes with one
    that was trained before), file, like, flag.
    """

    kind: str

    def __new__(cls, kind: str, words: str | None = None) -> Source:
        source = super().__new__(cls, kind if words is None else words)
        source.kind = kind
        return source

    @property
    def chosen(self) -> bool:
        """Whether the user said it, now or in the file or run that this one is like."""
        return self.kind in ("flag", "like", "file")


DEFAULT = Source("default")


@dataclass(frozen=True)
class Resolved:
    """Settings and method options with the source of every value."""

    settings: Settings
    options: Any
    sources: dict[str, Source]

    def to_json(self) -> dict[str, Any]:
        return {
            "settings": dataclasses.asdict(self.settings),
            "options": dataclasses.asdict(self.options),
            "sources": self.sources,
        }


SIZES = ("spc", "capacity", "budget")


def resolve(layers: Iterable[tuple[Source, Mapping[str, Any]]], options_cls: type) -> Resolved:
    """Later layers win. Each layer is its source's name and a flat mapping of settings and options."""
    known = {f.name: Settings for f in dataclasses.fields(Settings)}
    known.update({f.name: options_cls for f in dataclasses.fields(options_cls)})
    values: dict[str, Any] = {}
    sources: dict[str, Source] = dict.fromkeys(known, DEFAULT)
    for source, layer in layers:
        given = {key.replace("-", "_"): value for key, value in layer.items()}
        for key in given:
            if key not in known:
                from protocore.registry import near

                meant = near(key, known)
                where = "" if source == "flag" else f" (from {source})"
                raise UserError(f"unknown setting {shown(flag(key))[1:-1]}{where}"
                                f"{f'; did you mean {flag(meant)}?' if meant else ''}")
        given = {key: convert(known[key], key, value) for key, value in given.items()}
        # One way of saying how much is kept replaces another that an earlier layer chose.
        if any(given.get(name) is not None for name in SIZES):
            for name in SIZES:
                values.pop(name, None)
                sources[name] = DEFAULT
        values |= given
        sources |= dict.fromkeys(given, source)
    settings = Settings(**{k: v for k, v in values.items() if known[k] is Settings})
    options = options_cls(**{k: v for k, v in values.items() if known[k] is options_cls})
    return Resolved(settings, options, sources)


def read_config_file(path: Path) -> dict[str, Any]:
    """A flat YAML or TOML file of settings."""
    from protocore.files import read_bytes  # it brings torch, which --help should not wait for

    try:
        text = read_bytes(path, MOST_CONFIG).decode("utf-8-sig")
    except DataError as error:
        raise UserError(f"--config {error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: cannot be read ({error}); save it as UTF-8") from None
    try:
        table = _toml(text) if path.suffix.lower() == ".toml" else _yaml(text)
    except UserError as error:
        raise UserError(f"--config {path}: {error}") from None
    except Exception as error:  # each parser has its own error classes; all mean the same to the user
        raise UserError(f"--config {path}: not valid {path.suffix or 'YAML'} ({shown(str(error), 300)})") from None
    if not isinstance(table, dict):
        raise UserError(f"--config {path}: expected `setting: value` lines, met a {type(table).__name__}")
    for key in table:
        if not isinstance(key, str):
            raise UserError(f"--config {path}: {shown(key)} is no name of a setting; write `setting: value` lines")
    return table


def _toml(text: str) -> Any:
    import tomllib

    if any(line.count(".") > 64 for line in text.splitlines()):  # the parser takes minutes for a name of many parts
        raise UserError("has a line of more than 64 dots; write `setting = value` lines")
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    """YAML without what settings need not have: references, which grow without end, and tables in tables."""
    import yaml

    depth = scalars = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UserError("has an anchor or alias (& or *); write the value out, or put it in quotes")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        scalars += isinstance(event, yaml.ScalarEvent)
        if depth > 2 or scalars > MOST_SCALARS:
            raise UserError("is nested or very long; write `setting: value` lines")
    return yaml.safe_load(text) or {}
