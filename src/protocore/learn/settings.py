"""Settings of a method by itself: its defaults, what its paper published, and what the caller says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocore.config import Resolved, Settings, Source, convert, resolve
from protocore.methods import method_named
from protocore.methods.base import Method

Layer = tuple[Source, Mapping[str, Any]]


def settings_of(given: Mapping[str, Any]) -> Resolved:
    """For a learner of one's own pictures: no benchmark, so no recipe of one."""
    given = {k: v for k, v in given.items() if v is not None}
    method = method_named(convert(Settings, "method", given.get("method", "protocore")))
    return resolve([(Source("method", f"method {method.name}"), method.defaults),
                    *method_layers(method, given, source=None), (Source("flag"), given)], method.Options)


def method_layers(method: type[Method], given: Mapping[str, Any], *, source: str | None) -> list[Layer]:
    """What --online and the method's own preset ask for, the later winning; `source` is the data set's name.

    --online lies under the method's preset, whose batch sizes are published ones; its single pass lies over the
    method's epochs, unless the method says how many an online run takes.
    """
    preset = convert(Settings, "preset", given.get("preset", "default"))
    wishes = {wish for wish in ("online", "cflat")
              if convert(Settings, wish, given.get(wish, method.defaults.get(wish, False)))}
    published = [("online" in key.split(), (Source("preset", f"preset {key} of {method.name}"), layer))
                 for key, layer in method.presets.items() if _holds(key, preset, {*wishes, source})]
    online, here = "online" in wishes, Source("online", "--online")
    return [
        (here, {"batch": 10, "replay_batch": 10} if online else {}),
        *(layer for of_online, layer in published if not of_online),
        (here, {"epochs": 1, "least_steps": 0} if online else {}),
        *(layer for of_online, layer in published if of_online),
    ]


def _holds(key: str, preset: str, facts: set[str | None]) -> bool:
    """Whether a method's preset is meant: its name, then words for what else must be so (see `Method.presets`)."""
    name, *conditions = key.split()
    return name == preset and facts.issuperset(conditions)
