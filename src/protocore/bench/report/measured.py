"""What was measured, in charts: accuracy by task and class, bytes over time, costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from protocore.bench.compared import Group, Protocol, Spread
from protocore.bench.costs import flop_words
from protocore.bench.frontier import winners
from protocore.bench.report.axes import look, size_word
from protocore.bench.report.charts import curve, curves_chart
from protocore.bench.report.markup import Child, Html, details, el, join, number, numbers, table
from protocore.bench.report.small import bars, shares
from protocore.bench.report.verdict import Link, spread
from protocore.bench.tables import NONE
from protocore.config import format_bytes, plural
from protocore.memory.ledger import HEADER, Entry
from protocore.runs.result import Result

SHOWN = 8  # kinds of runs that have a chart of their own
MOST_TASKS = 12  # columns of a matrix; of more tasks an even choice
MOST_BARS = 100
PARTS = {"learn": "learning", "select": "selecting", "condense": "condensing", "code": "coding",
         "evaluate": "evaluating", "fisher": "Fisher matrix"}


def leading(protocol: Protocol, most: int = SHOWN) -> list[Group]:
    """Those that a reader looks for: who wins somewhere, the best of each method, then by accuracy."""
    by_accuracy = sorted(protocol.rivals, key=lambda g: -g.accuracy.mean)
    won = [step.winner for step in reversed(winners(protocol.rivals))]
    best = {g.first.method: g for g in reversed(by_accuracy)}
    wanted = [*won, *sorted(best.values(), key=lambda g: -g.accuracy.mean), *by_accuracy]
    return list({g.label: g for g in wanted}.values())[:most]


def only(shown: Sequence[Group], protocol: Protocol) -> Html | None:
    """A word where not all are shown."""
    if len(shown) >= len(protocol.rivals):
        return None
    return el("p", f"{len(shown)} of {len(protocol.rivals)} kinds of runs have a picture here: who wins somewhere, "
              "then the best of each method. All are in the data below.", class_="note")


def curves(protocol: Protocol, link: Link) -> Html:
    shown = leading(protocol)
    tasks = _chosen(protocol.first.tasks)
    rows = []
    for g in sorted(protocol.groups, key=lambda g: -g.accuracy.mean):
        known = dict(curve(g))
        rows.append(el("tr", el("th", link(g, g.label), scope="row"),
                       numbers(f"{known[t + 1]:.1f}" if t + 1 in known else "" for t in tasks)))
    return join([curves_chart(protocol, shown), only(shown, protocol),
                 details("The same in numbers", table("Mean accuracy (%) of the tasks seen so far, after task",
                                                      ("method", *(number(t + 1) for t in tasks)), rows))])


def _chosen(tasks: int) -> list[int]:
    if tasks <= MOST_TASKS:
        return list(range(tasks))
    return sorted({round(i * (tasks - 1) / (MOST_TASKS - 1)) for i in range(MOST_TASKS)})


def matrices(protocol: Protocol, link: Link) -> Html:
    groups = [g for g in [*leading(protocol), *protocol.levels] if len(g.first.class_incremental.R) > 1]
    if not groups:
        return el("p", "Nothing here was measured after more than one task.", class_="note")
    made = [details(g.label, _matrix(g, link), opened=i == 0) for i, g in enumerate(groups)]
    return join([*made, only(leading(protocol), protocol)])


def _matrix(group: Group, link: Link) -> Html:
    """R over the seeds: shades behind the numbers, so that it is a table for those who cannot see them."""
    tasks = _chosen(group.first.tasks)
    same = list(zip(*(r.class_incremental.R for r in group.results), strict=False))
    rows = []
    for of_seeds in same:
        if (last := len(of_seeds[0])) - 1 not in tasks:
            continue
        values = [statistics.fmean(row[t] for row in of_seeds) for t in tasks if t < last]
        mean = statistics.fmean(statistics.fmean(row) for row in of_seeds)
        cells = [el("td", f"{v:.0f}", class_=f"h h{min(max(int(v // 10), 0), 10)}") for v in values]
        cells += [el("td")] * (len(tasks) - len(values))
        rows.append(el("tr", el("th", last, scope="row"), cells, el("td", f"{mean:.1f}", class_="n strong")))
    chosen = "" if len(tasks) == group.first.tasks else f"; {len(tasks)} of {group.first.tasks} tasks"
    caption = f"Accuracy (%) on the classes of each task, a row after each task{chosen}"
    return join([table(caption, ("after", *(t + 1 for t in tasks), "mean"), rows, class_="matrix", fit=True),
                 el("p", "How it was made: ", link(group, group.label), class_="note")])


def bias(protocol: Protocol, link: Link) -> Html:
    """Old classes against new ones at the end: a bar a class, in the order in which they came."""
    shown = [g for g in leading(protocol) if g.first.tasks > 1 and not g.first.saw_everything]
    shown += [g for g in protocol.levels if g.first.keeps_nothing and not g.first.saw_everything]
    if not shown:
        return el("p", "There is one task only, so there is no old and new.", class_="note")
    cards, rows = [], []
    for g in shown:
        values, names, new, of_classes = last_accuracies(g)
        old_mean, new_mean = (statistics.fmean(part) for part in (values[:-new], values[-new:]))
        gap = new_mean - old_mean
        title = f"{g.label}: accuracy of each {'class' if of_classes else 'task'} after the last task"
        said = f"old {old_mean:.1f} %, newest task {new_mean:.1f} %, difference {_signed(gap)}"
        chart = bars(title, said, values, [look(0)] * (len(values) - new) + [look(1)] * new, percent=True, names=names,
                     x_title=f"{'class' if of_classes else 'task'}, in order of arrival",
                     lines=[(old_mean, "mean of old")])
        tag = el("span", f"new − old: {_signed(gap)}", class_="tag")
        cards.append(el("figure", el("figcaption", link(g, g.label), tag), chart))
        rows.append((g, old_mean, new_mean, gap))
    body = [el("tr", el("th", link(g, g.label), scope="row"), numbers([f"{a:.1f}", f"{b:.1f}", _signed(gap)]))
            for g, a, b, gap in rows]
    heads = ("method", *map(number, ("old classes", "newest task", "difference")))
    words = ("After the last task. A large positive difference says that the newest task pushes the older ones out; a "
             "negative one that the newest was hardly learned. The dashed line is "
             "the mean of the old ones. By task where a result does not tell its classes.")
    return join([el("p", words, class_="note"), el("div", cards, class_="multiples"),
                 details("The same in numbers", table("Accuracy (%) after the last task", heads, body)),
                 only(leading(protocol), protocol)])


def last_accuracies(group: Group) -> tuple[list[float], list[str], int, bool]:
    """Accuracies at the end by class or task, their names, how many of them are new, and whether they are classes."""
    r = group.first
    told = [run.per_class[-1] for run in group.results if run.per_class]
    labels = [str(k) for k in range(min(r.classes, MOST_BARS + 1))]
    if told and r.classes <= MOST_BARS and all(0 <= row.get(label, -1) <= 100 for row in told for label in labels):
        a_task = r.settings["classes_per_task"] or -(-r.classes // r.tasks)
        new = r.classes - (r.tasks - 1) * a_task
        if 0 < new < r.classes:
            names = [r.class_names[k] if k < len(r.class_names) else label for k, label in enumerate(labels)]
            return [statistics.fmean(row[label] for row in told) for label in labels], names, new, True
    last = zip(*(run.class_incremental.R[-1] for run in group.results), strict=False)
    values = [statistics.fmean(same) for same in last]
    return values, [f"task {k + 1}" for k in range(len(values))], 1, False


def ledgers(protocol: Protocol, link: Link) -> Html:
    """Bytes after each task, and what they are at the end."""
    cards = []
    for g in leading(protocol):
        sizes = [statistics.fmean(same) for same in zip(*(r.bytes_after_each_task for r in g.results), strict=False)]
        parts = parts_of(g.first)
        words = [format_bytes(size) for _, size in parts]
        chart = bars(f"{g.label}: bytes kept after each task", f"{size_word(sizes[-1])} at the end", sizes,
                     [look(0)] * len(sizes), x_title="tasks learned",
                     names=[f"after task {i + 1}" for i in range(len(sizes))]) if sizes else None
        keys = el("ul", (el("li", el("span", "", class_=f"dot {look(k)}"), f" {name}: {word}")
                         for k, ((name, _), word) in enumerate(zip(parts, words, strict=True))), class_="legend tight")
        beside = [e for e in g.first.ledger.entries if e.shared and e.bytes]
        apart = "; ".join(f"{e.name} {format_bytes(e.bytes)}" for e in beside)
        pays = f", which pays from {plural(g.first.decoder_pays_from, 'class')} on" if g.first.decoder_pays_from else ""
        cards.append(el("figure", el("figcaption", link(g, g.label), el("span", format_bytes(g.bytes()), class_="tag")),
                        chart, shares(f"{g.label}: what is kept at the end", parts, words), keys,
                        el("p", f"Beside the memory: {apart}{pays}", class_="note") if apart else None))
    if not cards:
        return el("p", "No run here keeps anything.", class_="note")
    words = "Every byte that outlives a task, after each task, and what it is at the end. The network itself is apart."
    return join([el("p", words, class_="note"), el("div", cards, class_="multiples"),
                 only(leading(protocol), protocol)])


def parts_of(result: Result) -> list[tuple[str, float]]:
    """Bytes of the memory by what they are, the largest first."""
    found: dict[str, float] = {}
    for e in result.ledger.entries:
        if not e.shared and e.bytes:
            found[_part(e)] = found.get(_part(e), 0) + e.bytes
    return sorted(found.items(), key=lambda item: -item[1])


def _part(e: Entry) -> str:
    if e.name == HEADER or e.kind == "header":
        return "file header"
    if e.kind == "exemplars":
        return f"{e.origin or 'real'} exemplars"
    return e.kind or e.name.partition("/")[0]


def costs(protocol: Protocol, link: Link) -> Html:
    """Seconds, work and memory: what each result tells."""
    results = [r for g in protocol.groups for r in g.results]
    names = list(dict.fromkeys(name for r in results for name, value in r.seconds.items() if value))
    longest = max((sum(r.seconds.values()) for r in results), default=0.0) or 1.0
    more = [(head, of) for head, of in _MORE if any(of(r) for r in results)]
    heads: list[Child] = ["method", "seconds", *(number(PARTS.get(n, n)) for n in names),
                          *(number(head) for head, _ in more)]
    rows = []
    for g in sorted(protocol.groups, key=lambda g: statistics.fmean(sum(r.seconds.values()) for r in g.results)):
        means = [(PARTS.get(n, n), Spread.of([r.seconds[n] for r in g.results if n in r.seconds])) for n in names]
        known = [(n, value.mean) for n, value in means if value]
        chart = shares(f"{g.label}: seconds", [(n, value.mean if value else 0.0) for n, value in means],
                       [f"{value.mean:,.1f} s" if value else "none" for _, value in means], longest)
        extra = []
        for _, of in more:
            found = g.over_seeds(of)
            extra.append(_words(found) if found else NONE)
        total = el("span", f"{_seconds(sum(v for _, v in known))} s", class_="dim nb")
        rows.append(el("tr", el("th", link(g, g.label), scope="row"), el("td", chart, total, class_="cost"),
                       numbers([f"{value.mean:,.1f}" if value else NONE for _, value in means]),
                       numbers(extra)))
    keys = el("ul", (el("li", el("span", "", class_=f"dot {look(k)}"), f" {PARTS.get(n, n)}")
                     for k, n in enumerate(names)), class_="legend tight")
    machines = dict.fromkeys(_machine(r) for r in results)
    said = f"Means over the seeds. Measured on: {'; '.join(list(machines)[:4])}{'; …' if len(machines) > 4 else ''}. "
    return join([keys, table("Seconds, work and memory", heads, rows, class_="costs"),
                 el("p", said + "Seconds of runs that shared a machine with others say little.", class_="note")])


def _flops(part: str) -> Callable[[Result], float | None]:
    def of(r: Result) -> float | None:
        return (getattr(r, "flops", None) or {}).get(part)

    return of


def _joules(r: Result) -> float | None:
    return sum((getattr(r, "energy_joules", None) or {}).values()) or None


# Some of these are measured by newer versions only: a column is there where a result has it.
_MORE: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
    ("wall clock, s", lambda r: getattr(r, "wall_seconds", None)),
    ("FLOPs, all steps", _flops("learn")),
    ("FLOPs, one prediction", _flops("predict")),
    ("steps", lambda r: getattr(r, "steps", None)),
    ("pictures a second", lambda r: r.images_per_second or None),
    ("peak memory, MB", lambda r: r.peak_memory_bytes / 1e6 or None),
    ("peak on the device, MB", lambda r: (getattr(r, "device_memory_bytes", None) or 0) / 1e6 or None),
    ("energy, J", _joules),
)


def _words(value: Spread) -> str:
    if value.mean >= 1e7:
        return flop_words(value.mean)
    return spread(value) if value.mean < 100 else f"{value.mean:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.05 else f"{value:.2g}"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _machine(r: Result) -> str:
    m = r.machine
    words = [m.get("system"), m.get("processor"), m.get("capability"),
             plural(r.processes, "process") if r.processes > 1 else None,
             plural(r.threads, "thread") if r.threads else None, f"torch {m['torch']}" if "torch" in m else None]
    return ", ".join(str(w) for w in words if w)
