"""How many exemplars may be kept: by number per class, by number in all, or by bytes."""

from __future__ import annotations

from dataclasses import dataclass

from protocore.config import format_bytes
from protocore.errors import BudgetError, UserError

HEADER_RESERVE = 96  # bytes of the file's header for each tensor, name and offsets included; checked afterwards


@dataclass(frozen=True)
class Allowance:
    """What the user allowed: --spc, --capacity, --budget (any of them may be None)."""

    spc: int | None = None
    capacity: int | None = None
    budget: int | None = None

    def total(self, classes: int, row_bytes: int, other_bytes: int = 0, tensors: int = 4) -> int:
        """Exemplars in all for this many classes. `other_bytes` is what else the method keeps by then."""
        limits = []
        if self.spc is not None:
            limits.append(self.spc * classes)
        if self.capacity is not None:
            limits.append(self.capacity)
        if self.budget is not None:
            room = self.budget - other_bytes - HEADER_RESERVE * tensors
            fits = max(room, 0) // row_bytes
            if fits < classes or (self.spc is not None and fits < self.spc * classes):
                self._refuse(classes, row_bytes, other_bytes, tensors)
            limits.append(fits)
        if not limits:
            raise UserError("say how much may be kept: --spc N, --capacity N or --budget BYTES")
        if min(limits) < classes:
            raise BudgetError(f"--capacity {self.capacity} cannot hold {classes} classes, one exemplar each; "
                              f"give at least --capacity {classes}")
        return min(limits)

    def per_class(self, classes: int, row_bytes: int, other_bytes: int = 0, tensors: int = 4) -> int:
        """Exemplars of each class, all classes alike."""
        return self.total(classes, row_bytes, other_bytes, tensors) // classes

    def _refuse(self, classes: int, row_bytes: int, other_bytes: int, tensors: int) -> None:
        header = HEADER_RESERVE * tensors
        wanted = self.spc or 1
        each = wanted * row_bytes + other_bytes / classes
        fitting = int(max((self.budget or 0) - header, 0) // each)
        raise BudgetError(
            f"--budget {format_bytes(self.budget or 0)} cannot hold {classes} classes with {wanted} exemplar"
            f"{'s' * (wanted > 1)} each: an exemplar takes {row_bytes:,} bytes, everything else {other_bytes:,} bytes. "
            f"{fitting} classes would fit; {classes} need --budget {round(classes * each) + header}"
        )
