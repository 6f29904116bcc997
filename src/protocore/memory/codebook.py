"""What a codec has learned, as a part of the memory: it is counted once, and whoever decodes needs it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protocore.codecs.base import Codec
from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan

NAME = "codebook"


class Codebook(Kept):
    """The state of a codec that learns. It is kept before the stores, which decode with it when they are loaded."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def tensors(self) -> dict[str, Tensor]:
        return {f"{NAME}/{key}": tensor for key, tensor in self.codec.state().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        take_codebook(self.codec, tensors)

    def forget(self, label: int) -> list[str]:
        return [f"{NAME}: means of parts of the first task's pictures, those of this class among them if it was there"]

    def plan(self, at: Horizon, rows: int) -> Plan:
        return {f"{NAME}/{key}": shaped for key, shaped in self.codec.shapes().items()} if at.classes else {}


def take_codebook(codec: Codec, tensors: Mapping[str, Tensor]) -> None:
    """Give a codec what it had learned when this memory was written."""
    mine = {k.removeprefix(f"{NAME}/"): v for k, v in tensors.items() if k.startswith(f"{NAME}/")}
    if codec.learns:
        codec.load_state(mine)
