"""How many exemplars may be kept: by number per class, by number in all, or by bytes. Pure functions of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocore.config import plural
from protocore.errors import BudgetError, UserError, shown

MOST = 1 << 40  # exemplars: more than any disk holds


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` that fits, or `low`: what fits gets no larger with fewer."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def shares(total: int, classes: int) -> list[int]:
    """floor(total / classes) each, and one more for the first (total mod classes).

    As classes arrive and the total does not grow, nobody's share ever does: what was dropped is not missed later.
    """
    each, over = divmod(total, classes)
    return [each + (k < over) for k in range(classes)]


def by_label(classes: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """A number for each of these classes, at the place of its label; 0 elsewhere."""
    room = torch.zeros(max(classes, default=-1) + 1, dtype=torch.int64)
    room[list(classes)] = torch.tensor(numbers, dtype=torch.int64)
    return room


@dataclass(frozen=True)
class Allowance:
    """What the user allowed: --spc, --capacity, --budget (any of them may be None)."""

    spc: int | None = None
    capacity: int | None = None
    budget: int | None = None

    @property
    def each(self) -> int:
        """Exemplars that every class is to have at least."""
        return self.spc or 1

    def total(self, classes: int, size: Callable[[int], int]) -> int:
        """Exemplars in all for this many classes, one each at least; a memory with n of them takes `size(n)` bytes."""
        limits = []
        if self.spc is not None:
            limits.append(self.spc * classes)
        if self.capacity is not None:
            limits.append(self.capacity)
        if self.budget is not None:
            budget = self.budget
            limits.append(largest(lambda n: size(n) <= budget, classes, max(classes, min(budget, MOST))))
        if not limits:
            raise UserError("say how much may be kept: --spc N, --capacity N or --budget BYTES")
        return max(min(limits), classes)

    def room(self, classes: Sequence[int], size: Callable[[int], int]) -> Tensor:
        """Exemplars of each class, by label: fair shares of the total."""
        return by_label(classes, shares(self.total(len(classes), size), len(classes)))

    def check(self, names: Sequence[str], size: Callable[[int, int], int], *, exemplars: bool = True) -> None:
        """Raise `BudgetError` where these classes cannot be held; a memory of k classes, the first ones, with n
        exemplars in all takes `size(k, n)` bytes."""
        classes = len(names)
        if exemplars and self.capacity is not None and self.capacity < classes:
            raise BudgetError(f"--capacity {self.capacity} cannot hold {plural(classes, 'class')}, one exemplar each: "
                              f"{shown(names[self.capacity])} would have none; give at least --capacity {classes}")
        each = self.each if exemplars else 0
        if self.budget is None or size(classes, classes * each) <= self.budget:
            return
        needed, budget = size(classes, classes * each), self.budget
        fitting = largest(lambda k: size(k, k * each) <= budget, 0, classes)
        fewer = largest(lambda n: size(classes, classes * n) <= budget, 0, each)
        rest = size(classes, 0)
        parts = f" (exemplars {needed - rest:,}, everything else {rest:,})" if exemplars else ""
        with_them = f" with {plural(each, 'exemplar')} each" if exemplars else ""
        spc = f"; {classes} with --spc {fewer}" if fewer else ""
        raise BudgetError(
            f"--budget {budget:,} bytes cannot hold {plural(classes, 'class')}{with_them}: they take {needed:,} "
            f"bytes{parts}. {plural(fitting, 'class')} would fit, but not {shown(names[fitting])}{spc}. "
            f"{plural(classes, 'class')} need --budget {needed}")
