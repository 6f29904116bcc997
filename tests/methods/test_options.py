"""Every option of every method changes something: what it says reaches the place where it is meant.

Three small tasks, one class of which comes back, are learned twice from the same seed. An option that somebody forgot
to pass on leaves network, memory and scores as they were, to the bit.
"""

import dataclasses
import hashlib
from functools import cache
from typing import Any

import numpy as np
import pytest

from helpers import learner, noise, task_of
from protocore.methods import METHODS

SHAPE = (1, 4, 4)
TASKS = ([0, 1] * 7, [2, 3] * 7, [4, 0] * 7)
QUICK = {"augment": "crop1", "lr": 0.01, "batch": 7}
BASE: dict[str, dict[str, Any]] = {
    "adc": {"attack_images": 10, "attack_steps": 2},
    "bcsr": {"outer": 2, "noise": 4},
    "csrel": {"ref_epochs": 1, "proxy_steps": 2, "selection_steps": 2},
    "onpro": {"variants": 2},
    "pbcs": {"outer_steps": 4, "inner_steps": 3, "spc": 2},
    "protocore": {"spc": 2, "exemplars": "coded", "condense_steps": 2, "condense_lr": 0.1},
}
ONLINE, SYNTHETIC, CAPACITY = {"online": True}, {"exemplars": "synthetic"}, {"capacity": 10, "spc": None}
MATCHED = {"exemplars": "synthetic", "match": "distribution", "blend": 2}
# What else must be so for an option to matter.
ALSO: dict[str, dict[str, Any]] = {
    **{f"{method} fill": CAPACITY for method in ("er", "cflat", "der", "derpp", "onpro")},
    "csrel balance": CAPACITY, "csrel beta": ONLINE, "csrel mse": ONLINE,
    "ocs diversity": {"tau": 0.0, "candidates": 4},  # a large affinity would leave the order to rounding
    "fecam first_windows": ONLINE, "ldc adam_epochs": {"fit": "adam"}, "ldc adam_lr": {"fit": "adam"},
    **{f"protocore match_{name}": MATCHED for name in ("networks", "samples", "every", "second", "label")},
    "protocore match": SYNTHETIC, "protocore blend": SYNTHETIC, "protocore init_scale": SYNTHETIC | {"start": "random"},
    "protocore follow": {"predict": "prototypes"}, "protocore start": {"exemplars": "auto"},
    "protocore match_layers": {"backbone": "convnet", "width": 3},
}
# The other value, where a small step from the default would change nothing.
OTHER: dict[str, Any] = {
    **{f"{method} fill": "class" for method in ("er", "cflat", "der", "derpp", "onpro")},
    "rm cutmix": 1.0, "onpro replay_per_class": 1, "ocs tau": 0.0, "ocs warmup": 0, "ocs reference": 1,
    "ocs candidates": 9, "csrel selection_steps": 1, "bcsr candidates": 9, "pbcs clip": 0.01, "pbcs candidates": 9,
    "pbcs balance": "off", "fecam first_windows": 1, "adc attack_total": 8, "protocore perturb": "none",
    "protocore noise": "0.7", "protocore exemplars": "synthetic", "protocore condense_steps": 4, "protocore blend": 3,
    "protocore init_scale": 0.5, "protocore prototype_every": 1, "protocore pre_syn": 50.0, "protocore shift": 50.0,
    "protocore match_pixels": 50.0, "protocore predict": "prototypes", "csrel mse": 500.0,
    "protocore match_samples": 2, "protocore match_every": 1, "protocore condense_lr": 0.3,
    **{f"{method} project": "5" for method in ("ncm", "slda", "ranpac")}, "slda shrinkage": 0.5, "ranpac ridge": 0.9,
}


def options() -> list[str]:
    return [f"{name} {field.name}" for name, method in METHODS.items() for field in dataclasses.fields(method.Options)]


def another(method: str, name: str) -> Any:
    field = {f.name: f for f in dataclasses.fields(METHODS[method].Options)}[name]
    value: Any = field.default
    choices = field.metadata.get("choices")
    if choices:
        return next(c for c in choices if c != value)
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 0.5 * value + 0.2


@cache
def outcome(method: str, flags: tuple[tuple[str, Any], ...]) -> str:
    """A hash of network, memory and records in the end, and of the scores after every task."""
    mine = learner(method, SHAPE, **QUICK | dict(flags))
    digest = hashlib.sha256()
    for seed, labels in enumerate(TASKS):
        learn = mine.learn_window if mine.settings.online else mine.learn
        learn(task_of(labels, seed))
        digest.update(mine.scores(noise(range(20), seed=9)).numpy().tobytes())
    left = {**mine.net.state_dict(), **mine.memory(), **mine.method.records()}
    for name, tensor in sorted(left.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("which", options())
def test_an_option_is_not_ignored(which: str):
    method, name = which.split()
    also = BASE.get(method, {}) | ALSO.get(which, {})
    value = OTHER[which] if which in OTHER else another(method, name)
    plain, changed = (outcome(method, tuple(sorted((also | more).items()))) for more in ({}, {name: value}))
    assert plain != changed
