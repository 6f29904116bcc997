"""Pictures of runs. matplotlib is loaded when one is drawn, so that `import protocore` stays quick."""

from __future__ import annotations

import io
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protocore.bench.results import keeps_nothing, run_labels, saw_everything
from protocore.config import format_bytes
from protocore.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200  # twice what a README shows
# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "v", "P", "X")
INK, FAINT = "#333333", "#8A8A8A"
DIRECT = 8  # up to this many runs are named at the end of their line, more in a legend
COLUMNS = 20  # of an exemplar grid
STYLE = {
    "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.titlelocation": "left",
    "axes.titlesize": 10, "axes.titleweight": "bold", "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "legend.frameon": False, "xtick.major.size": 0, "ytick.major.size": 0,
}


@contextmanager
def _figure(path: Path, width: float, height: float, **more: Any) -> Iterator[Figure]:
    """A figure in our style, whatever style the user has set, written whole as PNG at the end."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from protocore.memory.ledger import write_atomic

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", **more)
        FigureCanvasAgg(figure)
        yield figure
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    write_atomic(path, data.getvalue())


def accuracy_curves(results: list[dict[str, Any]], path: Path) -> None:
    """Mean accuracy of the tasks seen so far, after each task: class-incremental solid, task-incremental dashed."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    _need(results)
    labels = run_labels(results)
    tasks = max(r["tasks"] for r in results)
    with _figure(path, 7.2, 4.2, layout="constrained") as figure:
        ax = figure.add_subplot()
        ends = []
        for k, (result, colour) in enumerate(zip(results, islice(cycle(COLOURS), len(results)), strict=True)):
            once = saw_everything(result)
            marker = "D" if once else MARKERS[k // len(COLOURS) % len(MARKERS)]
            for kind, dashes, strength in (("task_incremental", "--", 0.55), ("class_incremental", "-", 1.0)):
                r = result[kind]["R"]
                y = [statistics.fmean(row) for row in r]
                ax.plot([len(row) for row in r], y, dashes, color=colour, alpha=strength,
                        linewidth=1.0 if strength < 1 else 1.6, marker=marker if tasks <= 20 or once else None,
                        markerfacecolor=colour if strength == 1 else "white")
            ends.append((len(r[-1]), y[-1], colour))
        ax.set(xlim=(1 - 0.02 * tasks, tasks + 0.02 * tasks), ylim=(0, 102), xlabel="tasks learned")
        ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        ax.yaxis.set_major_formatter("{x:.0f} %")
        ax.set_title(f"{_benchmarks(results)}: mean accuracy of the tasks seen so far", pad=24)
        keys = [Line2D([], [], color=INK, linestyle=s, linewidth=w) for s, w in (("-", 1.6), ("--", 1.0))]
        key = ax.legend(keys, ["class-incremental", "task-incremental"], loc="lower left", ncols=2,
                        bbox_to_anchor=(0, 0.995), borderaxespad=0.2, borderpad=0, handlelength=2.2)
        if len(results) <= DIRECT:
            _name_ends(ax, ends, labels)
        else:
            lines = [Line2D([], [], color=c, marker=MARKERS[k // len(COLOURS) % len(MARKERS)])
                     for k, (_, _, c) in enumerate(ends)]
            ax.legend(lines, [_wrapped(n) for n in labels], loc="upper left", bbox_to_anchor=(1.0, 1.0))
            ax.add_artist(key)


def _name_ends(ax: Axes, ends: Sequence[tuple[float, float, str]], labels: list[str]) -> None:
    """Each label to the right of where its line ends, moved up or down where two would touch."""
    wrapped = [_wrapped(label) for label in labels]
    line_height = 4.3  # percent points of the axis that a line of text takes
    heights = [line_height * (1 + text.count("\n")) for text in wrapped]
    places = _spread([y for _, y, _ in ends], heights, 0.0, 104.0)
    right = ax.get_xlim()[1]
    for (x, y, colour), text, place in zip(ends, wrapped, places, strict=True):
        ax.annotate(text, (x, y), xytext=(right + 0.035 * right, place), textcoords="data", color=colour,
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


def matrix_heatmap(result: dict[str, Any], path: Path) -> None:
    """R with its numbers: a row after each task, a column for each task's classes."""
    import matplotlib

    r = result["class_incremental"]["R"]
    tasks = max(len(row) for row in r)
    many = tasks > 12
    cell = 0.27 if many else 0.56
    values = np.full((len(r), tasks), np.nan)
    for i, row in enumerate(r):
        values[i, : len(row)] = row
    blues = matplotlib.colormaps["Blues"]
    with _figure(path, max(tasks * cell + 1.1, 4.2), len(r) * cell + 1.2, layout="constrained") as figure:
        ax = figure.add_subplot()
        # The darkest end is left out: black text would be lost on it, and white says 0.
        ax.pcolormesh(np.ma.masked_invalid(values), cmap=blues, vmin=0, vmax=115, edgecolors="white", linewidth=0.8)
        for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True):
            v = values[i, j]
            ax.text(j + 0.5, i + 0.5, f"{v:.0f}" if many else f"{v:.1f}", ha="center", va="center",
                    fontsize=6.2 if many else 8.5, color="white" if v > 62 else INK)
        every = 1 if tasks <= 20 else 5
        ticks = [j for j in range(tasks) if (j + 1) % every == 0 or j == 0]
        ax.set_xticks([j + 0.5 for j in ticks], [str(j + 1) for j in ticks])
        rows = [i for i in range(len(r)) if len(r[i]) - 1 in ticks or len(r) == 1]
        ax.set_yticks([i + 0.5 for i in rows], [str(len(r[i])) for i in rows])
        ax.set(aspect="equal", xlabel="accuracy (%) on the classes of task", ylabel="after task")
        ax.invert_yaxis()
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.set_title("\n".join(textwrap.wrap(f"{_benchmarks([result])}: {run_labels([result])[0]}",
                                             int(13 * (tasks * cell + 0.6)))))


def bytes_figure(results: list[dict[str, Any]], path: Path) -> None:
    """Final accuracy against bytes kept. What keeps nothing, or saw all the data, is a level and not a point."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    _need(results)
    methods = list(dict.fromkeys(r["settings"]["method"] for r in results))
    colours = dict(zip(methods, islice(cycle(COLOURS), len(methods)), strict=True))
    points, levels = [], []
    for result, label in zip(results, run_labels(results), strict=True):
        level = saw_everything(result) or keeps_nothing(result)
        colour = colours[result["settings"]["method"]]
        (levels if level else points).append((result["bytes_kept"], result["class_incremental"]["A_T"], label, colour))
    with _figure(path, 7.2, 4.2, layout="constrained") as figure:
        ax = figure.add_subplot()
        ax.set(xscale="log", ylim=(0, 104), xlabel="bytes kept")
        ax.set_title(f"{_benchmarks(results)}: final accuracy A_T against bytes kept")
        ax.yaxis.set_major_formatter("{x:.0f} %")
        if points:
            sizes = [p[0] for p in points]
            ax.set_xlim(min(sizes) / 1.8, max(sizes) * 3)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x).replace(".0 ", " ")))
        ax.xaxis.set_minor_formatter(NullFormatter())
        for method in methods:
            own = sorted(p[:2] for p in points if p[3] == colours[method])
            mark = MARKERS[methods.index(method) % len(MARKERS)]
            ax.plot([x for x, _ in own], [y for _, y in own], linestyle="none", marker=mark, markersize=7,
                    color=colours[method], markeredgecolor="white", markeredgewidth=0.8, clip_on=False)
        for _, y, label, colour in levels:
            ax.axhline(y, color=colour, linewidth=1.0, linestyle=(0, (4, 3)))
        figure.draw_without_rendering()
        _name_points(ax, points, levels)


def _name_points(ax: Axes, points: list[tuple[float, float, str, str]],
                 levels: list[tuple[float, float, str, str]]) -> None:
    """Labels beside their markers: of some places around each the first that is free of others."""
    from matplotlib.transforms import Bbox

    figure = ax.get_figure(root=True)
    assert figure is not None
    pixel = DPI / 72
    centres = [ax.transData.transform((x, y)) for x, y, _, _ in points]
    taken = [Bbox.from_extents(x - 5 * pixel, y - 5 * pixel, x + 5 * pixel, y + 5 * pixel) for x, y in centres]
    for _, y, label, colour in levels:
        text = ax.annotate(label, (1, y), xycoords=("axes fraction", "data"), xytext=(0, 2), color=colour,
                           textcoords="offset points", ha="right", va="bottom", fontsize=8.5)
        taken.append(text.get_window_extent())
    frame = ax.get_window_extent()
    offsets = [(9, 0, "left"), (-9, 0, "right"), (0, 12, "center"), (0, -12, "center"), (8, 10, "left"),
               (8, -10, "left"), (-8, 10, "right"), (-8, -10, "right"), (10, 20, "left"), (10, -20, "left")]
    for x, y, label, colour in points:
        best = None
        for dx, dy, side in offsets:
            text = ax.annotate(_wrapped(label), (x, y), xytext=(dx, dy), textcoords="offset points", ha=side,
                               va="center", color=colour, fontsize=8.5, linespacing=1.0)
            box = text.get_window_extent()
            overlaps = sum(_shared_area(box, other) for other in taken) + box.width * box.height \
                - _shared_area(box, frame)
            if best is None or overlaps < best[0]:
                if best is not None:
                    best[1].remove()
                best = overlaps, text, box
            else:
                text.remove()
            if overlaps == 0:
                break
        if best is not None:
            taken.append(best[2])


def _shared_area(a: Any, b: Any) -> float:
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(width, 0.0) * max(height, 0.0)


def exemplar_grid(images: Any, labels: Any, class_names: Sequence[str], path: Path, title: str) -> None:
    """A row a class, pixels as squares. Many classes of few exemplars stand in several blocks side by side."""
    pictures, of = np.asarray(images), np.asarray(labels)
    if pictures.ndim != 4 or pictures.dtype != np.uint8 or len(pictures) != len(of):
        raise UserError(f"exemplars must be uint8 images (N, C, H, W) with N labels, met {pictures.dtype} "
                        f"{pictures.shape} with {len(of)} labels")
    if not len(pictures):
        raise UserError("there are no exemplars to draw: this memory is empty")
    pictures = _enlarged(pictures)
    side = pictures.shape[1:3]
    rows_of = [np.flatnonzero(of == c)[:COLUMNS] for c in np.unique(of)]
    names = [textwrap.shorten(str(class_names[int(c)]), 24, placeholder="…") for c in np.unique(of)]
    columns, gap = max(len(r) for r in rows_of), 6
    size = 9.0
    name_width = int(0.62 * size / 72 * DPI * max(len(n) for n in names)) + 14
    block_width = name_width + columns * (side[1] + gap)
    blocks = _blocks(len(names), block_width, side[0] + gap)
    deep = -(-len(names) // blocks)
    space, edge = 36, 28
    top = edge + (70 if title else 0)
    width = max(2 * edge + blocks * block_width + (blocks - 1) * space, 2 * edge + int(len(title) * 18))
    height = top + deep * (side[0] + gap) + edge
    canvas = np.full((height, width, 3), 255, np.uint8)
    with _figure(path, width / DPI, height / DPI) as figure:
        for k, (rows, name) in enumerate(zip(rows_of, names, strict=True)):
            left = edge + (k // deep) * (block_width + space) + name_width
            y = top + (k % deep) * (side[0] + gap)
            for j, row in enumerate(rows):
                x = left + j * (side[1] + gap)
                canvas[y : y + side[0], x : x + side[1]] = pictures[row]
            figure.text((left - 14) / width, 1 - (y + side[0] / 2) / height, name, ha="right", va="center",
                        fontsize=size)
        figure.figimage(canvas, zorder=-1)
        figure.text(edge / width, 1 - edge / height, title, va="top", fontsize=10, fontweight="bold")


def _enlarged(images: np.ndarray, least: int = 72, most: int = 128) -> np.ndarray:
    """(N, H, W, 3) at a whole multiple of the size, so that pixels stay square; large pictures are averaged down."""
    x = np.moveaxis(images, 1, 3)
    x = np.broadcast_to(x, (*x.shape[:3], 3)) if x.shape[3] == 1 else x[..., :3]
    shrink = -(-max(x.shape[1:3]) // most)
    if shrink > 1:
        h, w = (n // shrink for n in x.shape[1:3])
        x = x[:, : h * shrink, : w * shrink].reshape(len(x), h, shrink, w, shrink, 3).mean((2, 4)).astype(np.uint8)
    grow = max(-(-least // max(x.shape[1:3])), 1)
    return x.repeat(grow, 1).repeat(grow, 2)


def _blocks(rows: int, width: int, height: int) -> int:
    """How many blocks side by side bring the picture nearest to a width of 1.4 times its height."""
    def off(n: int) -> float:
        return abs(np.log(n * width / (-(-rows // n) * height) / 1.4))

    return 1 if rows <= 10 else min(range(1, rows + 1), key=off)


def _benchmarks(results: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(r["settings"]["benchmark"] for r in results))


def _wrapped(label: str) -> str:
    return "\n".join(textwrap.wrap(label, 26))


def _need(results: list[dict[str, Any]]) -> None:
    if not results:
        raise UserError("there is no finished run to draw; make one with `protocore run`")
