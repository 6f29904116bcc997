"""Pictures of runs. matplotlib is loaded when one is drawn, so that `import protocore` stays quick."""

from __future__ import annotations

import io
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from protocore.config import format_bytes
from protocore.errors import UserError
from protocore.runs.results import classes_of, decoder_bytes, keeps_nothing, run_labels, saw_everything

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200  # twice what a README shows
# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "v", "P", "X")
INK, FAINT = "#333333", "#8A8A8A"  # FAINT is also the colour of bounds: no memory at all, all data at once
DIRECT = 8  # up to this many runs are named at the end of their line, more in a legend
COLUMNS, PICTURES = 20, 4000  # of an exemplar grid, at most
LEAST_WIDTH = 600  # pixels of a grid: room for a few words in a line of its title
MATRIX_TOP = 160  # percent at the dark end of the colours: at 100 they are still light enough for dark numbers
Point = tuple[float, float, str, str, str]  # bytes, accuracy, label, colour, marker
# Where a label may stand: points to the right, points up, and which of its ends is at the marker.
AROUND = ((8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center"), (8, 10, "left"), (8, -10, "left"),
          (-8, 10, "right"), (-8, -10, "right"), (10, 20, "left"), (10, -20, "left"))
STYLE = {
    "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.titlelocation": "left",
    "axes.titlesize": 10, "axes.titleweight": "bold", "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "legend.frameon": False, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0,
    "xtick.major.pad": 6, "text.parse_math": False,
}


@contextmanager
def _figure(path: Path, width: float, height: float, **more: Any) -> Iterator[Figure]:
    """A figure in our style, whatever style the user has set, written whole as PNG at the end."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from protocore.files import write_atomic

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
        looks, ends = _looks(results), []
        for result, (colour, marker) in zip(results, looks, strict=True):
            once = saw_everything(result)
            for kind, dashes, strong in (("task_incremental", "--", False), ("class_incremental", "-", True)):
                if once and not strong:
                    continue
                r = result[kind]["R"]
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
            lines = [Line2D([], [], color=c, marker=m, linestyle="none" if saw_everything(r) else "-")
                     for r, (c, m) in zip(results, looks, strict=True)]
            ax.legend(lines, [_wrapped(n) for n in labels], loc="upper left", bbox_to_anchor=(1.0, 1.0))
            ax.add_artist(key)


def _looks(results: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Colour and marker of each run; bounds are grey, so that the colours reach further."""
    looks, used = [], 0
    for result in results:
        if saw_everything(result) or keeps_nothing(result):
            looks.append((FAINT, "D" if saw_everything(result) else "o"))
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


def matrix_heatmap(result: dict[str, Any], path: Path) -> None:
    """R with its numbers: a row after each task, a column for each task's classes."""
    r = result["class_incremental"]["R"]
    tasks = max(len(row) for row in r)
    many = tasks > 12
    cell = 0.27 if many else 0.56
    values = np.full((len(r), tasks), np.nan)
    for i, row in enumerate(r):
        values[i, : len(row)] = row
    with _figure(path, max(tasks * cell + 1.1, 4.2), len(r) * cell + 1.2, layout="constrained") as figure:
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
        ax.set_title("\n".join(textwrap.wrap(f"{_benchmarks([result])}: {run_labels([result])[0]}",
                                             int(13 * (tasks * cell + 0.6)))))


def bytes_figure(results: list[dict[str, Any]], path: Path) -> None:
    """Final accuracy against bytes kept. What keeps nothing, or saw all the data, is a level and not a point."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    _need(results)
    points: list[Point] = []
    levels: list[Point] = []
    methods: list[str] = []
    for result, label in zip(results, run_labels(results), strict=True):
        accuracy, method = result["class_incremental"]["A_T"], result["settings"]["method"]
        if saw_everything(result) or keeps_nothing(result):
            levels.append((0, accuracy, label, FAINT, ""))
            continue
        if method not in methods:
            methods.append(method)
        k = methods.index(method)
        points.append((result["bytes_kept"], accuracy, label, COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]))
    with _figure(path, 7.2, 4.2, layout="constrained") as figure:
        ax = figure.add_subplot()
        shared = any(decoder_bytes(r) for r in results)
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


def memories_figure(memories: Mapping[str, Sequence[list[dict[str, Any]]]], path: Path) -> None:
    """Final accuracy against bytes a class: a line a memory, a point a room, mean and deviation over its seeds."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    results = [r for rooms in memories.values() for seeds in rooms for r in seeds]
    _need(results)
    with _figure(path, 7.2, 4.2, layout="constrained") as figure:
        ax = figure.add_subplot()
        for k, (name, rooms) in enumerate(memories.items()):
            points = sorted((statistics.fmean(r["bytes_kept"] / classes_of(r) for r in seeds),
                             statistics.fmean(a := [r["class_incremental"]["A_T"] for r in seeds]),
                             statistics.stdev(a) if len(a) > 1 else 0.0) for seeds in rooms)
            x, y, deviation = zip(*points, strict=True)
            colour, mark = COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]
            ax.errorbar(x, y, deviation, color=colour, marker=mark, markersize=6, markeredgecolor="white",
                        markeredgewidth=0.8, elinewidth=1.0, label=name)
        ax.set(xscale="log", xlabel="bytes kept a class" + ", without the decoder" * any(map(decoder_bytes, results)))
        ax.set_ylim(0, 1.15 * max(r["class_incremental"]["A_T"] for r in results))
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


