"""Pictures of the tables: ours and the paper's beside each other, lines by size, curves after each task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.bench.reproduce.exhibits import STREAMS, Column, Exhibit
from protocore.bench.reproduce.filling import Filled, named
from protocore.bench.reproduce.measures import MEASURES
from protocore.bench.reproduce.scales import title_of
from protocore.bench.reproduce.sheets import curve_of
from protocore.bench.style import COLOURS, FAINT, INK, MARKERS, figure_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKED_TASKS = 20  # more points of a curve would touch


def dots_figure(filled: Filled, path: Path) -> None:
    """A panel a column, a line a row: ours filled with its deviation, the paper's hollow."""
    exhibit = filled.exhibit
    several = len(exhibit.benchmarks) > 1
    across = exhibit.benchmarks if several else [column.measure for column in exhibit.columns]
    down = len(exhibit.columns) // len(across)
    rows = list(reversed(exhibit.rows))
    height = down * (0.24 * len(rows) + 0.75) + 0.6
    with figure_at(path, 1.5 + 2.15 * len(across), height, svg=True, layout="constrained") as figure:
        panels = figure.subplots(down, len(across), squeeze=False, sharey=True)
        for i, column in enumerate(exhibit.columns):
            ax = panels[i % down, i // down] if several else panels[0, i]
            _dots(ax, filled, column)
            ax.set_yticks(range(len(rows)), [named(row) for row in rows])
            ax.set_ylim(-0.6, len(rows) - 0.4)
        _keys(figure, filled)


def _dots(ax: Axes, filled: Filled, column: Column) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    measure, rows = MEASURES[column.measure], list(reversed(filled.exhibit.rows))
    values = []
    for y, row in enumerate(rows):
        ours, theirs = filled.ours(row, column), filled.theirs(row, column)
        colour = COLOURS[1] if row.flags["method"] == "protocore" else COLOURS[0]
        values += [v for v in (ours and ours.mean, theirs and theirs.value) if v is not None]
        if ours and theirs:
            ax.plot([ours.mean, theirs.value], [y, y], color=FAINT, linewidth=0.8, zorder=2)
        if theirs:
            ax.errorbar(theirs.value, y, xerr=theirs.deviation, marker="o", markersize=5, markerfacecolor="white",
                        color=FAINT, elinewidth=0.8, zorder=3)
        if ours:
            ax.errorbar(ours.mean, y, xerr=ours.deviation, marker="o", markersize=5, color=colour, elinewidth=1.0,
                        zorder=4)
    stream = STREAMS[column.benchmark]
    ax.set_title(f"{stream.title}, T={stream.tasks}\n{measure.name}", fontsize=8.5)
    if measure.digits is None and values and min(values) > 0 and max(values) > 20 * min(values):
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(numticks=5))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))  # its own needs mathematical text
        ax.xaxis.set_minor_formatter(NullFormatter())
    elif values:
        ax.set_xlim(0, 1.1 * max(*values, 1e-9))


def lines_figure(filled: Filled, path: Path) -> None:
    """Accuracy by exemplars a class: a line a benchmark, the paper's points hollow."""
    exhibit = filled.exhibit
    with figure_at(path, 6.4, 4.2, svg=True, layout="constrained") as figure:
        ax = figure.add_subplot()
        sizes = [int(row.key) for row in exhibit.rows]
        for k, column in enumerate(exhibit.columns):
            colour = COLOURS[k]
            points = [(n, value.mean, value.deviation or 0.0) for n, row in zip(sizes, exhibit.rows, strict=True)
                      if (value := filled.ours(row, column))]
            x, y, deviation = ([point[i] for point in points] for i in range(3))
            ax.errorbar(x, y, yerr=deviation, color=colour, marker=MARKERS[k], markersize=6, elinewidth=1.0,
                        label=title_of(filled.scale, column.benchmark))
            printed = [(n, theirs.value) for n, row in zip(sizes, exhibit.rows, strict=True)
                       if (theirs := filled.theirs(row, column))]
            ax.plot([n for n, _ in printed], [value for _, value in printed], linestyle="none", marker=MARKERS[k],
                    markerfacecolor="white", color=colour, markersize=7)
        ax.set(xlabel="exemplars a class", xticks=sizes, ylim=(0, None))
        ax.yaxis.set_major_formatter("{x:.0f} %")
        ax.legend(loc="best", fontsize=8)
        _keys(figure, filled)


