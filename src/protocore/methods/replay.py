"""Replay for methods: an exemplar store, filled by a reservoir, within what the user allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.fill import BalancedReservoir, Reservoir
from protocore.memory.ledger import ledger_of
from protocore.memory.store import Drawn, ExemplarStore
from protocore.methods.base import Batch, Method, Tools


def sample_of(task: Task, count: int = 64) -> Tensor:
    """Some of the task's images, evenly over it: what a codec makes of them tells what an exemplar will take."""
    return task.take(torch.linspace(0, len(task) - 1, min(count, len(task))).long())


def settle(budget: int | None, store: ExemplarStore, kept: Callable[[], Mapping[str, Tensor]],
           fewer: Callable[[int], None] | None = None) -> None:
    """Where the size of an exemplar depends on the picture, drop what is over the budget after all.

    `kept()` is what the budget counts; `fewer(n)` leaves n exemplars of each class (unless given: the first ones).
    As many as there are classes stay: if these are over the budget, that is an error, which the learner raises.
    """
    fewer, least = fewer or (lambda n: store.keep(store.first_of_each(n))), len(store.classes)
    while budget is not None and len(store) > least and ledger_of(kept()).total > budget:
        fewer(max(store.counts().values()) - 1)


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
        self.size = 0

    def make_room(self, classes: int, task: Task, column_bytes: int = 0, other_bytes: int = 0,
                  per_class: int | None = None) -> None:
        """Set the size for this many classes; what no longer fits is dropped, what cannot fit is an error."""
        row = self.store.row_bytes(classes, lambda: sample_of(task))
        allowance = self.tools.allowance
        # The reservoirs' own counters are part of what is kept.
        other_bytes += 4 * classes
        if isinstance(self.filler, BalancedReservoir):
            fits = allowance.per_class(classes, row + column_bytes, other_bytes) if per_class is None else per_class
        else:
            fits = allowance.total(classes, row + column_bytes, other_bytes)
        self.size = fits
        self.filler.resize(fits)

    def settle(self) -> None:
        filler, store = self.filler, self.store
        fewer = filler.resize if isinstance(filler, BalancedReservoir) \
            else lambda _: filler.resize(len(store) - max(len(store) // 100, 1))  # of the stream, not of each class
        settle(self.tools.settings.budget, store, self.tensors, fewer)

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

    def scratch(self) -> dict[str, Tensor]:
        """The size for the present task: found again inside it, from other exemplars, it could be another one."""
        return {f"{self.store.name}/size": torch.tensor([self.size])}

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        self.size = int(scratch[f"{self.store.name}/size"])
        self.filler.resize(self.size)


@dataclass(frozen=True)
class ReplayOptions(Options):
    """How the memory is filled."""

    fill: str = option("auto", "what is kept: a reservoir over the stream, or one in each class (auto: by class "
                       "with --spc, else over the stream)", choices=("auto", "stream", "class"))


class ReplayMethod(Method):
    """A method that replays what reservoirs have kept. It says its loss; filling and keeping the memory is here."""

    class_bytes = 61_466
    keeps = "exemplars"
    replays = True
    Options = ReplayOptions
    defaults: ClassVar = {"spc": 20}

    def __init__(self, tools: Tools, options: ReplayOptions) -> None:
        super().__init__(tools, options)
        self.memory = Replay(tools, options.fill)

    def begin_task(self, task: Task) -> None:
        self.memory.make_room(len(self.seen), task)

    def after_step(self, batch: Batch) -> None:
        # Each sample is offered once, in the first pass: later passes would fill slots with copies.
        if batch.first_pass:
            self.memory.offer(batch.images, batch.labels.cpu())

    def end_task(self, task: Task) -> None:
        self.memory.settle()

    def stores(self) -> list[ExemplarStore]:
        return [self.memory.store]

    def state(self) -> dict[str, Tensor]:
        return self.memory.tensors()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.memory.load(state)

    def scratch(self) -> dict[str, Tensor]:
        return self.memory.scratch()

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        self.memory.load_scratch(scratch)
