"""How good, and how private, the exemplars of a finished run are: class by class, held against the training data.

A report for people who have the data, made after the run: nothing of it goes back into learning.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones import build_network
from protocore.backbones.proxy import fit_proxy
from protocore.data.augment import to_float
from protocore.data.benchmarks import open_stream
from protocore.data.stream import Stream, Task
from protocore.errors import UserError
from protocore.files import write_json
from protocore.learn.learner import Learner
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore
from protocore.runs.configure import configure
from protocore.runs.job import learner_for
from protocore.runs.result import read_result

BETWEEN = 200  # training pictures of a class whose own nearest neighbours are looked for
CHUNK = 1 << 22  # pixels that are held as floats at a time, on either side of a comparison
SHOWN = 4  # exemplars of a class in the picture


@dataclass(frozen=True)
class ClassHealth:
    """One class. Distances of pictures are root mean squares over pixels in [0, 1]: tables show the same numbers."""

    name: str
    origin: str  # synthetic, coded or real
    exemplars: int
    to_prototype: float  # mean ‖f(s)/|f(s)| - p/|p|‖² under the present network
    present: float  # mean probability that the present network gives the class
    present_right: float  # share of exemplars that it gets right
    fresh: float  # the same of a small network, trained on the data just now
    fresh_right: float
    nearest_training: float  # mean distance of an exemplar to the nearest training picture of its class
    closest_training: float  # the smallest of them
    between_training: float | None  # the same of a training picture to the nearest other one; None: it has none


def health(folder: Path, *, data_root: str | None = None, steps: int = 600) -> dict[str, Any]:
    """The report of a run folder: also written to health.json and health.png there."""
    learner, stream = reopened(folder, data_root)
    stores = [store for store in learner.method.stores() if len(store)]
    if not stores:
        raise UserError(f"{folder}: {learner.settings.method} keeps no exemplars, so there is nothing to report on")
    everything = stream.everything()
    fresh, accuracy = _fresh(learner, stream, everything, steps)
    prototypes = PrototypeStore(learner.net.dim)
    prototypes.load(learner.memory())
    rows, shown = [], []
    for store in stores:
        for label in store.classes.tolist():
            row, pictures = _class_health(learner, store, label, everything, prototypes, fresh)
            rows.append(row)
            shown.append((row, pictures))
    report = {
        "command": read_result(folder).command, "fresh_network_test_accuracy": accuracy, "fresh_steps": steps,
        "classes": [asdict(row) for row in rows], "mean": _mean(rows),
    }
    write_json(folder / "health.json", report)
    from protocore.bench.grids import first_of, pairs_grid

    part = first_of([len(pairs) for _, pairs in shown], [row.exemplars for row in rows], "exemplars")
    pairs_grid([(f"{row.name}: {100 * row.present_right:.0f} / {100 * row.fresh_right:.0f} %", pairs)
                for row, pairs in shown],
               folder / "health.png", "exemplar | nearest training picture" + (f", {part}" if part else ""),
               "share of a class's exemplars that the present / a fresh network gets right")
    return report


def reopened(folder: Path, data_root: str | None = None) -> tuple[Learner, Stream]:
    """The learner of a finished run, and its stream."""
    config = configure({"data_root": data_root} if data_root else {}, like=read_result(folder))
    stream = open_stream(config.settings)
    learner = learner_for(config, stream)
    learner.restore(folder / "learner.safetensors")
    return learner, stream


def _fresh(learner: Learner, stream: Stream, everything: Task, steps: int) -> tuple[torch.nn.Module, float]:
    """A small network trained on all training pictures at once, and its accuracy on the test pictures."""
    s, device = learner.settings, learner.machine.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(s.seed + 1)
        net = build_network("convnet", stream.image_shape, mean=stream.mean, std=stream.std)
        net.grow(len(stream.class_names))
        net.to(device)
        labels = everything.labels
        fit_proxy(net, lambda rows: to_float(everything.take(rows)).to(device), labels.to(device), steps=steps,
                  lr=0.03, batch=64, momentum=0.9)
    right = total = 0
    with torch.no_grad():
        for part in stream.tests:
            for start in range(0, len(part.labels), 512):
                guess = net(to_float(part.take(start, start + 512)).to(device)).argmax(1).cpu().numpy()
                right += int((guess == part.labels[start : start + 512]).sum())
                total += len(guess)
    return net, 100 * right / total


@torch.no_grad()
def _class_health(learner: Learner, store: ExemplarStore, label: int, everything: Task, prototypes: PrototypeStore,
                  fresh: torch.nn.Module) -> tuple[ClassHealth, list[tuple[Tensor, Tensor]]]:
    images = store.at(store.slots_of(label)).images
    rows = (everything.labels == label).nonzero().flatten()
    learner.net.eval()
    z = _features(learner, images)
    goal = prototypes.get([label]).to(z) if label in prototypes else _centre(learner, everything, rows)
    gap = (F.normalize(z, dim=1) - F.normalize(goal, dim=1)).square().sum(1).mean()
    present = _softmax_of_seen(learner, images)
    second = torch.cat([F.softmax(fresh(learner.machine.images(to_float(part))), 1).cpu() for part in _parts(images)])
    # Some training pictures are looked for among the others in the same pass, each without itself.
    some = rows[:BETWEEN]
    near, pictures = nearest(torch.cat([images, everything.take(some)]), everything, rows,
                             torch.cat([torch.full((len(images),), -1), some]))
    near, among = near.split([len(images), len(some)])
    origin = store.name.partition(" ")[0]
    if origin not in ("synthetic", "coded"):
        origin = "real" if store.codec.lossless else "coded"
    row = ClassHealth(
        learner.class_names[label], origin, len(images), float(gap), float(present[:, label].mean()),
        float((present.argmax(1) == label).float().mean()), float(second[:, label].mean()),
        float((second.argmax(1) == label).float().mean()), float(near.mean()), float(near.min()),
        float(among.mean()) if len(rows) > 1 else None,
    )
    return row, [(images[i].clone(), pictures[i].clone()) for i in range(min(len(images), SHOWN))]


@torch.no_grad()
def nearest(queries: Tensor, task: Task, rows: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each uint8 query to the nearest of the task's pictures among `rows`, and that picture.

    `own` is the row that a query is itself, and that is left out (-1: none).
    """
    where, found = nearest_rows(queries, task, rows, own), queries.clone()
    for some in _parts((where >= 0).nonzero().flatten(), queries[0].numel()):
        found[some] = task.take(where[some])
    # cdist is quick and rough: a copy must come out at 0.
    exact = [(to_float(a) - to_float(b)).square().flatten(1).mean(1).sqrt()
             for a, b in zip(_parts(queries), _parts(found), strict=True)]
    return torch.cat(exact), found


