"""How good, and how private, the exemplars of a finished run are: class by class, held against the training data.

A report for people who have the data, made after the run: nothing of it goes back into learning.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones import build_network
from protocore.backbones.proxy import fit_proxy
from protocore.bench.results import read_result
from protocore.data.augment import to_float
from protocore.data.benchmarks import benchmark_named, open_stream
from protocore.data.stream import Stream, Task
from protocore.errors import UserError
from protocore.files import write_json
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore
from protocore.train.learner import Learner
from protocore.train.run import configure, learner_for

PICTURES = 200  # training pictures of a class that exemplars are held against
SHOWN = 4  # exemplars of a class in the picture


@dataclass(frozen=True)
class ClassHealth:
    """One class. Distances of pictures are root mean squares over pixels in [0, 1]."""

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
    between_training: float  # the same mean distance of training pictures to each other


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
        "command": read_result(folder)["command"], "fresh_network_test_accuracy": accuracy, "fresh_steps": steps,
        "classes": [asdict(row) for row in rows], "mean": _mean(rows),
    }
    write_json(folder / "health.json", report)
    from protocore.bench.figures import pairs_grid

    pairs_grid([(f"{row.name}: {row.present:.2f} / {row.fresh:.2f}", pictures) for row, pictures in shown],
               folder / "health.png", "exemplar | nearest training picture; p(class) of the present / a fresh network")
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
    benchmark = benchmark_named(s.benchmark)
    channels = stream.image_shape[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(s.seed + 1)
        net = build_network("convnet", stream.image_shape, mean=benchmark.mean[:channels],
                            std=benchmark.std[:channels])
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
    x = learner.machine.images(to_float(images))
    rows = (everything.labels == label).nonzero().flatten()[:PICTURES]
    training = everything.take(rows)
    learner.net.eval()
    z = learner.net.features(x)
    if label in prototypes:
        goal = prototypes.get([label]).to(z)
    else:
        goal = learner.net.features(learner.machine.images(to_float(training))).mean(0, keepdim=True)
    gap = (F.normalize(z, dim=1) - F.normalize(goal, dim=1)).square().sum(1).mean()
    present = _softmax_of_seen(learner, images)
    second = F.softmax(fresh(x), 1).cpu()
    a, b = to_float(images).flatten(1), to_float(training).flatten(1)
    scale = a.shape[1] ** 0.5
    near, which = (torch.cdist(a, b) / scale).min(1)
    among = torch.cdist(b, b) / scale
    among.fill_diagonal_(float("inf"))
    origin = store.name.partition(" ")[0]
    if origin not in ("synthetic", "coded"):
        origin = "real" if store.decoder.lossless else "coded"
    row = ClassHealth(
        learner.classes_[label], origin, len(images), float(gap), float(present[:, label].mean()),
        float((present.argmax(1) == label).float().mean()), float(second[:, label].mean()),
        float((second.argmax(1) == label).float().mean()), float(near.mean()), float(near.min()),
        float(among.min(1).values.mean()) if len(b) > 1 else float("nan"),
    )
    return row, [(images[i].clone(), training[which[i]].clone()) for i in range(min(len(images), SHOWN))]


def _softmax_of_seen(learner: Learner, images: Tensor) -> Tensor:
    return F.softmax(learner.scores(images, coded=True), 1)


def _mean(rows: list[ClassHealth]) -> dict[str, dict[str, float]]:
    """Means over the classes of each origin."""
    numbers = [k for k, v in asdict(rows[0]).items() if isinstance(v, float)]
    return {
        origin: {k: round(float(np.mean([getattr(r, k) for r in rows if r.origin == origin])), 4) for k in numbers}
        for origin in dict.fromkeys(r.origin for r in rows)
    }