def first_of(shown: Sequence[int], held: Sequence[int], of: str) -> str:
    """`first 4 of 20 exemplars`, for counts of each class; nothing where all are shown."""
    if list(shown) == list(held):
        return ""
    return f"first {max(shown)} of {'' if len(set(held)) == 1 else 'up to '}{max(held)} {of}"


def exemplar_grid(images: Any, labels: Any, class_names: Sequence[str], path: Path, title: str) -> None:
    """A row a class, pixels as squares. Many classes of few exemplars stand in several blocks side by side."""
    pictures, of = np.asarray(images), np.asarray(labels)
    if pictures.ndim != 4 or pictures.dtype != np.uint8 or len(pictures) != len(of):
        raise UserError(f"exemplars must be uint8 images (N, C, H, W) with N labels, met {pictures.dtype} "
                        f"{pictures.shape} with {len(of)} labels")
    if not len(pictures):
        raise UserError("there are no exemplars to draw: this memory is empty")
    classes, counts = np.unique(of, return_counts=True)
    columns = min(COLUMNS, max(PICTURES // len(classes), 1))
    rows_of = [np.flatnonzero(of == c)[:columns] for c in classes]
    chosen = _enlarged(pictures[np.concatenate(rows_of)], 112 if len(pictures) <= 40 else 72)
    pictures_of = np.split(chosen, np.cumsum([len(r) for r in rows_of])[:-1])
    names = [_short(str(class_names[int(c)])) for c in classes]
    part = first_of([len(r) for r in rows_of], counts.tolist(), "exemplars of each class")
    _grid([(name, [[picture] for picture in row]) for name, row in zip(names, pictures_of, strict=True)], path, title,
          part, size=9.0)


def pairs_grid(rows: Sequence[tuple[str, Sequence[tuple[Any, Any]]]], path: Path, title: str, note: str = "") -> None:
    """A row a name: pairs of uint8 pictures (C, H, W) side by side, a space between two pairs."""
    if not rows:
        raise UserError("there are no pictures to draw")
    flat = [np.asarray(picture) for _, pairs in rows for pair in pairs for picture in pair]
    big = iter(_enlarged(np.stack(flat), 112 if len(flat) <= 40 else 64))
    _grid([(_short(name, 40), [[next(big), next(big)] for _ in pairs]) for name, pairs in rows], path, title, note,
          size=8.0, between=12)


def _grid(rows: Sequence[tuple[str, Sequence[Sequence[np.ndarray]]]], path: Path, title: str, note: str, *,
          size: float, between: int = 0) -> None:
    """Rows of groups of pictures (H, W, 3) with a name each, in blocks side by side; title and note in lines above.

    `size` is that of the names, in points, `between` the room between two groups of a row, in pixels.
    """
    gap, inner, space, edge = 6, 3, 36, 28
    side, wide = next(picture.shape[:2] for _, groups in rows for group in groups for picture in group)
    together = max(len(group) for _, groups in rows for group in groups)
    group_width = together * wide + (together - 1) * inner + gap + between
    name_width = int(0.62 * size / 72 * DPI * max(len(name) for name, _ in rows)) + 14
    block_width = name_width + max(len(groups) for _, groups in rows) * group_width
    blocks = _blocks(len(rows), block_width, side + gap)
    deep = -(-len(rows) // blocks)
    width = max(2 * edge + blocks * block_width + (blocks - 1) * space, LEAST_WIDTH)
    lines = _lines(title, note, width - 2 * edge)
    top = edge + sum(line.height for line in lines) + (24 if lines else 0)
    height = top + deep * (side + gap) + edge
    canvas = np.full((height, width, 3), 255, np.uint8)
    # Half a pixel more, or rounding would sometimes cut a row or column off.
    with _figure(path, (width + 0.5) / DPI, (height + 0.5) / DPI) as figure:
        for k, (name, groups) in enumerate(rows):
            left = edge + (k // deep) * (block_width + space) + name_width
            y = top + (k % deep) * (side + gap)
            for j, group in enumerate(groups):
                for i, picture in enumerate(group):
                    x = left + j * group_width + i * (wide + inner)
                    canvas[y : y + side, x : x + wide] = picture
            figure.text((left - 14) / width, 1 - (y + side / 2) / height, name, ha="right", va="center", fontsize=size)
        figure.figimage(canvas, zorder=-1)
        y = edge
        for line in lines:
            figure.text(edge / width, 1 - y / height, line.text, va="top", fontsize=line.size, fontweight=line.weight)
            y += line.height


@dataclass(frozen=True)
class _Line:
    text: str
    size: float  # points
    weight: str
    height: int  # pixels


def _lines(title: str, note: str, width: int) -> list[_Line]:
    """Title (bold) and note in lines that fit so many pixels."""
    return [*(_Line(text, 10, "bold", 36) for text in textwrap.wrap(title, max(width // 18, 12))),
            *(_Line(text, 8.5, "normal", 32) for text in textwrap.wrap(note, max(width // 14, 12)))]


def condensation_figure(records: dict[str, Any], path: Path, class_names: Sequence[str], most: int = 10) -> None:
    """t-SNE of a condensation: real features as dots, the way of each exemplar, its start (ring) and its end (star)."""
    from sklearn.manifold import TSNE

    real, labels, of = (np.asarray(records[k]) for k in ("real", "real labels", "labels"))
    steps = np.asarray(records["steps"])[:, : len(of)]
    every_class = np.unique(of)
    classes = every_class[:most]
    dots_of, mine_of = ([np.flatnonzero(values == c) for c in classes] for values in (labels, of))
    parts = (first_of([len(classes)], [len(every_class)], "classes"), first_of(*_cut(mine_of, 2), "exemplars a class"),
             first_of(*_cut(dots_of, 100), "pictures a class"))
    keep, mine = np.concatenate([d[:100] for d in dots_of]), np.concatenate([m[:2] for m in mine_of])
    at = np.unique(np.linspace(0, len(steps) - 1, 12).round().astype(int))
    ways = steps[at][:, mine]
    every = np.concatenate([real[keep], ways.reshape(-1, ways.shape[-1])])
    every = every / np.maximum(np.linalg.norm(every, axis=1, keepdims=True), 1e-12)
    flat = TSNE(perplexity=min(30, (len(every) - 1) / 3), random_state=0, init="pca").fit_transform(every)
    dots, paths = flat[: len(keep)], flat[len(keep) :].reshape(len(at), len(mine), 2)
    with _figure(path, 8, 6.4) as figure:
        ax = figure.add_subplot()
        for i, c in enumerate(classes):
            colour = f"C{i % 10}"
            here = labels[keep] == c
            ax.scatter(*dots[here].T, s=8, alpha=0.35, color=colour, linewidths=0, label=_short(str(class_names[c])))
            for j in np.flatnonzero(of[mine] == c):
                ax.plot(*paths[:, j].T, color=colour, lw=1.2)
                ax.scatter(*paths[0, j], s=40, facecolors="white", edgecolors=colour, zorder=3)
                ax.scatter(*paths[-1, j], s=110, marker="*", color=colour, edgecolors="black", linewidths=0.6, zorder=4)
        ax.set(xticks=[], yticks=[])
        title = ["condensation under the network's features (t-SNE): ring start, star end"]
        title += textwrap.wrap(", ".join(filter(None, parts)), 80)
        ax.set_title("\n".join(title), loc="left", fontsize=10)
        ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.tight_layout()


def _cut(rows_of: Sequence[np.ndarray], most: int) -> tuple[list[int], list[int]]:
    """How many of each are shown, and how many there are."""
    return [min(len(r), most) for r in rows_of], [len(r) for r in rows_of]


def _enlarged(images: np.ndarray, least: int, most: int = 128) -> np.ndarray:
    """(N, H, W, 3) at a whole multiple of the size, so that pixels stay square; large pictures are averaged down."""
    x = np.moveaxis(images, 1, 3)
    x = np.broadcast_to(x, (*x.shape[:3], 3)) if x.shape[3] == 1 else x[..., :3]
    shrink = -(-max(x.shape[1:3]) // most)
    if shrink > 1:
        h, w = (n // shrink for n in x.shape[1:3])
        squares = x[:, : h * shrink, : w * shrink].reshape(len(x), h, shrink, w, shrink, 3)
        x = squares.mean((2, 4)).round().astype(np.uint8)
    grow = max(-(-least // max(x.shape[1:3])), 1)
    return x.repeat(grow, 1).repeat(grow, 2)


def _blocks(rows: int, width: int, height: int) -> int:
    """Blocks side by side, of five rows or more: as many as bring the width nearest to 1.4 times the height."""
    def off(n: int) -> float:
        return abs(np.log(n * width / (-(-rows // n) * height) / 1.4))

    return min(range(1, max(rows // 5, 1) + 1), key=off)


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _benchmarks(results: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(r["settings"]["benchmark"] for r in results))


def _wrapped(label: str) -> str:
    """In lines of some 26 characters, broken after commas."""
    lines: list[str] = []
    for part in label.split(", "):
        if lines and len(lines[-1]) + len(part) <= 24:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return ",\n".join(lines)


def _need(results: list[dict[str, Any]]) -> None:
    if not results:
        raise UserError("there is no finished run to draw; make one with `protocore run`")
