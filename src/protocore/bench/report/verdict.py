"""What a reader wants first: who wins at which bytes, and by how much; then every kind of run in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocore.bench.compared import Group, Protocol, Spread
from protocore.bench.frontier import Step, areas, floor_of, lines_of, network_bytes, paper_marks, room, winners
from protocore.bench.report.axes import size_word
from protocore.bench.report.charts import frontier_chart, frontier_legend
from protocore.bench.report.markup import Child, Html, details, el, join, number, numbers, table
from protocore.bench.tables import NONE, exemplar_words
from protocore.config import format_bytes, plural
from protocore.runs.result import Result

Link = Callable[[Group, Child], Html]  # words that lead to how a group was made


def spread(value: Spread | None, digits: int = 1) -> str:
    if value is None:
        return NONE
    deviation = "" if value.deviation is None else f" ± {value.deviation:.{digits}f}"
    return f"{value.mean:.{digits}f}{deviation}"


def verdict(protocol: Protocol, link: Link) -> Html:
    """Sentences, then a row a room."""
    rivals = protocol.rivals
    shared = any(r.decoder_bytes for g in rivals for r in g.results)
    parts = [_cards(protocol, link)]
    if rivals:
        steps = winners(rivals)
        parts.append(_rooms("Who is best in which room", steps, link))
        parts.append(el("p", _fine_print(shared), class_="note"))
        if shared:
            parts.append(details("The same with the shared decoder counted",
                                 _rooms("Who is best in which room, decoder counted", winners(rivals, decoder=True),
                                        link)))
    return join(parts)


def _cards(protocol: Protocol, link: Link) -> Html:
    cards = []
    rivals = sorted(protocol.rivals, key=lambda g: -g.accuracy.mean)
    if rivals:
        best = rivals[0]
        cards.append(_card("Most accurate", link(best, best.label), best))
        # The least memory that comes near: nine tenths of the way from nothing to the best, which may itself be less
        # than nothing would be.
        floor = min(floor_of(protocol), best.accuracy.mean)
        near = floor + 0.9 * (best.accuracy.mean - floor)
        least = min((g for g in rivals if g.accuracy.mean >= near), key=Group.bytes)
        if format_bytes(least.bytes()) != format_bytes(best.bytes()):
            cards.append(_card("Nearly as accurate, in the least bytes", link(least, least.label), least))
    for level in protocol.levels:
        word = "All data at once (upper bound)" if level.first.saw_everything else \
            "Nothing kept (lower bound)" if level.first.keeps_nothing else "No memory"
        cards.append(_card(word, link(level, level.label), level))
    return el("div", cards, class_="cards")


def _card(word: str, name: Html, group: Group) -> Html:
    score = group.accuracy
    kept = ("" if group.is_level else f"{format_bytes(group.bytes())} · ") + plural(score.count, "seed")
    deviation = el("span", f" ± {score.deviation:.1f}") if score.deviation is not None else None
    return el("div", el("p", word, class_="over"), el("p", f"{score.mean:.1f}", deviation, " %", class_="big"),
              el("p", name), el("p", kept, class_="dim"), class_="card" + (" bound" if group.is_level else ""))


def _rooms(caption: str, steps: Sequence[Step], link: Link) -> Html:
    rows = []
    for i, step in enumerate(steps):
        high = steps[i + 1].low if i + 1 < len(steps) else None
        words = f"{size_word(step.low)} or more" if high is None else size_word(step.low) if step.high == step.low \
            else f"{size_word(step.low)} to {size_word(step.high)}"
        second: list[Child] = [NONE]
        if step.rival is not None and step.lead is not None:
            second = [link(step.rival, step.rival.label), " ", el("span", spread(step.rival.accuracy), class_="nb")]
        # On a phone a row becomes a card, and data-k stands before each cell.
        rows.append(el("tr", el("th", words, scope="row", class_="nb"),
                       el("td", link(step.winner, step.winner.label), data_k="best that fits"),
                       el("td", spread(step.winner.accuracy), class_="n", data_k="A_T (%)"),
                       el("td", format_bytes(step.winner.bytes()), class_="n", data_k="kept"),
                       el("td", second, data_k="next best"), el("td", _lead(step), data_k="lead")))
    heads = ("room", "best that fits", number("A_T (%)"), number("kept"), "next best of another memory", "lead")
    return table(caption, heads, rows, class_="rooms")


def _lead(step: Step) -> Html:
    if step.lead is None:
        return el("span", NONE)
    word, look = {True: ("clear", "yes"), False: ("within noise", "no"), None: ("too few seeds", "no")}[step.clear]
    return join([f"+{step.lead:.1f} ", el("span", word, class_=f"tag {look}")])


def _fine_print(shared: bool) -> str:
    words = ("A_T: accuracy over all classes after the last task, mean ± standard deviation over seeds. A lead is "
             "clear when it is more than twice the standard error of the difference; one seed says nothing of it.")
    if shared:
        words += " Bytes are those of the memory file, without the decoder that all classes share."
    return words


def frontier(protocol: Protocol) -> Html:
    """Accuracy against bytes, with and without the decoder, and the area as one number."""
    if not protocol.rivals:
        return el("p", "No run here keeps anything.", class_="note")
    shared = any(r.decoder_bytes for g in protocol.rivals for r in g.results)
    plain = frontier_chart(protocol, decoder=False)
    parts: list[Child] = [plain] if not shared else [
        el("h4", "Shared decoder not counted"), plain, el("h4", "Shared decoder counted once"),
        frontier_chart(protocol, decoder=True)]
    parts.append(frontier_legend(protocol))
    if networks := sorted({size for g in protocol.groups if (size := network_bytes(g))}):
        words = " to ".join(dict.fromkeys(format_bytes(size) for size in (networks[0], networks[-1])))
        parts.append(el("p", f"The network is apart: every method has one, here of {words}.", class_="note"))
    parts.append(_areas(protocol, shared))
    if marks := paper_marks(protocol):
        rows = [el("tr", el("th", m.name, scope="row"), numbers([m.accuracy, format_bytes(m.bytes)])) for m in marks]
        parts.append(details("The paper's figures that are marked", table(
            "Printed in the paper", ("method", number("A_T (%)"), number("storage")), rows),
            el("p", "The paper prints 0.26 MB for ProtoCore without a number of exemplars; the accuracy beside it is "
               "that of one a class. It prints 0 for FeCAM, which has no place on a log axis.", class_="note")))
    return join(parts)


def _areas(protocol: Protocol, shared: bool) -> Html:
    lines = lines_of(protocol)
    sizes = {line.name: len(line.groups) for line in lines}
    plain, counted = areas(protocol, decoder=False), areas(protocol, decoder=True)
    low, high = room(lines, decoder=False)
    rows = [el("tr", el("th", name, scope="row"),
               numbers([f"{value:.1f}", *([f"{counted[name]:.1f}"] if shared else []), sizes[name]]))
            for name, value in plain.items()]
    heads = ["memory", number("area"), *([number("area, decoder counted")] if shared else []), number("sizes")]
    words = (f"Mean accuracy over rooms of {format_bytes(low)} to {format_bytes(high)} (twice the largest memory), "
             f"equally weighted by factor; {floor_of(protocol):.1f} % (nothing kept) below a memory's smallest size. A "
             "memory that was measured in few sizes is judged by those alone.")
    return details("Area under each curve, one number a memory",
                   table("Area under accuracy against the logarithm of bytes", heads, rows),
                   el("p", words, class_="note"), opened=len(rows) <= 6)


@dataclass(frozen=True)
class Column:
    """A column of the large table: what it says and what it sorts by."""

    head: str
    explained: str
    words: Callable[[Group], str]
    value: Callable[[Group], float | None]


def _score(head: str, explained: str, of: Callable[[Result], float | None]) -> Column:
    def value(group: Group) -> float | None:
        found = group.over_seeds(of)
        return None if found is None else found.mean

    return Column(head, explained, lambda g: spread(g.over_seeds(of)), value)


def _size(head: str, explained: str, of: Callable[[Group], float]) -> Column:
    return Column(head, explained, lambda g: format_bytes(size) if (size := of(g)) else NONE, lambda g: of(g) or None)


COLUMNS = (
    _score("A_T", "accuracy (%) over all classes after the last task", lambda r: r.class_incremental.A_T),
    _score("A_L", "over each task right after it was learned", lambda r: r.class_incremental.A_L),
    _score("Ā", "over all classes seen so far, mean over the tasks", lambda r: r.class_incremental.A_mean),
    _score("F", "forgetting: how far a task fell from its best", lambda r: r.class_incremental.forgetting),
    _score("told", "A_T where the task of a picture is told (task-incremental)", lambda r: r.task_incremental.A_T),
    Column("kept", "bytes of the memory", lambda g: "all data" if g.first.saw_everything else format_bytes(g.bytes()),
           lambda g: None if g.first.saw_everything else g.bytes()),
    _size("a class", "of them, a class", lambda g: 0 if g.first.saw_everything else g.bytes() / g.first.classes),
    _size("decoder", "bytes of the shared decoder, once for all classes", lambda g: g.bytes(decoder=True) - g.bytes()),
    Column("exemplars", "how many a class, and what they are", lambda g: exemplar_words(*g.results),
           lambda g: sum(g.first.exemplars.values()) or None),
    Column("seeds", "runs behind the row", lambda g: str(len(g.runs)), lambda g: float(len(g.runs))),
)


def runs_table(protocol: Protocol, link: Link, name: str) -> Html:
    """Every kind of run; a script makes it sort and filter."""
    rows = []
    for g in sorted(protocol.groups, key=lambda g: -g.accuracy.mean):
        values = [c.value(g) for c in COLUMNS]
        cells = [el("td", c.words(g), class_="n", data_v="" if v is None else f"{v:.6g}")
                 for c, v in zip(COLUMNS, values, strict=True)]
        rows.append(el("tr", el("th", link(g, g.label), scope="row", data_v=g.label), cells))
    heads = [el("th", "method", scope="col", title="method, size, and what sets it apart"),
             *(el("th", c.head, scope="col", title=c.explained, class_="n",
                  aria_sort="descending" if c.head == "A_T" else None) for c in COLUMNS)]
    keys = el("dl", [join([el("dt", c.head), el("dd", c.explained)]) for c in COLUMNS], class_="keys")
    search = el("div", el("label", "Filter ", el("input", type="search", placeholder="words, e.g. protocore webp",
                                                 data_filter=name)),
                el("output", plural(len(rows), "row"), aria_live="polite", data_count=name), class_="filter",
                hidden=True)
    return join([search, table(f"All runs of {protocol.name}", heads, rows, class_="sortable", id=name),
                 details("What the columns mean", keys)])
