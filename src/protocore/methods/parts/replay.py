"""Replay for methods: an exemplar store, filled by a reservoir, within what the user allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.fill import BalancedReservoir, Reservoir, settle
from protocore.memory.plan import Horizon, Plan, Shaped
from protocore.memory.store import Drawn, ExemplarStore
from protocore.methods.base import Batch, Method, Tools


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

    def plan(self, at: Horizon, rows: int, columns: Mapping[str, Shaped] | None = None) -> Plan:
        """What `tensors` will be."""
        counters = len(at.classes) if isinstance(self.filler, BalancedReservoir) else 1
        counter: Plan = {f"{self.store.name}/seen": (torch.int32, (counters,))}
        return self.store.plan(rows, at.top, at.sizes[self.store.name], columns) | counter

    def make_room(self, classes: Sequence[int], size: Callable[[int], int]) -> None:
        """Set the size for these classes, where n exemplars make a memory of `size(n)` bytes; drop what is over it."""
        allowance = self.tools.allowance
        by_class = isinstance(self.filler, BalancedReservoir)
        self.resize(allowance.room(classes, size) if by_class else torch.tensor(allowance.total(len(classes), size)))

    def resize(self, size: Tensor) -> None:
        """The size of each class's reservoir by label, or of the one over the stream."""
        if isinstance(self.filler, BalancedReservoir):
            self.filler.resize(size)
        else:
            self.filler.resize(int(size))

    def settle(self) -> None:
        """Drop by chance what is over the budget, and keep no more than that from now on."""
        store, filler, budget = self.store, self.filler, self.tools.settings.budget
        if isinstance(filler, BalancedReservoir):
            before = store.counts()

            def shuffled() -> Tensor:
                store.keep(torch.randperm(len(store)))
                return store.by_turns()

            if settle(budget, store, self.tensors, shuffled):
                after = store.counts()
                filler.lower({label: count for label, count in after.items() if count < before[label]})
        elif settle(budget, store, self.tensors, lambda: torch.randperm(len(store))):
            filler.capacity = len(store)

    def offer(self, images: Tensor, labels: Tensor, *, shares: Tensor | None = None, **columns: Tensor) -> int:
        """How many of them are kept."""
        kept = self.filler.offer(images, labels, shares=shares, **columns)
        if self.store.codec.exemplar_bytes is None:  # a budget holds at every step, not only where a task ends
            self.settle()
        return kept

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
        filler = self.filler
        size = filler.room if isinstance(filler, BalancedReservoir) else filler.capacity
        return {f"{self.store.name}/size": torch.as_tensor(size).clone()}

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        self.resize(scratch[f"{self.store.name}/size"].clone())


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
        at = self.horizon(task)
        self.memory.make_room(at.classes, lambda rows: self.bytes_at(at, rows))

    def planned(self, at: Horizon, rows: int) -> Plan:
        return self.memory.plan(at, rows)

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
