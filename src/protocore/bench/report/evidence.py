"""Behind every number: commands, seeds and hashes to look at, and all data to take along as CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from protocore.bench.compared import Group, Protocol, Run
from protocore.bench.csvs import csv_of
from protocore.bench.report.markup import Child, Html, data_uri, details, el, join, table
from protocore.config import flag, plural
from protocore.runs.result import Result

MOST_DATA = 1_500_000  # bytes of the results as JSON: above it, matrices are cut to their last row and diagonal
MOST_FLAGS = 60


def evidence(group: Group, name: str) -> Html:
    """How a row was made; `name` is where links to it lead."""
    first = group.first
    said = {k: v for k, v in first.sources.items() if v != "default"}
    values = {**first.settings, **first.options}
    flags = [el("tr", el("th", flag(k), scope="row"), el("td", str(values.get(k))), el("td", source))
             for k, source in list(said.items())[:MOST_FLAGS] if k in values and k not in ("seed", "data_root")]
    seeds = ", ".join(str(r.settings["seed"]) for r in group.results)
    rows: list[Child] = [
        el("p", f"{plural(len(group.runs), 'run')}, seeds {seeds}. A_T {group.accuracy} %. The same numbers again:",
           id=name, tabindex="-1"),
        el("div", (_run(run) for run in group.runs)),
        details("Settings that are not defaults, and where each came from",
                table(f"Settings of {group.label}", ("setting", "value", "source"), flags)) if flags else None,
        details(f"Notes of the run ({len(first.notes)})", el("ul", (el("li", note) for note in first.notes)))
        if first.notes else None,
    ]
    return details(group.label, rows, class_="evidence")


def _run(run: Run) -> Html:
    r = run.result
    machine = ", ".join(f"{k} {v}" for k, v in r.machine.items())
    facts = [("result file", f"{_short(run)}, sha256 {run.sha256}"), ("data", f"sha256 {r.data_digest or 'not told'}"),
             ("code", f"protocore {r.code_version or 'not told'}"), ("machine", machine or "not told"),
             *((name, f"sha256 {value}") for name, value in list(r.files.items())[:6])]
    # A hash may be broken anywhere: it is for copying.
    return el("div", el("pre", el("code", r.command)), el("dl", [join([el("dt", k), el("dd", v)]) for k, v in facts],
                                                          class_="facts"), class_="run")


def _short(run: Run) -> str:
    """The file without the folders of the machine."""
    return f"{run.folder.name}/{run.file.name}" if run.folder else run.file.name


def run_rows(protocols: Sequence[Protocol]) -> list[dict[str, Any]]:
    """A row a run, everything that is one number."""
    rows = []
    for protocol in protocols:
        for group in protocol.groups:
            for run in group.runs:
                rows.append(_row(protocol, group, run))
    return rows


def _row(protocol: Protocol, group: Group, run: Run) -> dict[str, Any]:
    r = run.result
    scores = {f"{short}{name}": getattr(part, name) for short, part in (("", r.class_incremental),
                                                                        ("task_", r.task_incremental))
              for name in ("A_T", "A_L", "A_mean", "forgetting")}
    return {"protocol": protocol.name, "run": group.label, "memory": group.line, "method": r.method,
            "benchmark": r.benchmark, "seed": r.settings["seed"], "tasks": r.tasks, "classes": r.classes, **scores,
            "bytes_kept": r.bytes_kept, "decoder_bytes": r.decoder_bytes,
            **{f"seconds_{name}": value for name, value in r.seconds.items()},
            **{f"flops_{name}": value for name, value in (getattr(r, "flops", None) or {}).items()},
            "images_per_second": r.images_per_second, "peak_memory_bytes": r.peak_memory_bytes, "command": r.command,
            "result_sha256": run.sha256, "data_digest": r.data_digest, "code_version": r.code_version}


def json_of(protocols: Sequence[Protocol]) -> tuple[bytes, bool]:
    """All results in their small form, and whether their matrices are whole."""
    def made(whole: bool) -> bytes:
        runs = [{"protocol": p.name, "run": g.label, "result_sha256": run.sha256, **_document(run.result, whole)}
                for p in protocols for g in p.groups for run in g.runs]
        return json.dumps({"format": 1, "runs": runs}, separators=(",", ":"), ensure_ascii=False).encode()

    data = made(True)
    return (data, True) if len(data) <= MOST_DATA else (made(False), False)


def _document(r: Result, whole: bool) -> dict[str, Any]:
    small = r.small()
    if r.per_class:
        small["per_class_at_the_end"] = {k: round(v, 2) for k, v in r.per_class[-1].items()} if whole else None
    if not whole:
        for part in ("class_incremental", "task_incremental"):
            matrix = small[part].pop("R")
            small[part] |= {"last_row": matrix[-1], "diagonal": [row[-1] for row in matrix]}
    return small


def take_out(protocols: Sequence[Protocol], points: Sequence[dict[str, Any]]) -> Html:
    """Links to the data: they are inside the page, so they work without a network and without scripts."""
    document, whole = json_of(protocols)
    files = [("runs.csv", "text/csv", csv_of(run_rows(protocols)), "a row a run"),
             ("frontier.csv", "text/csv", csv_of(points), "accuracy against bytes, a row a kind of run"),
             ("results.json", "application/json", document, "every result" if whole else
              "every result; of the task-by-task matrices the last row and the diagonal")]
    return el("ul", (el("li", el("a", name, href=data_uri(kind, data), download=name), f" {words}, {len(data):,} bytes")
                     for name, kind, data, words in files), class_="files")
