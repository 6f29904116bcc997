"""The ten tables and figures of the paper: their rows, their columns, the runs that they need. Nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """`key` is the row's name in the paper's file, `size` what the paper calls buffer SPCs."""

    key: str
    name: str
    flags: Mapping[str, Any]
    size: str = ""
    group: str = ""


@dataclass(frozen=True)
class Column:
    benchmark: str  # of the paper; a scale says what stands for it
    measure: str

    @property
    def key(self) -> str:
        return f"{self.benchmark} {self.measure}"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure. `picture`: dots (ours and the paper's beside each other), lines, curves or maps."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    picture: str = "dots"
    shared: Mapping[str, Any] = field(default_factory=dict)  # flags of all its runs
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further ones at the scale of this name
    notes: tuple[str, ...] = ()

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(column.benchmark for column in self.columns))


@dataclass(frozen=True)
class Stream:
    """A benchmark as the paper calls it."""

    title: str
    tasks: int
    classes: int


STREAMS = {
    "cifar10": Stream("S-CIFAR-10", 5, 10),
    "cifar100-10": Stream("S-CIFAR-100", 10, 100),
    "cifar100-50": Stream("S-CIFAR-100", 50, 100),
    "tinyimagenet-20": Stream("S-TinyImageNet", 20, 200),
    "imagenet1k-100": Stream("S-ImageNet-1K", 100, 1000),
}
_FOUR = ("cifar100-10", "cifar100-50", "tinyimagenet-20", "imagenet1k-100")
# The paper's exemplars are synthetic, and what is stored of them are codes of a VQGAN.
OURS: Mapping[str, Any] = {"method": "protocore", "exemplars": "synthetic", "codec": "vqgan:4"}
TWENTY_AND_ONE: Mapping[str, Any] = {"spc": 1, "real": 20}
_CODES = ("ProtoCore's exemplars are synthetic ones, kept as codes (`--codec vqgan:4`). A run has one codec: in "
          "20 + 1, where 20 real pictures are kept as in the paper, exemplars are pixels.")


def _rival(key: str, name: str, group: str, keeps: bool = True) -> Row:
    return Row(key, name, {"method": key} | ({"spc": 20} if keeps else {}), "20" if keeps else "0", group)


RIVALS = (
    _rival("csrel", "CSReL", "Efficient memory"), _rival("bcsr", "BCSR", "Efficient memory"),
    _rival("ocs", "OCS", "Efficient memory"), _rival("pbcs", "PBCS", "Efficient memory"),
    _rival("onpro", "OnPro", "Efficient memory"),
    _rival("icarl", "iCaRL", "Replay based"), _rival("der", "DER", "Replay based"),
    _rival("derpp", "DER++", "Replay based"), _rival("cflat", "C-Flat", "Replay based"),
    _rival("ldc", "LDC", "Replay free", keeps=False), _rival("fecam", "FeCAM", "Replay free", keeps=False),
    _rival("adc", "ADC", "Replay free", keeps=False),
)
_PROTOCORE = (
    Row("protocore-1", "ProtoCore", {**OURS, "spc": 1}, "1", "Ours"),
    Row("protocore-5", "ProtoCore", {**OURS, "spc": 5}, "5", "Ours"),
    Row("protocore-20+1", "ProtoCore", {**OURS, **TWENTY_AND_ONE, "codec": "pixels"}, "20 + 1", "Ours"),
)
# RM is named among the paper's baselines and missing from its tables; ER is what the others are built on.
_BESIDE = (_rival("rm", "RM", "Beside the paper"), _rival("er", "ER", "Beside the paper"))
_ALL = (*RIVALS, *_PROTOCORE, *_BESIDE)
_RM = "RM is named among the paper's baselines and missing from its tables; ER is not in it."
_ONE = Row("protocore", "ProtoCore", {**OURS, "spc": 1}, "1", "Ours")

# The preset `fast` replays synthetic exemplars for no loss: a table about losses has them all.
_REPLAYED = {"fast": {"replay": "all", "cur_pro": 0.1, "pre_pro": 0.1}}
_REPLAYED_WORDS = "Exemplars are replayed for every loss (`--replay all`), which else the preset `fast` does not do."

# Loss of the paper's table (1) to (7) -> its switch
LOSSES = {"1": "cur_syn", "2": "pre_syn", "3": "shift", "4": "cur_pro", "5": "pre_pro", "6": "task_cur",
          "7": "task_pre"}


def _off(*losses: str) -> dict[str, Any]:
    return {**OURS, **{LOSSES[number]: 0.0 for number in losses}}


_COMPONENTS = (
    Row("1", "(1)", _off("2", "3"), group="Exemplars"),
    Row("1+2", "(1) + (2)", _off("3"), group="Exemplars"),
    Row("1+2+3", "(1) + (2) + (3)", OURS, group="Exemplars"),
    Row("4", "(4)", _off("5"), group="Prototypes"),
    Row("4+5", "(4) + (5)", OURS, group="Prototypes"),
    Row("6", "(6)", _off("7"), group="Head"),
    Row("6+7", "(6) + (7)", OURS, group="Head"),
    Row("all", "ProtoCore", OURS, group="All"),
    Row("without-1", "without (1)", _off("1"), group="Without one"),
    Row("without-2", "without (2)", _off("2"), group="Without one"),
    Row("without-4", "without (4)", _off("4"), group="Without one"),
    Row("without-6", "without (6)", _off("6"), group="Without one"),
)


def _columns(benchmarks: tuple[str, ...], *measures: str) -> tuple[Column, ...]:
    return tuple(Column(benchmark, measure) for benchmark in benchmarks for measure in measures)


_COST = ("hours: all seconds of a run, learning, choosing, condensing, coding and evaluating; the paper's are those of "
         "an RTX 4090.",
         "peak: of the device where there is one, else of the process, libraries and data included.",
         "kept: every byte that outlives a task, after the task that left most of them. The paper counts pictures in "
         "its replay rows (for ImageNet-1K as float32) and old networks in LDC's and ADC's.",
         "ProtoCore's row has one exemplar and one prototype a class, which the paper's text calls 2.")

EXHIBITS: dict[str, Exhibit] = {exhibit.name: exhibit for exhibit in (
    Exhibit("main", "Class-incremental: last (A_T) and learning (A_L) accuracy, %", _ALL, _columns(_FOUR, "A_T", "A_L"),
            notes=(_CODES, _RM)),
    Exhibit("task-incremental", "Task-incremental: final (A_T) and average (Ā) accuracy, %", _ALL,
            _columns(_FOUR, "told_A_T", "told_A_mean"), notes=(
                "The headings of this table are swapped in print: what the paper prints under Ā is the smaller number "
                "and stands here under A_T, what it prints under A_T stands here under Ā.",
                "The paper gives LDC, FeCAM and ADC a buffer of 20 in this table and of 0 in the main one; they keep "
                "no exemplars.", _CODES, _RM)),
    Exhibit("loss-ablation", "Two forms of the prototype losses: A_T, %", (
        Row("prototypical", "Prototypical", {**OURS, "contrast": "prototypical"}),
        Row("contrastive", "Contrastive", {**OURS, "contrast": "contrastive"})),
        _columns(("cifar100-10", "tinyimagenet-20"), "A_T"), shared={"spc": 5}, at=_REPLAYED, notes=(
            "Five exemplars a class: the paper's contrastive row is its main table's.", _REPLAYED_WORDS)),
    Exhibit("component-ablation", "The seven losses on and off: A_T and forgetting, %", _COMPONENTS,
            _columns(("cifar10", "cifar100-10"), "A_T", "forgetting"), shared={**TWENTY_AND_ONE, "refresh": True},
            at=_REPLAYED, notes=(
                _REPLAYED_WORDS,
                "Exemplars are codes here, the 20 real ones too.",
                "(1) L_cur_syn, (2) L_pre_syn, (3) L_shift, (4) L_cur_pro, (5) L_pre_pro, (6) L_task_cur, "
                "(7) L_task_pre.",
                "The paper does not say what else is on in a row. Taken literally, rows (1) to (4) + (5) would train "
                "no head. Here a row has of its own group what it names, and the two other groups whole: (1) + (2) + "
                "(3), (4) + (5) and (6) + (7) are then ProtoCore itself, one and the same run; (1) + (2) is without "
                "(3), (4) without (5), (6) without (7), and the last rows are without the others.",
                "Memory 20 + 1, whose A_T the paper's last row has. After each task the exemplars of all seen classes "
                "are condensed again (`--refresh`): (2) and (3) are about stored exemplars, and no class comes back.",
                "Distillation (`--distill`), which the paper does not have, is in every row as the preset has it: off "
                "in `paper`, on in `fast`.")),
    Exhibit("memory-size", "A_T (%) by exemplars a class",
            tuple(Row(str(n), f"{n} a class", {**OURS, "spc": n}) for n in (1, 3, 5, 7)),
            _columns(("cifar100-10", "cifar100-50"), "A_T"), picture="lines", notes=(
                "The paper's figure prints no numbers: its points at 1 and 5 are those of the main table.",)),
    Exhibit("task-curve", "Mean accuracy (%) of the tasks seen so far, after each task", _ALL, _columns(_FOUR, "A_T"),
            picture="curves", notes=(
                "The paper's figure prints no numbers: its curves end at A_T of the main table.", _CODES, _RM)),
    Exhibit("tsne", "Synthetic exemplars on their way to the prototypes of the first task",
            (Row("protocore-5", "ProtoCore", {**OURS, "spc": 5}, "5"),), _columns(("cifar100-10",), "A_T"),
            picture="maps", shared={"tasks": 1, "record": True, "condense_steps": 50, "match": "features"}, notes=(
                "Star: the prototype that exemplars are pulled to. Dot: the features of an exemplar after so many "
                "steps. Faint: real pictures of the first task, whose t-SNE the map is.",)),
    Exhibit("cost-cifar100", "Costs on S-CIFAR-100, T = 10", (*RIVALS, _ONE),
            _columns(("cifar100-10",), "hours", "peak_gb", "kept_mb"), notes=_COST),
    Exhibit("cost-imagenet1k", "Costs on S-ImageNet-1K, T = 100", (*RIVALS, _ONE),
            _columns(("imagenet1k-100",), "hours", "peak_gb", "kept_gb"), notes=_COST),
    Exhibit("condense-time", "Seconds a task of choosing or condensing exemplars",
            (*(next(row for row in RIVALS if row.key == key) for key in ("pbcs", "csrel", "bcsr", "ocs")), _ONE),
            _columns(("cifar100-10", "imagenet1k-100"), "condense_s"), notes=(
                "The paper's are those of an RTX 4090. ProtoCore's row condenses one exemplar a class.",)),
)}
