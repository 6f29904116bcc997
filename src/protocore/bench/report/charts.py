"""The two large charts: accuracy against bytes, and accuracy after each task."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from protocore.bench.compared import Group, Protocol
from protocore.bench.frontier import Line, Mark, in_colour, lines_of, paper_marks
from protocore.bench.report.axes import (
    COLOURS,
    NARROW,
    Box,
    Scale,
    axes,
    both,
    counted,
    legend,
    log_ticks,
    look,
    marker,
    nice_top,
    sign,
    size_word,
    svg,
    ticks,
)
from protocore.bench.report.markup import Child, Html, el, join
from protocore.config import format_bytes, plural

MOST_LINES = 10  # memories with a colour of their own; all others are grey dots


def frontier_chart(protocol: Protocol, *, decoder: bool) -> Html:
    """A_T against bytes kept on a log axis: a line a memory, error bars over seeds, levels and the paper's figures."""
    order = in_colour(protocol, MOST_LINES)  # the same colours, whether the decoder is counted or not
    lines = sorted(lines_of(protocol), key=lambda line: order.index(line.name))
    strong, faint = lines[:MOST_LINES], lines[MOST_LINES:]
    marks = paper_marks(protocol)
    sizes = [size for line in lines for size, _ in line.points(decoder=decoder)] + [m.bytes for m in marks]
    low, high = _room(max(min(sizes), 1.0), max(sizes))
    top = min(nice_top(1.04 * max([_top(g) for g in protocol.groups] + [m.accuracy for m in marks])), 100.0)
    which = "with the shared decoder" if decoder else "without the shared decoder"
    title = f"{protocol.name}: accuracy A_T against bytes kept, {which}"
    best = ", ".join(f"{line.name} {max(g.accuracy.mean for g in line.groups):.1f} %" for line in strong[:4])
    said = f"{plural(len(lines), 'memory').replace('memorys', 'memories')}; the best of each: {best}"

    def draw(width: float) -> Html:
        box = Box(width, 400 if width > NARROW else 340)
        x, y = box.x(low, high, log=True), box.y(0, top)
        x_ticks = [(t, size_word(t)) for t in log_ticks(low, high, 8 if width > NARROW else 4)]
        parts = axes(box, x, y, x_ticks, [(t, f"{t:g} %") for t in ticks(0, top)], "bytes kept (log scale)")
        parts += [_level(box, y, g) for g in protocol.levels]
        parts += [_cross(x, y, mark) for mark in marks]
        parts += [el("g", _dots(0, line, x, y, decoder), class_="faint") for line in faint]
        parts += [_line(k, line, x, y, decoder) for k, line in reversed(list(enumerate(strong)))]
        return svg(title, said, box, parts)

    return both(draw)


def frontier_legend(protocol: Protocol) -> Html:
    """What the lines of both charts are."""
    names, marks = in_colour(protocol, MOST_LINES), paper_marks(protocol)
    strong, faint = names[:MOST_LINES], names[MOST_LINES:]
    entries: list[tuple[Html, Child]] = [(sign(k), name) for k, name in enumerate(strong)]
    if faint:
        words = "other memory" if len(faint) == 1 else "other memories"
        entries.append((sign(0, line=False, colour="faint"), f"{len(faint)} {words}"))
    if protocol.levels:
        levels = "; ".join(f"{g.label} {g.accuracy}" for g in protocol.levels)
        entries.append((sign(None, dashed=True), f"of no size: {levels}"))
    if marks:
        entries.append((el("span", "✕", class_="dim"), "printed in the paper (another network, GPUs)"))
    return legend(entries)


def _room(low: float, high: float) -> tuple[float, float]:
    """The ends of the axis: some way beyond the points, and a factor of 20 apart at least."""
    beyond = max(1.5, math.sqrt(20 * low / high))
    return low / beyond, high * beyond


def _top(group: Group) -> float:
    return group.accuracy.mean + (group.accuracy.deviation or 0.0)


def _level(box: Box, y: Scale, group: Group) -> Html:
    """A dashed line across. An upper bound is named at the left, where memories are small; a lower one at the right."""
    at, upper = y(group.accuracy.mean), group.first.saw_everything
    words = f"{group.first.method} {group.accuracy.mean:.1f}"
    line = el("line", el("title", f"{group.label}: {group.accuracy} %"), x1=box.left, x2=box.width - box.right, y1=at,
              y2=at, class_="ln dash level")
    x, side = (box.left + 4, "") if upper else (box.width - box.right, " end")
    return join([line, el("text", words, x=x, y=at - 5 if at > 24 else at + 13, class_=f"dim small halo{side}")])


