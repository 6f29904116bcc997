"""Pictures of results. matplotlib is loaded when one is drawn, so that `import protocore` stays quick."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protocore.bench.fonts import drawable
from protocore.bench.labels import run_labels
from protocore.bench.style import COLOURS, DPI, FAINT, INK, MARKERS, figure_at
from protocore.config import format_bytes
from protocore.errors import UserError
from protocore.runs.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECT = 8  # up to this many runs are named at the end of their line, more in a legend
MATRIX_TOP = 160  # percent at the dark end of the colours: at 100 they are still light enough for dark numbers
Point = tuple[float, float, str, str, str]  # bytes, accuracy, label, colour, marker
# Where a label may stand: points to the right, points up, and which of its ends is at the marker.
AROUND = ((8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center"), (8, 10, "left"), (8, -10, "left"),
          (-8, 10, "right"), (-8, -10, "right"), (10, 20, "left"), (10, -20, "left"))


def accuracy_curves(results: list[Result], path: Path) -> None:
    """Mean accuracy of the tasks seen so far, after each task: class-incremental solid, task-incremental dashed."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    _need(results)
    labels = _labels(results)
    tasks = max(r.tasks for r in results)
    with figure_at(path, 7.2, 4.2, [_benchmarks(results), *_labels(results)], layout="constrained") as figure:
        ax = figure.add_subplot()
        looks, ends = _looks(results), []
        for result, (colour, marker) in zip(results, looks, strict=True):
            once = result.saw_everything
            for kind, dashes, strong in (("task_incremental", "--", False), ("class_incremental", "-", True)):
                if once and not strong:
                    continue
                r = getattr(result, kind).R
                y = [statistics.fmean(row) for row in r]
                ax.plot([len(row) for row in r], y, dashes, color=colour, alpha=1.0 if strong else 0.55,
                        linewidth=1.6 if strong else 1.0, marker=marker if tasks <= 20 or once else None,
                        markerfacecolor=colour if strong else "white", zorder=4 if once else 3 if strong else 2)
                if strong:
                    ends.append((len(r[-1]), y[-1], colour))
        beside = max(0.018 * (tasks - 1), 0.05)
        ax.set(xlim=(1 - beside, tasks + beside), ylim=(0, 102), xlabel="tasks learned")
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter("{x:.0f} %")
        ax.set_title(f"{_benchmarks(results)}: mean accuracy of the tasks seen so far", pad=24)
        keys = [Line2D([], [], color=INK, linestyle="-"), Line2D([], [], color=INK, linestyle="--", linewidth=1.0)]
        key = ax.legend(keys, ["class-incremental", "task-incremental"], loc="lower left", ncols=2,
                        bbox_to_anchor=(0, 0.995), borderaxespad=0.2, borderpad=0, handlelength=2.2)
        if len(results) <= DIRECT:
            _name_ends(ax, ends, labels)
        else:
            lines = [Line2D([], [], color=c, marker=m, linestyle="none" if r.saw_everything else "-")
                     for r, (c, m) in zip(results, looks, strict=True)]
            ax.legend(lines, [_wrapped(n) for n in labels], loc="upper left", bbox_to_anchor=(1.0, 1.0))
            ax.add_artist(key)