@torch.no_grad()
def nearest_rows(queries: Tensor, task: Task, rows: Tensor, own: Tensor) -> Tensor:
    """The nearest of the task's rows to each query (-1: there is none). All are looked at, some at a time."""
    least, found = torch.full((len(queries),), float("inf")), torch.full((len(queries),), -1)
    for part in _parts(rows, queries[0].numel()):
        b = to_float(task.take(part)).flatten(1)
        for some in _parts(torch.arange(len(queries)), queries[0].numel()):
            gap = torch.cdist(to_float(queries[some]).flatten(1), b)
            gap[own[some, None] == part] = float("inf")
            near, which = gap.min(1)
            closer = near < least[some]
            least[some[closer]] = near[closer]
            found[some[closer]] = part[which[closer]]
    return found


def _parts(rows: Tensor, pixels: int | None = None) -> tuple[Tensor, ...]:
    """Pictures, or numbers of pictures of so many pixels, split so that a part fits CHUNK."""
    return rows.split(max(CHUNK // (pixels or rows[0].numel()), 1)) if len(rows) else ()


def _features(learner: Learner, images: Tensor) -> Tensor:
    return torch.cat([learner.net.features(learner.machine.images(to_float(part))) for part in _parts(images)])


def _centre(learner: Learner, everything: Task, rows: Tensor) -> Tensor:
    """The mean feature of a class's training pictures, seen as the method sees them (`Method.images`)."""
    coded = learner.tools.space == "codec"
    total = torch.zeros(1, learner.net.dim, device=learner.machine.device)
    for part in _parts(rows, everything.take(rows[:1])[0].numel()):
        pictures = everything.take(part)
        total += _features(learner, learner.through_codec(pictures) if coded else pictures).sum(0)
    return total / len(rows)


def _softmax_of_seen(learner: Learner, images: Tensor) -> Tensor:
    return F.softmax(learner.scores(images, ready=True), 1)


def _mean(rows: list[ClassHealth]) -> dict[str, dict[str, float | None]]:
    """Means over the classes of each origin that have a number."""
    names = [known.name for known in fields(ClassHealth) if known.name not in ("name", "origin", "exemplars")]
    made: dict[str, dict[str, float | None]] = {}
    for origin in dict.fromkeys(r.origin for r in rows):
        given = {k: [v for r in rows if r.origin == origin and (v := getattr(r, k)) is not None] for k in names}
        made[origin] = {k: round(float(np.mean(values)), 4) if values else None for k, values in given.items()}
    return made