def _cross(x: Scale, y: Scale, mark: Mark) -> Html:
    a, b = x(mark.bytes), y(mark.accuracy)
    title = f"paper: {mark.name}, {mark.accuracy} % in {format_bytes(mark.bytes)}"
    return el("path", el("title", title), d=f"M{a - 4} {b - 4}l8 8m0 -8l-8 8", class_="cross")


def _dots(k: int, line: Line, x: Scale, y: Scale, decoder: bool) -> list[Html]:
    """Markers of a memory's sizes, with their error bars behind them."""
    made = []
    for group in line.groups:
        a, spread = x(group.bytes(decoder=decoder)), group.accuracy
        if spread.deviation:
            low, high = y(spread.mean - spread.deviation), y(spread.mean + spread.deviation)
            made.append(el("path", d=f"M{a} {low}V{high}m-3 0h6M{a - 3} {low}h6", class_="bar-line"))
        title = (f"{group.label}: {spread} % in {format_bytes(group.bytes(decoder=decoder))}, "
                 f"{plural(spread.count, 'seed')}")
        made.append(marker(k, a, y(spread.mean), title))
    return made


def _line(k: int, line: Line, x: Scale, y: Scale, decoder: bool) -> Html:
    points = " ".join(f"{x(size)},{y(height)}" for size, height in line.points(decoder=decoder))
    return el("g", el("polyline", points=points, class_="ln"), _dots(k, line, x, y, decoder), class_=look(k))


def curve(group: Group) -> list[tuple[int, float]]:
    """Tasks learned, and the mean accuracy of them: over the seeds."""
    rows = zip(*(r.class_incremental.R for r in group.results), strict=False)
    return [(len(same[0]), statistics.fmean(statistics.fmean(row) for row in same)) for same in rows]


def curve_looks(protocol: Protocol, shown: Sequence[Group]) -> list[int]:
    """A kind looks as its memory does in the chart of bytes; of two sizes of one memory the second takes what is free.
    """
    order = {name: k for k, name in enumerate(in_colour(protocol, MOST_LINES)[:COLOURS])}
    taken: dict[str, int] = {}
    for group in shown:
        if (k := order.get(group.line)) is not None and k not in taken.values():
            taken[group.label] = k
    free = (k for k in itertools.count() if k not in taken.values())
    return [taken[g.label] if g.label in taken else next(free) for g in shown]


def curves_chart(protocol: Protocol, shown: Sequence[Group]) -> Html:
    """Mean accuracy of the tasks seen so far, after each task; what has no size is dashed."""
    tasks = protocol.first.tasks
    groups, looks = [*shown, *protocol.levels], curve_looks(protocol, shown)
    top = min(nice_top(1.02 * max(value for g in groups for _, value in curve(g))), 100.0)
    title = f"{protocol.name}: mean accuracy of the tasks seen so far, after each task"
    said = "; ".join(f"{g.label} ends at {curve(g)[-1][1]:.1f} %" for g in groups[:8])

    def draw(width: float) -> Html:
        box = Box(width, 360 if width > NARROW else 300)
        x, y = box.x(1, max(tasks, 2)), box.y(0, top)
        x_ticks = counted(1, tasks, 10 if width > NARROW or tasks <= 10 else 5)
        parts = axes(box, x, y, x_ticks, [(t, f"{t:g} %") for t in ticks(0, top)], "tasks learned")
        for g in protocol.levels:
            parts.append(_level(box, y, g) if len(curve(g)) == 1 else
                         el("polyline", points=_places(g, x, y), class_="ln dash level"))
        for k, g in reversed(list(zip(looks, shown, strict=True))):
            dots = [marker(k, x(t), y(v), f"{g.label}: {v:.1f} % after task {t}", 3.5) for t, v in curve(g)]
            parts.append(el("g", el("polyline", points=_places(g, x, y), class_="ln"),
                            dots if tasks <= 20 else dots[-1:], class_=look(k)))
        return svg(title, said, box, parts)

    entries = [(sign(k), f"{g.label}: {g.accuracy}") for k, g in zip(looks, shown, strict=True)]
    entries += [(sign(None, dashed=True), f"{g.label}: {g.accuracy}") for g in protocol.levels]
    return join([both(draw), legend(entries)])


def _places(group: Group, x: Scale, y: Scale) -> str:
    return " ".join(f"{x(t)},{y(v)}" for t, v in curve(group))

