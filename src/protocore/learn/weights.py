"""Weights that a network begins with: those of `--weights FILE.safetensors`, and what tells one set from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from protocore.backbones import Network
from protocore.backbones.base import Backbone
from protocore.errors import DataError, shown
from protocore.files import read_tensors
from protocore.learn.checkpoint import digest_of, read_checkpoint

_KNOWN = ("backbone", "width", "norm")  # of a learner's settings: what its network is


@dataclass(frozen=True)
class Weights:
    """The state of a backbone by our names, its normalisation where it is told, and the settings that build it."""

    state: Mapping[str, Tensor]
    scale: Mapping[str, Tensor] = field(default_factory=dict)  # mean and std
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of names and values."""
        return digest_of(dict(self.state) | dict(self.scale))


def read_weights(path: Path) -> Weights:
    """From a learner's file, or from one with the state of a backbone or of a whole network."""
    tensors, metadata = read_tensors(path)
    settings: dict[str, Any] = {}
    if "protocore" in metadata:
        checkpoint = read_checkpoint(path)
        if checkpoint.part("front"):
            raise DataError(f"{path}: its network was frozen, so that it has nothing new; say --backbone "
                            f"{shown(checkpoint.header.settings.get('backbone'))[1:-1]} in its place")
        tensors = checkpoint.part("net")
        settings = {name: value for name in _KNOWN if (value := checkpoint.header.settings.get(name)) is not None}
    state = {name.removeprefix("backbone."): value for name, value in tensors.items() if name.startswith("backbone.")}
    if state:
        return Weights(state, {name: tensors[name] for name in ("mean", "std") if name in tensors}, settings)
    return Weights(tensors)


def take_weights(net: Network, path: Path) -> str:
    """Load them, every one under its name; returns their digest."""
    weights = read_weights(path)
    backbone = net.backbone
    prefixed = not isinstance(backbone, Backbone) and not any(name.startswith("module.") for name in weights.state)
    module = backbone.module if prefixed else backbone
    assert not isinstance(module, Tensor)
    try:
        module.load_state_dict(dict(weights.state))
        net.load_state_dict(dict(weights.scale), strict=False)
    except RuntimeError as error:
        reason = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
        raise DataError(f"--weights {path}: not weights of this network ({shown(reason, 200)}); --backbone, --width "
                        "and --norm must be those that it was trained with, and pictures of its channels") from None
    return weights.digest
