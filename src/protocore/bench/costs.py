"""Tables of what a run took, and of its forgetting and transfer as others define them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from protocore.bench.labels import run_labels
from protocore.bench.tables import NONE, new_table
from protocore.config import format_bytes
from protocore.learn.metrics import OURS, PEERS, Definitions
from protocore.runs.result import Result, Scores

PARTS = {"learn": "learning", "select": "selecting", "condense": "condensing", "code": "coding",
         "evaluate": "evaluating", "fisher": "Fisher matrix", "measure": "measuring what exemplars take"}
UNITS = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta")
JOULES = {"package": "processor packages", "dram": "memory of the processors", "gpu": "GPU"}


def cost_rows(result: Result) -> list[tuple[str, str]]:
    """What is known of a run's costs, in words."""
    rows = [(f"seconds of {PARTS.get(part, part)}", f"{value:,.1f}") for part, value in result.seconds.items()]
    if result.wall_seconds is not None:
        rows.append(("seconds in all", f"{result.wall_seconds:,.1f}"))
    if result.peak_memory_bytes:
        rows.append(("peak memory of the process", format_bytes(result.peak_memory_bytes)))
    if result.device_memory_bytes is not None:
        rows.append(("peak memory on the GPU", format_bytes(result.device_memory_bytes)))
    rows += [(f"joules of the {JOULES.get(part, part)}", f"{value:,.0f}")
             for part, value in (result.energy_joules or {}).items()]
    if result.steps:
        rows.append(("training steps", f"{result.steps:,}"))
    for name, words in (("step", "FLOPs of a step"), ("learn", "FLOPs of all steps"),
                        ("predict", "FLOPs of a prediction")):
        if name in result.flops:
            rows.append((words, flop_words(result.flops[name])))
    return rows


def flop_words(count: float) -> str:
    """`1.2 giga`; fewer than a thousand as they are."""
    power = 0
    while count >= 999.5 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}".strip()


def costs_table(result: Result) -> Table:
    table = new_table("What it took")
    table.add_column("cost")
    table.add_column("value", justify="right")
    for name, value in cost_rows(result):
        table.add_row(escape(name), escape(value))
    return table


def peer_rows(scores: Scores, peer: str) -> list[tuple[str, float | None, float | None]]:
    """(metric, ours, theirs) of one setting; None where it is not known, or they do not report it."""
    mine, theirs = _all(OURS, scores), _all(PEERS[peer], scores)
    return [(name, mine[name], theirs[name]) for name in mine]


def peer_json(result: Result, peer: str) -> dict[str, object]:
    """The same for programs."""
    settings = {"class_incremental": result.class_incremental, "task_incremental": result.task_incremental}
    return {"peer": peer, **{name: _all(PEERS[peer], scores) for name, scores in settings.items()}}


def peer_table(results: Sequence[Result], peer: str) -> Table:
    """Forgetting and transfer as we count them and as `peer` does, in both settings."""
    table = new_table(f"As {peer} counts it")
    table.add_column("run")
    table.add_column("setting")
    for name in ("metric", "ours", peer):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for label, result in zip(run_labels(list(results)), results, strict=True):
        for setting, scores in (("class-inc.", result.class_incremental), ("task-inc.", result.task_incremental)):
            for name, mine, theirs in peer_rows(scores, peer):
                table.add_row(escape(label), setting, name, _told(mine), _told(theirs))
    table.caption, table.caption_justify = "docs/metrics.md states each formula", "left"
    return table


def _all(definitions: Definitions, scores: Scores) -> dict[str, float | None]:
    backward, forward = definitions.backward_transfer, definitions.forward_transfer
    return {"forgetting": definitions.forgetting(scores.R),
            "backward transfer": backward(scores.R) if backward else None,
            "forward transfer": forward(scores.ahead, scores.untrained) if forward else None}


def _told(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
