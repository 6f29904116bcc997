"""How many exemplars may be kept: by number per class, by number in all, or by bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from protocore.errors import BudgetError, UserError

HEADER_RESERVE = 96  # bytes of the file's header for each tensor, name and offsets included; checked afterwards


@dataclass(frozen=True)
class Allowance:
    """What the user allowed: --spc, --capacity, --budget (any of them may be None).

    `resuming`: the numbers come from a checkpoint in a moment. An estimate that differs now, because the memory is
    not there yet, is no reason to refuse.
    """

    spc: int | None = None
    capacity: int | None = None
    budget: int | None = None
    resuming: bool = False

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
            if self.resuming:
                fits = max(fits, classes)
            elif fits < classes or (self.spc is not None and fits < self.spc * classes):
                self._refuse(classes, row_bytes, other_bytes, tensors, fits)
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

    def _refuse(self, classes: int, row_bytes: int, other_bytes: int, tensors: int, fits: int) -> NoReturn:
        header = HEADER_RESERVE * tensors
        wanted = self.spc or 1
        needed = classes * wanted * row_bytes + other_bytes
        fitting = max((self.budget or 0) - header, 0) * classes // needed
        fewer = f", or {classes} with --spc {fits // classes}" if fits >= classes else ""
        raise BudgetError(
            f"--budget {self.budget:,} bytes cannot hold {classes} classes with {wanted} "
            f"exemplar{'s' * (wanted > 1)} each: an exemplar takes {row_bytes:,} bytes, everything else "
            f"{other_bytes + header:,} bytes. {fitting} class{'es' * (fitting != 1)} would fit{fewer}; "
            f"{classes} need --budget {needed + header}"
        )
