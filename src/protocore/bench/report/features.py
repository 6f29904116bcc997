"""The map of a condensation (t-SNE): real features, and the way of each exemplar among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from protocore.bench.compared import Group
from protocore.bench.condensation import goals_of, map_of, places_on, unit
from protocore.bench.report.axes import Box, legend, look, sign, svg
from protocore.bench.report.markup import Html, details, el, join
from protocore.bench.report.verdict import Link
from protocore.errors import DataError
from protocore.files import read_tensors
from protocore.runs.folder import RunFolder

MOST_RUNS, MOST_CLASSES, MOST_DOTS, MOST_WAYS = 4, 7, 60, 3
MOST_FILE = 512 << 20  # bytes of a file of records that is looked into
WANTED = ("real", "real labels", "labels", "steps")


def feature_section(shown: Sequence[Group], link: Link) -> Html | None:
    """A map a run that has records; None where there is none."""
    made: list[Html] = []
    for group in shown:
        for run in group.runs[:1]:
            path = RunFolder(run.folder).records if run.folder else None
            if path is None or not path.exists() or len(made) >= MOST_RUNS:
                continue
            names = [str(n) for n in run.result.class_names]
            made.append(details(group.label, _map_of_run(path, names),
                                el("p", "How it was made: ", link(group, group.label), class_="note"), opened=not made))
    return join(made) if made else None


def _map_of_run(path: Path, names: Sequence[str]) -> Html:
    try:
        records = _records(path)
    except DataError as error:
        return el("p", f"Its records cannot be shown: {error}", class_="note")
    real, labels, of, steps = (records[k] for k in WANTED)
    classes = np.unique(of)[:MOST_CLASSES]
    keep = np.concatenate([np.flatnonzero(labels == c)[:MOST_DOTS] for c in classes])
    mine = np.concatenate([np.flatnonzero(of == c)[:MOST_WAYS] for c in classes])
    dots = unit(real[keep])
    places = map_of(dots)
    goals = places_on(unit(goals_of(records, real, labels, of)[mine]), dots, places)
    chosen = np.unique(np.linspace(0, len(steps) - 1, 12).astype(int))
    ways = [places_on(unit(steps[chosen, i]), dots, places) for i in mine]
    box = Box(520, 320, left=14, right=14, top=14, bottom=14)
    everywhere = np.concatenate([places, goals, *ways])
    (x0, y0), (x1, y1) = everywhere.min(0), everywhere.max(0)
    x, y = box.x(x0, x1), box.y(y0, y1)
    colour = {int(c): look(k) for k, c in enumerate(classes)}
    word = {int(c): names[int(c)] if 0 <= int(c) < len(names) else str(int(c)) for c in classes}
    parts = [el("circle", cx=x(a), cy=y(b), r=2.6, class_=f"tsne {colour[int(c)]}")
             for (a, b), c in zip(places, labels[keep], strict=True)]
    for way, goal, i in zip(ways, goals, mine, strict=True):
        name = word[int(of[i])]
        points = " ".join(f"{x(a)},{y(b)}" for a, b in way)
        parts.append(el("g", el("polyline", points=points, class_="ln"),
                        el("path", d=_cross(x(goal[0]), y(goal[1])), class_="goal"),
                        el("circle", cx=x(way[0][0]), cy=y(way[0][1]), r=4, class_="mk hollow"),
                        el("path", el("title", f"exemplar of {name}, last step"), d=_star(x(way[-1][0]), y(way[-1][1])),
                           class_="mk"), class_=colour[int(of[i])]))
    title = "Features of the network on a map (t-SNE)"
    said = f"Real pictures of {', '.join(word.values())}; each exemplar moves from its first step to its last"
    chart = svg(title, said, box, parts, class_="map")
    keys = [(sign(0, line=False, colour=c), word[k]) for k, c in colour.items()]
    said = ("Dots: real pictures. Ring: an exemplar's first step; star: its last; cross: the feature that it was to "
            f"match. The last task's condensation, {len(steps)} steps.")
    return join([el("div", chart, class_="chart"), legend(keys), el("p", said, class_="note")])


def _records(path: Path) -> dict[str, np.ndarray]:
    """The tensors that a map needs, of shapes that fit each other."""
    if path.stat().st_size > MOST_FILE:
        raise DataError(f"{path}: {path.stat().st_size:,} bytes, where at most {MOST_FILE:,} are looked into")
    tensors, _ = read_tensors(path)
    found = {k: tensors[k].float().numpy() if tensors[k].is_floating_point() else tensors[k].numpy()
             for k in (*WANTED, "targets") if k in tensors}
    real, labels, of, steps = (found.get(k, np.zeros(0)) for k in WANTED)
    targets = found.get("targets", steps[0] if steps.ndim == 3 and len(steps) else np.zeros(0))
    fits = (real.ndim == 2 and steps.ndim == 3 and labels.shape == real.shape[:1] and of.ndim == 1
            and len(of) > 0 and len(steps) > 0 and steps.shape[1] >= len(of) and steps.shape[2] == real.shape[1]
            and targets.ndim == 2 and len(targets) >= len(of) and targets.shape[1] == real.shape[1])
    if not fits or not set(of.tolist()) <= set(labels.tolist()):
        raise DataError(f"{path}: damaged, its records do not fit each other; run it again with --record")
    if not all(np.isfinite(values).all() for values in (real, steps, targets)):
        raise DataError(f"{path}: damaged, it holds values that are not finite; run it again with --record")
    return found


def _star(x: float, y: float, r: float = 7.0) -> str:
    turns = np.arange(10) * np.pi / 5 - np.pi / 2
    far = np.where(np.arange(10) % 2 == 0, r, r * 0.45)
    return "M" + "L".join(f"{x + a:.1f} {y + b:.1f}" for a, b in zip(far * np.cos(turns), far * np.sin(turns),
                                                                 strict=True)) + "z"


def _cross(x: float, y: float, r: float = 4.0) -> str:
    return f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}"
