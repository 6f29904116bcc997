"""The picture of accuracy against bytes: error bars over seeds, the shared decoder not counted and counted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from protocore.bench.compared import Protocol
from protocore.bench.fonts import drawable
from protocore.bench.frontier import Line, in_colour, lines_of, network_bytes, paper_marks
from protocore.bench.style import COLOURS, FAINT, MARKERS, figure_at, short
from protocore.config import format_bytes
from protocore.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 12  # with a colour of their own; all others are grey
LONGEST = 60  # characters of a name


def frontier_figure(protocol: Protocol, path: Path) -> None:
    """A panel without the decoder, and a second one with it where any memory has one; PNG, or SVG by the path."""
    lines = lines_of(protocol)
    if not lines:
        raise UserError(f"{protocol.name}: no run there keeps anything, so there is nothing to draw against bytes")
    order = in_colour(protocol, MOST_LINES)
    lines.sort(key=lambda line: order.index(line.name))
    shared = any(r.decoder_bytes for g in protocol.rivals for r in g.results)
    names = [protocol.name, *order, *(g.label for g in protocol.levels)]
    rows = -(-(min(len(lines), MOST_LINES) + 3) // 2)
    with figure_at(path, 9.6 if shared else 7.2, 4.0 + 0.2 * rows, names, layout="constrained") as figure:
        panels = figure.subplots(1, 2 if shared else 1, sharey=True, squeeze=False)[0]
        for ax, decoder in zip(panels, (False, True), strict=False):
            _panel(ax, protocol, lines, decoder=decoder)
            ax.set_title("decoder counted" if decoder else "decoder not counted" if shared else "")
        panels[0].set_ylabel("accuracy A_T after the last task")
        panels[0].yaxis.set_major_formatter("{x:.0f} %")
        figure.suptitle(f"{drawable(protocol.name)}: accuracy against bytes", x=0.01, ha="left", fontsize=10,
                        fontweight="bold")
        handles, words = panels[0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower left", ncols=2, fontsize=7.5)


def _panel(ax: Axes, protocol: Protocol, lines: list[Line], *, decoder: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for k, line in enumerate(lines):
        own = k < MOST_LINES
        points = sorted((g.bytes(decoder=decoder), g.accuracy.mean, g.accuracy.deviation or 0.0) for g in line.groups)
        x, y, deviation = zip(*points, strict=True)
        other = "other memories" if k == MOST_LINES else "_"
        ax.errorbar(x, y, deviation, color=COLOURS[k % len(COLOURS)] if own else FAINT, markersize=5.5 if own else 6,
                    marker=MARKERS[k % len(MARKERS)] if own else ".", markeredgecolor="white",
                    markeredgewidth=0.6 if own else 0,
                    elinewidth=1.0, linewidth=1.4, linestyle="-" if own else "none", zorder=4 if own else 2,
                    label=short(line.name, LONGEST) if own else other)
    for g in protocol.levels:
        dashes = (0, (4, 3) if g.first.saw_everything else (1, 2))
        ax.axhline(g.accuracy.mean, color=FAINT, linewidth=1.0, linestyle=dashes,
                   label=f"{short(g.label, LONGEST)}: {g.accuracy}")
    marks = paper_marks(protocol)
    if marks:
        ax.scatter([m.bytes for m in marks], [m.accuracy for m in marks], marker="x", s=22, color=FAINT, linewidths=1.1,
                   zorder=3, label="printed in the paper (another network, GPUs)")
    sizes = {size for g in protocol.groups if (size := network_bytes(g))}
    for i, size in enumerate(sorted({min(sizes), max(sizes)} if sizes else ())):
        ax.axvline(size, color=FAINT, linewidth=0.8, linestyle=":",
                   label="_" if i else "the network, which no memory counts")
    ax.set(xscale="log", xlabel="bytes kept")
    low, high = ax.get_xlim()
    ax.set_xlim(low / 1.3, high * 1.3)
    ax.set_ylim(0, None)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,), numticks=12))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x).replace(".0 ", " ")))
    ax.xaxis.set_minor_formatter(NullFormatter())
