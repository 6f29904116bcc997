"""A replay memory for methods: an exemplar store, filled by a reservoir, within what the user allows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protocore.errors import UserError
from protocore.memory.fill import BalancedReservoir, Reservoir
from protocore.memory.store import Drawn
from protocore.methods.base import Tools


class Replay:
    """`fill` is `stream` (one reservoir), `class` (one in each class) or `auto` (class with --spc).

    It has no length on purpose: an empty memory must not pass for no memory in `if self.real`.
    """

    def __init__(self, tools: Tools, fill: str = "auto", name: str = "exemplars") -> None:
        self.tools = tools
        self.store = tools.store(name)
        by_class = fill == "class" or (fill == "auto" and tools.settings.spc is not None)
        if not by_class and tools.settings.capacity is None and tools.settings.budget is None:
            raise UserError("--fill stream needs a fixed size: give --capacity N or --budget BYTES instead of --spc")
        self.filler = BalancedReservoir(self.store) if by_class else Reservoir(self.store)

    def make_room(self, classes: int, column_bytes: int = 0, other_bytes: int = 0,
                  per_class: int | None = None) -> None:
        """Set the size for this many classes; what no longer fits is dropped, what cannot fit is an error."""
        row = self.store.row_bytes(classes)
        if row is None:
            row = self.store.decoder.image_shape[0] * 64  # replaced by real sizes once exemplars exist
        allowance = self.tools.allowance
        # The reservoirs' own counters are part of what is kept.
        other_bytes += 4 * classes
        if isinstance(self.filler, BalancedReservoir):
            size = allowance.per_class(classes, row + column_bytes, other_bytes) if per_class is None else per_class
        else:
            size = allowance.total(classes, row + column_bytes, other_bytes)
        self.filler.resize(size)

    def offer(self, images: Tensor, labels: Tensor, **columns: Tensor) -> None:
        self.filler.offer(images, labels, **columns)

    def draw(self, n: int, *, balanced: bool = False) -> Drawn | None:
        """A replay batch, or None while there is nothing to replay."""
        if not len(self.store) or not n:
            return None
        return self.store.draw_balanced(n) if balanced else self.store.draw(n)

    def tensors(self) -> dict[str, Tensor]:
        return self.filler.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.filler.load(tensors)


