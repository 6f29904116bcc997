"""The picture of a condensation: where exemplars went, and how near they came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocore.bench.style import COLOURS, FAINT, INK, figure_at, first_of, short

PICTURES, WAYS = 100, 3  # of a class, at most: dots of real pictures, and ways of exemplars
NEAREST = 8  # real pictures whose places on the map give the place of an exemplar


def condensation_figure(records: dict[str, Any], path: Path, class_names: Sequence[str], most: int = 7) -> None:
    """Left, a map (t-SNE) of real features with the way of each exemplar; right, its distance to its goal by step."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    real, labels, of = (np.asarray(records[k]) for k in ("real", "real labels", "labels"))
    steps = np.asarray(records["steps"])[:, : len(of)]
    every_class = np.unique(of)
    classes = every_class[:most]
    dots_of, mine_of = ([np.flatnonzero(values == c) for c in classes] for values in (labels, of))
    parts = (first_of([len(classes)], [len(every_class)], "classes"),
             first_of(*_cut(mine_of, WAYS), "exemplars a class"),
             first_of(*_cut(dots_of, PICTURES), "pictures a class"))
    keep = np.concatenate([rows[:PICTURES] for rows in dots_of])
    mine = np.concatenate([rows[:WAYS] for rows in mine_of])
    dots, ways = unit(real[keep]), unit(steps[:, mine])
    goals = unit(goals_of(records, real, labels, of)[mine])
    places = map_of(dots)
    names = [short(str(class_names[c])) for c in classes]
    with figure_at(path, 9.6, 4.8, names, layout="constrained") as figure:
        chart, curve = figure.subplots(1, 2, width_ratios=(1.5, 1))
        for i, c in enumerate(classes):
            colour, here = COLOURS[i % len(COLOURS)], of[mine] == c
            chart.scatter(*places[labels[keep] == c].T, s=9, alpha=0.3, color=colour, linewidths=0)
            for way in np.moveaxis(ways[:, here], 1, 0):
                x, y = places_on(way, dots, places).T
                chart.plot(x, y, color=colour, linewidth=1.0, alpha=0.8)
                chart.scatter(x[0], y[0], s=30, facecolors="white", edgecolors=colour, zorder=3)
                chart.scatter(x[-1], y[-1], s=90, marker="*", color=colour, edgecolors=INK, linewidths=0.5, zorder=5)
            chart.scatter(*places_on(np.unique(goals[here], axis=0), dots, places).T, s=45, marker="X", color=INK,
                          edgecolors="white", linewidths=0.8, zorder=4)
            away = np.square(ways[:, here] - goals[None, here]).sum(-1)
            curve.plot(np.arange(len(away)), away, color=colour, linewidth=1.1)
        chart.set(xticks=[], yticks=[])
        chart.spines[:].set_visible(False)
        chart.set_title("Features of the network (t-SNE)")
        curve.set(xlabel="step of condensation", ylim=(0, None), xlim=(0, max(len(steps) - 1, 1)))
        curve.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        curve.set_title("Squared distance to the goal")
        keys = [Line2D([], [], linestyle="none", marker=mark, color=INK if mark == "X" else FAINT, markersize=size,
                       markerfacecolor=face) for mark, size, face in
                (("o", 4, FAINT), ("o", 6, "white"), ("*", 10, FAINT), ("X", 7, INK))]
        keys += [Line2D([], [], color=COLOURS[i % len(COLOURS)], linewidth=3) for i in range(len(classes))]
        words = ["real picture", "exemplar, first step", "exemplar, last step", "its goal", *names]
        figure.legend(keys, words, loc="outside lower center", ncols=min(len(words), 6), fontsize=8)
        if said := ", ".join(filter(None, parts)):
            figure.suptitle(said, x=0.01, ha="left", fontsize=8.5, color=FAINT)


def goals_of(records: dict[str, Any], real: np.ndarray, labels: np.ndarray, of: np.ndarray) -> np.ndarray:
    """What each exemplar was to match; the mean of its class where that was not recorded."""
    if "targets" in records:
        return np.asarray(records["targets"])[: len(of)]
    return np.stack([real[labels == c].mean(0) for c in of])


def map_of(points: np.ndarray) -> np.ndarray:
    """Places in the plane, near ones near each other."""
    from sklearn.manifold import TSNE

    if len(points) < 4:
        return np.stack([np.arange(len(points)), np.zeros(len(points))], 1)
    return TSNE(perplexity=min(30, (len(points) - 1) / 3), random_state=0, init="pca").fit_transform(points)


def places_on(points: np.ndarray, dots: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Where other points belong on the map: among the nearest dots. Points of a way would push each other about if
    they were dots themselves."""
    away = np.square(points[:, None] - dots[None]).sum(-1)
    near = np.argsort(away, 1)[:, :NEAREST]
    close = np.take_along_axis(away, near, 1)
    weight = np.exp(-close / np.maximum(close.mean(1, keepdims=True), 1e-12))
    return (weight[..., None] * places[near]).sum(1) / weight.sum(1)[:, None]


def unit(points: np.ndarray) -> np.ndarray:
    """Normalised, as condensation compares them."""
    return points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1e-12)


def _cut(rows_of: Sequence[np.ndarray], most: int) -> tuple[list[int], list[int]]:
    """How many of each are shown, and how many there are."""
    return [min(len(r), most) for r in rows_of], [len(r) for r in rows_of]
