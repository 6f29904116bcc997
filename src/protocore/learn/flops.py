"""Floating point operations by torch's counter: of steps as they are taken, and of a prediction.

A step is counted while it is taken: nothing is computed for the sake of counting, so the network, its statistics and
the generator are as they would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from protocore.ranks.group import alone
from protocore.ranks.split import added
from protocore.schema import Fields

if TYPE_CHECKING:
    from protocore.learn.learner import Learner


class StepFlops:
    """The work of all steps so far: some of them are counted, the others taken to be like the last of their size.

    Of each stretch (steps with the same classes and the same kind of plan) the steps 0, 1, 2, 4, 8... are counted,
    and the first of each batch size: replay sets in or grows, the last batch of an epoch is smaller.
    """

    def __init__(self, *, counting: bool = True) -> None:
        self.counting = counting
        self.steps = 0
        self.total = 0
        self.step = 0  # of the last one that was counted in full batch size
        self._stretch: list[int] = []  # what sets it apart from the one before
        self._taken = 0  # steps of this stretch
        self._sizes: dict[int, int] = {}  # FLOPs by batch size
        self._size = 0
        self._open: tuple[ExitStack, FlopCounterMode] | None = None

    @contextmanager
    def stretch(self, *what: int) -> Iterator[None]:
        """Steps that are much alike, if `what` is the same; they go on where an earlier block of the same ended."""
        if (numbers := list(map(int, what))) != self._stretch:
            self._stretch, self._taken, self._sizes = numbers, 0, {}
        try:
            yield
        finally:
            self._close()

    def next(self, size: int) -> None:
        """A step with so many samples begins now."""
        self._size = size
        if self.counting and (self._taken & (self._taken - 1) == 0 or size not in self._sizes):
            stack = ExitStack()
            self._open = stack, stack.enter_context(FlopCounterMode(display=False))

    def done(self) -> None:
        """The step is over."""
        if not self.counting:
            return
        found = self._close()
        if found is not None:
            found = added(found)
            self._sizes[self._size] = found
            if self._size == max(self._sizes):
                self.step = found
        self.total += self._sizes[self._size]
        self.steps += 1
        self._taken += 1

    def _close(self) -> int | None:
        if self._open is None:
            return None
        (stack, counter), self._open = self._open, None
        stack.close()
        return counter.get_total_flops()

    def state(self) -> dict[str, Any]:
        """For a checkpoint. The total is a float: JSON's whole numbers end at 2^63, years of a GPU do not."""
        return {"steps": self.steps, "total": float(self.total), "step": float(self.step), "stretch": self._stretch,
                "taken": self._taken, "sizes": {str(size): float(work) for size, work in self._sizes.items()}}

    def load(self, f: Fields) -> None:
        self.steps, self.total, self.step = f.whole("steps"), int(f.number("total")), int(f.number("step"))
        self._stretch, self._taken = f.wholes("stretch"), f.whole("taken")
        sizes: Mapping[str, float] = f.number_table("sizes")
        if not all(size.isdecimal() for size in sizes):
            f.refuse("sizes", "work by batch size", dict(sizes))
        self._sizes = {int(size): int(work) for size, work in sizes.items()}


def prediction_flops(learner: Learner) -> int:
    """What one more picture takes: of two minus of one, so that what is made once for any number does not count."""
    devices = [learner.machine.device] if learner.machine.device.type == "cuda" else []
    found = []
    with torch.random.fork_rng(devices), alone():
        for pictures in (1, 2):
            with FlopCounterMode(display=False) as counter:
                learner.scores(torch.zeros(pictures, *learner.image_shape, dtype=torch.uint8))
            found.append(counter.get_total_flops())
    return found[1] - found[0]
