"""Where exemplars are after 0, 10, 20 and 30 steps of condensation, on a map of real features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocore.bench.condensation import map_of, places_on, unit
from protocore.bench.reproduce.sheets import Heading, Number, Sheet
from protocore.bench.style import COLOURS, FAINT, INK, figure_at, short
from protocore.errors import DataError
from protocore.files import read_tensors

STEPS = (0, 10, 20, 30)
PICTURES = 60  # real ones of a class on the map
MORE = ("#882255", "#44AA99", "#999933")  # a task has ten classes
KINDS = ("picture", "prototype", "exemplar")


@dataclass(frozen=True)
class Way:
    """Features of one run's first task, normalised as condensation compares them, and their places on the map."""

    names: tuple[str, ...]  # of the classes
    labels: np.ndarray  # of the exemplars
    away: np.ndarray  # (steps, exemplars) squared distance to the prototype of the class
    dots: np.ndarray  # (steps, exemplars, 2)
    stars: np.ndarray  # (classes, 2)
    pictures: np.ndarray  # (n, 2)
    picture_labels: np.ndarray


def way_of(records: Path, class_names: tuple[str, ...]) -> Way:
    """Read what a run with --record left."""
    tensors, _ = read_tensors(records)
    for name, wanted in (("real", 2), ("real labels", 1), ("labels", 1), ("steps", 3)):
        if name not in tensors or tensors[name].ndim != wanted:
            raise DataError(f"{records}: has no steps of condensation; run it again with --record")
    real, of_real, of, steps = (tensors[k].float().numpy() if k in ("real", "steps") else tensors[k].numpy()
                                for k in ("real", "real labels", "labels", "steps"))
    if len(steps) <= max(STEPS):
        raise DataError(f"{records}: has {len(steps)} steps, and {max(STEPS) + 1} are drawn; run it again with "
                        "--condense-steps 50")
    classes = np.unique(of_real)
    prototypes = unit(np.stack([real[of_real == c].mean(0) for c in classes]))
    rows = np.concatenate([np.flatnonzero(of_real == c)[:PICTURES] for c in classes])
    pictures = unit(real[rows])
    ways = unit(steps[list(STEPS)][:, : len(of)])
    places = map_of(pictures)
    own = np.searchsorted(classes, of)
    return Way(
        tuple(class_names[c] if c < len(class_names) else str(c) for c in classes), own,
        np.square(ways - prototypes[own]).sum(-1),
        np.stack([places_on(way, pictures, places) for way in ways]), places_on(prototypes, pictures, places), places,
        np.searchsorted(classes, of_real[rows]))


def maps_figure(way: Way | None, path: Path, title: str) -> None:
    """Four panels: faint real pictures, a star for a prototype, a dot for an exemplar."""
    from matplotlib.lines import Line2D

    colours = (*COLOURS, *MORE)
    names = [short(name, 16) for name in way.names] if way else []
    with figure_at(path, 11.0, 3.6, [title, *names], svg=True, layout="constrained") as figure:
        for k, (ax, step) in enumerate(zip(figure.subplots(1, len(STEPS)), STEPS, strict=True)):
            ax.set_title(f"Step {step}")
            ax.set(xticks=[], yticks=[])
            if way is None:
                ax.text(0.5, 0.5, "nothing stored", transform=ax.transAxes, ha="center", color=FAINT)
                continue
            for c in range(len(way.names)):
                colour = colours[c % len(colours)]
                ax.scatter(*way.pictures[way.picture_labels == c].T, s=6, alpha=0.25, color=colour, linewidths=0)
                ax.scatter(*way.dots[k, way.labels == c].T, s=24, color=colour, edgecolors="white", linewidths=0.6,
                           zorder=3)
                ax.scatter(*way.stars[c], s=110, marker="*", color=colour, edgecolors=INK, linewidths=0.6, zorder=4)
        keys = [Line2D([], [], linestyle="none", marker=mark, color=FAINT, markersize=size)
                for mark, size in (("*", 10), ("o", 5), ("o", 2.5))]
        keys += [Line2D([], [], color=colours[c % len(colours)], linewidth=3) for c in range(len(names))]
        words = ["real prototype", "synthetic exemplar", "real picture", *names]
        figure.legend(keys, words, loc="outside lower center", ncols=min(len(words), 7), fontsize=8)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")


def way_sheet(way: Way | None, title: str) -> Sheet:
    """How near exemplars came: squared distance of normalised features to the prototype of their class."""
    rows = []
    for k, step in enumerate(STEPS):
        away = way.away[k] if way else np.empty(0)
        numbers = [Number(float(f(away)), digits=3) for f in (np.mean, np.max)] if len(away) else [None, None]
        rows.append((str(step), *numbers, None))
    headings = tuple(Heading(name, name) for name in ("step", "mean distance", "largest distance", "paper"))
    return Sheet("steps", f"{title}: squared distance to the prototype", headings, tuple(rows))


def way_rows(way: Way) -> list[tuple[object, ...]]:
    """Every mark of the maps, for programs: kind, class, step, x, y, squared distance to the prototype."""
    rows: list[tuple[object, ...]] = []
    for place, c in zip(way.pictures, way.picture_labels, strict=True):
        rows.append((KINDS[0], way.names[c], "", *_plain(place), ""))
    for c, place in enumerate(way.stars):
        rows.append((KINDS[1], way.names[c], "", *_plain(place), ""))
    for k, step in enumerate(STEPS):
        for i, c in enumerate(way.labels):
            rows.append((KINDS[2], way.names[c], step, *_plain(way.dots[k, i]), round(float(way.away[k, i]), 5)))
    return rows


def _plain(place: np.ndarray) -> tuple[float, float]:
    return round(float(place[0]), 3), round(float(place[1]), 3)