def _looks(results: list[Result]) -> list[tuple[str, str]]:
    """Colour and marker of each run; bounds are grey, so that the colours reach further."""
    looks, used = [], 0
    for result in results:
        if result.saw_everything or result.keeps_nothing:
            looks.append((FAINT, "D" if result.saw_everything else "o"))
        else:
            looks.append((COLOURS[used % len(COLOURS)], MARKERS[used // len(COLOURS) % len(MARKERS)]))
            used += 1
    return looks


def _name_ends(ax: Axes, ends: Sequence[tuple[float, float, str]], labels: list[str]) -> None:
    """Each label to the right of where its line ends, moved up or down where two would touch."""
    wrapped = [_wrapped(label) for label in labels]
    line_height = 4.3  # percent points of the axis that a line of text takes
    heights = [line_height * (1 + text.count("\n")) for text in wrapped]
    places = _spread([y for _, y, _ in ends], heights, 0.0, 104.0)
    left, right = ax.get_xlim()
    for (x, y, colour), text, place in zip(ends, wrapped, places, strict=True):
        ax.annotate(text, (x, y), xytext=(right + 0.04 * (right - left), place), textcoords="data", color=colour,
                    va="center", fontsize=8.5, linespacing=1.0, annotation_clip=False,
                    arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.7,
                                "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)})


def _spread(centres: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Centres moved as little as a sweep up and a sweep down need so that no two boxes overlap."""
    order = sorted(range(len(centres)), key=lambda i: centres[i])
    places = list(centres)
    floor = low
    for i in order:
        places[i] = max(places[i], floor + heights[i] / 2)
        floor = places[i] + heights[i] / 2
    ceiling = high
    for i in reversed(order):
        places[i] = min(places[i], ceiling - heights[i] / 2)
        ceiling = places[i] - heights[i] / 2
    return places


def matrix_heatmap(result: Result, path: Path) -> None:
    """R with its numbers: a row after each task, a column for each task's classes."""
    r = result.class_incremental.R
    tasks = max(len(row) for row in r)
    many = tasks > 12
    cell = 0.27 if many else 0.56
    values = np.full((len(r), tasks), np.nan)
    for i, row in enumerate(r):
        values[i, : len(row)] = row
    title = f"{_benchmarks([result])}: {_labels([result])[0]}"
    with figure_at(path, max(tasks * cell + 1.1, 4.2), len(r) * cell + 1.2, [title], layout="constrained") as figure:
        ax = figure.add_subplot()
        ax.pcolormesh(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=MATRIX_TOP, edgecolors="white",
                      linewidth=0.8)
        for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True):
            v = values[i, j]
            ax.text(j + 0.5, i + 0.5, f"{v:.0f}" if many else f"{v:.1f}", ha="center", va="center", in_layout=False,
                    fontsize=7 if many else 9, color="#111111")
        every = 1 if tasks <= 20 else 5
        ticks = [j for j in range(tasks) if (j + 1) % every == 0 or j == 0]
        ax.set_xticks([j + 0.5 for j in ticks], [str(j + 1) for j in ticks])
        rows = [i for i in range(len(r)) if len(r[i]) - 1 in ticks or len(r) == 1]
        ax.set_yticks([i + 0.5 for i in rows], [str(len(r[i])) for i in rows])
        ax.set(aspect="equal", xlabel="accuracy (%) on the classes of task", ylabel="after task")
        ax.invert_yaxis()
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.set_title("\n".join(textwrap.wrap(title, int(13 * (tasks * cell + 0.6)))))


def bytes_figure(results: list[Result], path: Path) -> None:
    """Final accuracy against bytes kept. What keeps nothing, or saw all the data, is a level and not a point."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    _need(results)
    points: list[Point] = []
    levels: list[Point] = []
    methods: list[str] = []
    for result, label in zip(results, _labels(results), strict=True):
        accuracy, method = result.class_incremental.A_T, result.method
        if result.saw_everything or result.keeps_nothing:
            levels.append((0, accuracy, label, FAINT, ""))
            continue
        if method not in methods:
            methods.append(method)
        k = methods.index(method)
        points.append((result.bytes_kept, accuracy, label, COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]))
    with figure_at(path, 7.2, 4.2, [_benchmarks(results), *_labels(results)], layout="constrained") as figure:
        ax = figure.add_subplot()
        shared = any(r.decoder_bytes for r in results)
        ax.set(xscale="log", ylim=(0, 104), xlabel="bytes kept" + ", without the decoder" * shared)
        ax.set_title(f"{_benchmarks(results)}: final accuracy A_T against bytes kept")
        ax.yaxis.set_major_formatter("{x:.0f} %")
        if points:
            sizes = [p[0] for p in points]
            ax.set_xlim(min(sizes) / 1.8, max(sizes) * 3)
        low, high = ax.get_xlim()
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,), numticks=12))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x).replace(".0 ", " ")))
        ax.xaxis.set_minor_formatter(NullFormatter())
        for x, y, _, colour, mark in points:
            ax.plot([x], [y], linestyle="none", marker=mark, markersize=7, color=colour, markeredgecolor="white",
                    markeredgewidth=0.8, zorder=3)
        for _, y, _, colour, _ in levels:
            ax.axhline(y, color=colour, linewidth=1.0, linestyle=(0, (4, 3)))
        figure.draw_without_rendering()
        _name_points(ax, points, levels)


def memories_figure(memories: Mapping[str, Sequence[list[Result]]], path: Path) -> None:
    """Final accuracy against bytes a class: a line a memory, a point a room, mean and deviation over its seeds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    results = [r for rooms in memories.values() for seeds in rooms for r in seeds]
    _need(results)
    with figure_at(path, 7.2, 4.2, [_benchmarks(results), *_labels(results)], layout="constrained") as figure:
        ax = figure.add_subplot()
        for k, (name, rooms) in enumerate(memories.items()):
            points = sorted((statistics.fmean(r.bytes_kept / r.classes for r in seeds),
                             statistics.fmean(a := [r.class_incremental.A_T for r in seeds]),
                             statistics.stdev(a) if len(a) > 1 else 0.0) for seeds in rooms)
            x, y, deviation = zip(*points, strict=True)
            colour, mark = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            ax.errorbar(x, y, deviation, color=colour, marker=mark, markersize=6, markeredgecolor="white",
                        markeredgewidth=0.8, elinewidth=1.0, label=name)
        shared = any(r.decoder_bytes for r in results)
        ax.set(xscale="log", xlabel="bytes kept a class" + ", without the decoder" * shared)
        ax.set_ylim(0, 1.15 * max(r.class_incremental.A_T for r in results))
        ax.set_title(f"{_benchmarks(results)}: final accuracy A_T against bytes a class")
        ax.yaxis.set_major_formatter("{x:.0f} %")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x).replace(".0 ", " ")))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.legend(loc="lower right")


def _name_points(ax: Axes, points: list[Point], levels: list[Point]) -> None:
    """Labels beside their markers: of the places around each the one that covers least of anything else."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    halo = {"fontsize": 8.5, "linespacing": 1.0, "path_effects": [withStroke(linewidth=2.5, foreground="white")]}
    frame = ax.get_window_extent()
    reach = 5 * DPI / 72
    taken = []
    for x, y in (ax.transData.transform(p[:2]) for p in points):
        taken.append(Bbox.from_extents(x - reach, y - reach, x + reach, y + reach))
    for _, y, label, colour, _ in levels:
        height = ax.transData.transform((1, y))[1]
        taken.append(Bbox.from_extents(frame.x0, height - 2, frame.x1, height + 2))
        text = ax.annotate(label, (1, y), xycoords=("axes fraction", "data"), xytext=(0, 2), color=colour,
                           textcoords="offset points", ha="right", va="bottom", in_layout=False, **halo)
        taken.append(text.get_window_extent())
    for x, y, label, colour, _ in points:
        tried = []
        for dx, dy, side in AROUND:
            text = ax.annotate(_wrapped(label), (x, y), xytext=(dx, dy), textcoords="offset points", ha=side,
                               va="center", color=colour, in_layout=False, **halo)
            box = text.get_window_extent()
            outside = box.width * box.height - _shared_area(box, frame)
            tried.append((outside + sum(_shared_area(box, other) for other in taken), len(tried), text, box))
        best = min(tried, key=lambda t: t[:2])
        for other in tried:
            if other is not best:
                other[2].remove()
        taken.append(best[3])


def _shared_area(a: Any, b: Any) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(width, 0.0) * max(height, 0.0)


def _labels(results: list[Result]) -> list[str]:
    return [drawable(label) for label in run_labels(results)]


def _benchmarks(results: list[Result]) -> str:
    return drawable(", ".join(dict.fromkeys(r.benchmark for r in results)))


def _wrapped(label: str) -> str:
    """In lines of some 26 characters, broken after commas."""
    lines: list[str] = []
    for part in label.split(", "):
        if lines and len(lines[-1]) + len(part) <= 24:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return ",\n".join(lines)


def _need(results: list[Result]) -> None:
    if not results:
        raise UserError("there is no finished run to draw; make one with `protocore run`")