def curves_figure(filled: Filled, path: Path) -> None:
    """A panel a benchmark, a line a row; where the paper's ends is hollow, at the right."""
    from matplotlib.ticker import MaxNLocator

    exhibit = filled.exhibit
    with figure_at(path, 10.0, 7.6, svg=True, layout="constrained") as figure:
        panels = figure.subplots(2, 2).flat
        lines: dict[str, Any] = {}
        looks = _looks(exhibit)
        for ax, benchmark in zip(panels, exhibit.benchmarks, strict=False):
            column, last = Column(benchmark, "A_T"), 1
            for k, row in enumerate(exhibit.rows):
                mine = row.flags["method"] == "protocore"
                look = looks[k]
                if curve := curve_of(filled, row, benchmark):
                    last = max(last, *curve)
                    (line,) = ax.plot(list(curve), [value.mean for value in curve.values()], **look, markersize=3.5,
                                      markevery=1 if len(curve) <= MARKED_TASKS else len(curve) // 10,
                                      linewidth=2.0 if mine else 1.0, alpha=1.0 if mine else 0.75,
                                      zorder=3 if mine else 2)
                    lines.setdefault(named(row), line)
                if curve and (theirs := filled.theirs(row, column)):
                    ax.plot([1.03], [theirs.value], transform=ax.get_yaxis_transform(), linestyle="none", **look,
                            markersize=4, markerfacecolor="white", clip_on=False)
            if not lines:
                ax.text(0.5, 0.5, "nothing stored", transform=ax.transAxes, ha="center", color=FAINT)
            ax.set(ylim=(0, 102), xlim=(1, max(last, 2)), xlabel="tasks learned")
            ax.xaxis.set_major_locator(MaxNLocator(10, integer=True, steps=[1, 2, 5, 10]))
            ax.yaxis.set_major_formatter("{x:.0f} %")
            ax.set_title(title_of(filled.scale, benchmark))
        if lines:
            figure.legend(lines.values(), lines, loc="outside lower center", ncols=6, fontsize=8)
        _keys(figure, filled, "; hollow: the paper's last")


def _looks(exhibit: Exhibit) -> list[dict[str, str]]:
    """Colour and marker of each row: ProtoCore's have three colours of their own, the others share the rest."""
    own, others, looks = COLOURS[1], (COLOURS[0], *COLOURS[2:6]), []
    mine, more = iter((own, COLOURS[6], "#882255")), 0
    for row in exhibit.rows:
        if row.flags["method"] == "protocore":
            looks.append({"color": next(mine), "marker": "o"})
        else:
            looks.append({"color": others[more % len(others)], "marker": MARKERS[more // len(others) % len(MARKERS)]})
            more += 1
    return looks


def _keys(figure: Any, filled: Filled, legend: str = "") -> None:
    """The title, with the scale; and what filled and hollow mean, if `legend` does not say it."""
    from matplotlib.lines import Line2D

    figure.suptitle(f"{filled.exhibit.title} (scale {filled.scale.name}){legend}", x=0.01, ha="left", fontsize=10,
                    fontweight="bold")
    if not legend:
        keys = [Line2D([], [], linestyle="none", marker="o", color=INK, markerfacecolor=face)
                for face in (INK, "white")]
        figure.legend(keys, ["ours", "paper"], loc="outside lower center", ncols=2, fontsize=8.5)
