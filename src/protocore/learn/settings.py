"""Settings of a method by itself: its defaults, what its paper published, and what the caller says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from protocore.backbones import backbone_named
from protocore.config import Resolved, Settings, Source, convert, resolve
from protocore.errors import UserError
from protocore.learn.weights import read_weights
from protocore.methods import method_named
from protocore.methods.base import Method
from protocore.pictures import ImageShape

Layer = tuple[Source, Mapping[str, Any]]


def settings_of(given: Mapping[str, Any]) -> Resolved:
    """For a learner of one's own pictures: no benchmark, so no recipe of one."""
    given = {k: v for k, v in given.items() if v is not None}
    method = method_named(convert(Settings, "method", given.get("method", "protocore")))
    return resolve([(Source("method", f"method {method.name}"), method.defaults),
                    *method_layers(method, given, source=None), *network_layers(given), (Source("flag"), given)],
                   method.Options)


def network_layers(given: Mapping[str, Any]) -> list[Layer]:
    """What goes with a network that was trained before: its size of pictures, and no views or codes of pictures where
    it is frozen whole."""
    name, freeze = (convert(Settings, key, given.get(key, value))
                    for key, value in (("backbone", "convnet"), ("freeze", "auto")))
    layers: list[Layer] = []
    if (file := given.get("weights")) is not None:
        told = read_weights(Path(convert(Settings, "weights", file)).expanduser()).settings
        layers.append((Source("network", f"weights {file}"), told))
        name = given.get("backbone") or told.get("backbone") or name
    info = backbone_named(name)
    layer: dict[str, Any] = {"image_size": info.image_size} if info.image_size else {}
    if freeze == "all" or (freeze == "auto" and (info.trained is not None or file is not None)):
        layer |= {"augment": "none", "mirror": False, "codec": "pixels"}
    return [*layers, (Source("network", f"backbone {name}"), layer)] if layer else layers


def check_image_size(settings: Settings, shape: ImageShape) -> None:
    """Pictures that nobody scales have the size that they have."""
    wish = settings.image_size
    if wish is not None and shape[1:] != (wish, wish) and backbone_named(settings.backbone).trained is None:
        raise UserError(f"--image-size {wish}: the pictures of {settings.benchmark} are {shape[1]} x {shape[2]} and "
                        "are not scaled; leave it out")


def method_layers(method: type[Method], given: Mapping[str, Any], *, source: str | None) -> list[Layer]:
    """What --online and the method's own preset ask for, the later winning; `source` is the data set's name.

    --online lies under the method's preset, whose batch sizes are published ones; its single pass lies over the
    method's epochs, unless the method says how many an online run takes.
    """
    preset = convert(Settings, "preset", given.get("preset", "default"))
    wishes = {wish for wish in ("online", "cflat")
              if convert(Settings, wish, given.get(wish, method.defaults.get(wish, False)))}
    wishes |= {str(given[choice.name]) for choice in fields(method.Options)
               if choice.metadata.get("choices") and given.get(choice.name) is not None}
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
