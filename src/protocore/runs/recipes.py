"""How a benchmark is learned unless somebody says otherwise: what a run takes as defaults and as presets.

A benchmark from outside the package brings a `recipe` of its own, or has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from protocore.data.benchmarks import BENCHMARKS
from protocore.errors import UserError, shown

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """`defaults` hold for every run on a benchmark, `presets[NAME]` with --preset NAME on top."""

    defaults: Layer = field(default_factory=dict)
    presets: Mapping[str, Layer] = field(default_factory=dict)
    with_budget: Layer = field(default_factory=dict)  # for methods with exemplars, where --budget is given


_COLOUR = {"augment": "crop4,flip"}
# What the first tables were made with: hardly any training, so they tell little about a memory.
_CPU = {"batch": 64, "replay_batch": 64, "lr": 1e-3, "replay_space": "half"}
_CPU_CIFAR100 = _CPU | {"images_per_class": 125, "epochs": 6}
_CPU_SMALL = _CPU | {"images_per_class": 500, "epochs": 3}
# All training pictures, and what a processor core learns from them in less than an hour.
_RECIPE = {"backbone": "fastnet", "optimizer": "adam", "lr": 2e-3, "schedule": "triangle"}
_FAST = _RECIPE | {"epochs": 10, "batch": 64, "replay_batch": 64}
_FAST_COLOUR = _FAST | {"mirror": True}  # where mirror images are trained on
_PAPER = {"batch": 128, "optimizer": "adam", "lr": 0.05, "augment": "rrc,flip"}
_PAPER18 = _PAPER | {"backbone": "resnet18", "epochs": 50}
_PAPER50 = _PAPER | {"backbone": "resnet50", "epochs": 100}
_CIFAR100 = Recipe(_COLOUR, {"fast": _FAST_COLOUR | {"class_order": "1993"}, "cpu": _CPU_CIFAR100, "paper": _PAPER18})

RECIPES: dict[str, Recipe] = {
    "digits": Recipe({"epochs": 20, "batch": 32, "replay_batch": 32, "augment": "crop1"},
                     {"fast": _RECIPE}),
    "mnist": Recipe(presets={"fast": _FAST, "cpu": _CPU_SMALL}),
    "fashion-mnist": Recipe({"augment": "crop2,flip", "epochs": 3},
                            {"fast": _FAST_COLOUR, "cpu": _CPU_SMALL, "paper": _PAPER18}),
    "cifar10": Recipe(_COLOUR, {"fast": _FAST_COLOUR, "cpu": _CPU_SMALL, "paper": _PAPER18}),
    "cifar100-10": _CIFAR100,
    "cifar100-50": _CIFAR100,
    "tinyimagenet-20": Recipe(_COLOUR, {"fast": _FAST_COLOUR, "cpu": _CPU_CIFAR100 | {"images_per_class": 100},
                                        "paper": _PAPER50}),
    "imagenet1k-100": Recipe(_COLOUR, {"fast": _FAST_COLOUR | {"image_size": 64},
                                       "cpu": {"image_size": 64, "images_per_class": 100}, "paper": _PAPER50}),
    # Few pictures, of which nobody knows whether they may be mirrored.
    "folder": Recipe({"augment": "crop4", "least_steps": 300}, with_budget={"codec": "vqgan:4"}),
}


def recipe_for(benchmark_name: str) -> Recipe:
    """The recipe that the benchmark brings, else the package's own, else an empty one."""
    if benchmark_name.startswith("folder:"):
        return RECIPES["folder"]
    brought = BENCHMARKS[benchmark_name].recipe if benchmark_name in BENCHMARKS else None
    if brought is None:
        return RECIPES.get(benchmark_name, Recipe())
    known = [f.name for f in fields(Recipe)]
    if odd := next((key for key in brought if key not in known), None):
        raise UserError(f"benchmark {benchmark_name}: its recipe has {shown(odd)}, which is none of {', '.join(known)}")
    return Recipe(**brought)
