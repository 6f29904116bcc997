"""The report: one file of HTML that asks nothing of any network, readable without its script."""

from __future__ import annotations

from collections.abc import Sequence

from protocore.bench.compared import Group, Protocol, Run, protocols
from protocore.bench.frontier import frontier_rows
from protocore.bench.report.document import document
from protocore.bench.report.evidence import evidence, take_out
from protocore.bench.report.exemplars import Pictures, exemplar_section
from protocore.bench.report.features import feature_section
from protocore.bench.report.markup import Child, Html, el, join, number, numbers, table
from protocore.bench.report.measured import bias, costs, curves, leading, ledgers, matrices
from protocore.bench.report.verdict import frontier, runs_table, spread, verdict
from protocore.config import format_bytes, plural
from protocore.version import __version__

MOST_LEFT_OUT = 20


def report(runs: Sequence[Run], *, title: str | None = None, left_out: Sequence[str] = (),
           data_root: str | None = None) -> str:
    """The whole page for these runs."""
    parts = sorted(protocols(runs), key=lambda p: -sum(len(g.runs) for g in p.groups))
    pictures = Pictures(data_root)
    made = [_protocol(i, p, pictures, alone=len(parts) == 1) for i, p in enumerate(parts)]
    title = title or f"ProtoCore: {', '.join(dict.fromkeys(p.first.benchmark for p in parts))}"
    body = [
        el("a", "To the results", href="#main", class_="skip"),
        el("header", el("h1", title), el("p", _summary(parts), class_="dim"), _navigation(parts, made)),
        el("main", [_overview(parts)] if len(parts) > 1 else [], made,
           el("section", el("h2", "Take the data along", id="data"), take_out(parts, frontier_rows(parts)),
              _left_out(left_out)), id="main"),
        el("footer", el("p", f"Made by protocore {__version__} from stored results. Nothing here was typed by hand, "
                        "and nothing is fetched from anywhere.")),
    ]
    return document(title, body, script=True)


def _summary(parts: Sequence[Protocol]) -> str:
    runs = sum(len(g.runs) for p in parts for g in p.groups)
    kinds = sum(len(p.groups) for p in parts)
    versions = sorted({r.code_version for p in parts for g in p.groups for r in g.results if r.code_version})
    return f"{plural(runs, 'run')} of {plural(kinds, 'kind')}, made with protocore {', '.join(versions[:4])}"


def _navigation(parts: Sequence[Protocol], made: Sequence[Html]) -> Html:
    """To the protocols; to the sections where there is one protocol."""
    places = [(f"p{i}", p.name) for i, p in enumerate(parts)]
    if len(parts) == 1:
        places = [(f"p0-{name}", words) for name, words in _SECTIONS.items() if f'id="p0-{name}"' in made[0]]
    links = [el("li", el("a", words, href=f"#{name}")) for name, words in [*places, ("data", "data")]]
    return el("nav", el("ul", links), aria_label="Parts of this page")


_SECTIONS = {"verdict": "verdict", "frontier": "accuracy against bytes", "runs": "all runs", "curves":
             "after each task", "matrix": "task by task", "bias": "old and new", "ledger": "ledger",
             "exemplars": "exemplars", "map": "map", "costs": "costs", "how": "how it was made"}


def _overview(parts: Sequence[Protocol]) -> Html:
    """The best of each protocol, for pages with several."""
    rows = []
    for i, p in enumerate(parts):
        best = max(p.rivals or p.groups, key=lambda g: g.accuracy.mean)
        rows.append(el("tr", el("th", el("a", p.name, href=f"#p{i}"), scope="row"), el("td", best.label),
                       numbers([spread(best.accuracy), format_bytes(best.bytes()), len(p.groups),
                                sum(len(g.runs) for g in p.groups)])))
    heads = ("benchmark", "most accurate", *map(number, ("A_T (%)", "kept", "kinds", "runs")))
    return el("section", el("h2", "Verdict", id="overview"), table("The most accurate memory of each", heads, rows))


def _protocol(i: int, p: Protocol, pictures: Pictures, *, alone: bool) -> Html:
    number = {g.label: k for k, g in enumerate(p.groups)}

    def link(group: Group, words: Child) -> Html:
        return el("a", words, href=f"#e{i}-{number[group.label]}", class_="how")

    first, shown = p.first, leading(p)
    facts = [f"{plural(first.classes, 'class')} in {plural(first.tasks, 'task')}",
             plural(len(p.groups), "kind") + " of runs",
             plural(sum(len(g.runs) for g in p.groups), "run")]
    sections: list[Child] = [
        _section(i, "verdict", "Verdict", verdict(p, link)),
        _section(i, "frontier", "Accuracy against bytes", frontier(p)),
        _section(i, "runs", "All runs", runs_table(p, link, f"t{i}")),
        _section(i, "curves", "Accuracy after each task", curves(p, link)),
        _section(i, "matrix", "Task by task", matrices(p, link)),
        _section(i, "bias", "Old classes and new ones", bias(p, link)),
        _section(i, "ledger", "The ledger over time", ledgers(p, link)),
        _section(i, "exemplars", "Exemplars", exemplar_section(p, shown, link, pictures)),
        _section(i, "map", "Where condensation went", feature_section(shown, link)),
        _section(i, "costs", "Costs", costs(p, link)),
        _section(i, "how", "How each number was made", _evidence(i, p)),
    ]
    heading = el("h2", p.name, id=f"p{i}", class_="alone" if alone else None)
    return el("section", heading, el("p", " · ".join(facts), class_="dim"), sections, class_="protocol")


def _section(i: int, name: str, heading: str, body: Html | None) -> Html | None:
    if body is None:
        return None
    return el("section", el("h3", heading, id=f"p{i}-{name}"), body, class_=f"part {name}")


def _evidence(i: int, p: Protocol) -> Html:
    return join([el("p", "Every label on this page leads here: commands, seeds, hashes and settings.", class_="note"),
                 *(evidence(g, f"e{i}-{k}") for k, g in enumerate(p.groups))])


def _left_out(left_out: Sequence[str]) -> Html | None:
    if not left_out:
        return None
    more = [f"and {len(left_out) - MOST_LEFT_OUT} more"] if len(left_out) > MOST_LEFT_OUT else []
    return join([el("h3", "Left out"), el("ul", (el("li", words) for words in [*left_out[:MOST_LEFT_OUT], *more]))])
