"""Which runs a folder holds: what each was and what came out, or how far it is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from protocore.bench.labels import run_labels
from protocore.bench.tables import NONE, new_table
from protocore.config import format_bytes, plural
from protocore.errors import DataError, UserError, printable
from protocore.files import read_json
from protocore.learn.checkpoint import read_checkpoint
from protocore.runs.folder import RunFolder
from protocore.runs.result import Result, read_result
from protocore.schema import Fields

MOST_SHOWN = 1000  # runs of a folder


@dataclass(frozen=True)
class Found:
    """A run in a folder. Without a `result` it is not finished, or damaged: `state` says so."""

    folder: Path
    changed: float  # seconds since 1970
    state: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    sources: Mapping[str, str]
    result: Result | None = None

    def to_json(self, label: str) -> dict[str, Any]:
        result = self.result
        return {"folder": str(self.folder), "label": label, "state": self.state, "method": self.settings.get("method"),
                "benchmark": self.settings.get("benchmark"), "seed": self.settings.get("seed"),
                "A_T": result.class_incremental.A_T if result else None,
                "bytes_kept": result.bytes_kept if result else None, "changed": _when(self.changed)}


def runs_in(root: Path) -> list[Found]:
    """The runs in a folder, newest first."""
    try:
        folders = [path for path in root.iterdir() if path.is_dir()]
    except OSError as error:
        raise UserError(f"{root}: no folder of runs ({error.strerror}); `protocore run` makes one, or give another "
                        "folder") from None
    found = [run for path in folders if (run := _found(RunFolder(path)))]
    return sorted(found, key=lambda run: (run.changed, run.folder.name), reverse=True)


def _found(folder: RunFolder) -> Found | None:
    """The run of this folder, if it is one."""
    path = next((p for p in (folder.result, folder.checkpoint, folder.path / "config.json") if p.exists()), None)
    if path is None:
        return None
    changed = path.stat().st_mtime
    try:
        if path == folder.result:
            result = read_result(folder.path)
            return Found(folder.path, changed, "finished", result.settings, result.options, result.sources, result)
        if path == folder.checkpoint:
            header = read_checkpoint(path).header
            measured = Fields(header.extra, path, "start it again").fields("run").wholes("kept")
            state = f"not finished: {plural(len(measured), 'task')} learned"
            return Found(folder.path, changed, state, header.settings, header.options, header.sources)
        f = Fields(read_json(path), path, "start it again")
        sources = {name: str(value) for name, value in f.scalars("sources").items()}
        return Found(folder.path, changed, "not finished: no checkpoint yet", f.scalars("settings"),
                     f.scalars("options"), sources)
    except DataError:
        return Found(folder.path, changed, f"{path.name} cannot be read", {}, {}, {})


def labels_of(runs: list[Found]) -> list[str]:
    """What each run was: method, size, benchmark, seed, and what sets it apart from others."""
    known = [run for run in runs if {"method", "benchmark", "seed"} <= run.settings.keys()]
    labels = dict(zip(map(id, known), run_labels(known, benchmarks=True), strict=True))
    return [_with_seed(labels[id(run)], run) if id(run) in labels else run.folder.name for run in runs]


def _with_seed(label: str, run: Found) -> str:
    seed = f"seed {run.settings['seed']}"
    return label if seed in label.split(", ") else f"{label}, {seed}"


def runs_table(root: Path, runs: list[Found]) -> Table:
    """Two lines a run: what it was and what came out; and its folder."""
    table = new_table(f"Runs in {root}, newest first")
    for name in ("run", "A_T", "kept", "when"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=name != "run", overflow="fold")
    for label, run in zip(labels_of(runs)[:MOST_SHOWN], runs[:MOST_SHOWN], strict=True):
        state = "" if run.result else f"\n  {run.state}"
        cell = f"{escape(printable(label))}{state}\n[dim]  {escape(printable(run.folder.name))}[/]"
        scores = (f"{run.result.class_incremental.A_T:.1f}", format_bytes(run.result.bytes_kept)) if run.result \
            else (NONE, NONE)
        table.add_row(cell, *scores, _when(run.changed)[:16].replace("T", " "))
    table.caption, table.caption_justify = (
        "A_T: accuracy (%) over all classes after the last task; kept: bytes of the memory. "
        f"`protocore show {escape(printable(str(root)))}/NAME` tells more.", "left")
    return table


def _when(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
