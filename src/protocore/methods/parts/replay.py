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
from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan, Shaped
from protocore.memory.store import Drawn, ExemplarStore
from protocore.methods.base import Batch, Method, Tools


class Replay(Kept):
    """A store and its reservoirs: keep it, and hold its `room`.

    `fill` is `stream` (one reservoir), `class` (one in each class) or `auto` (class with --spc).

    A memory has no length on purpose: an empty memory must not pass for no memory in `if self.real`.
    """

    kind = "exemplars"

    def __init__(self, tools: Tools, fill: str = "auto", name: str = "exemplars") -> None:
        self.tools = tools
        self.store = tools.store(name)
        self.origin = self.store.origin
        by_class = fill == "class" or (fill == "auto" and tools.settings.spc is not None)
        if not by_class and tools.settings.capacity is None and tools.settings.budget is None:
            raise UserError("--fill stream needs a fixed size: give --capacity N or --budget BYTES instead of --spc")
        self.filler = BalancedReservoir(self.store) if by_class else Reservoir(self.store)
        self.room = Room(self)

    def plan(self, at: Horizon, rows: int, **columns: Shaped) -> Plan:
        counters = len(at.classes) if isinstance(self.filler, BalancedReservoir) else 1
        counter: Plan = {f"{self.store.name}/seen": (torch.int32, (counters,))}
        return self.store.plan(at, rows, **columns) | counter

    def stores(self) -> list[ExemplarStore]:
        return [self.store]

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

    def offer(self, batch: Batch, *, shares: Tensor | None = None, **columns: Tensor) -> int:
        """How many of a step's images are kept, as they are; a column is a value of each of them."""
        kept = self.filler.offer(batch.images, batch.labels.cpu(), rows=batch.rows.cpu(), shares=shares, **columns)
        if self.store.codec.exemplar_bytes is None:  # a budget holds at every step, not only where a task ends
            self.settle()
        return kept

    def draw(self, n: int, *, balanced: bool = False) -> Drawn | None:
        """A replay batch, or None while there is nothing to replay."""
        if not len(self.store) or not n:
            return None
        return self.store.draw_balanced(n) if balanced else self.store.draw(n)

    def forget(self, label: int) -> list[str]:
        return self.filler.forget(label)

    def tensors(self) -> dict[str, Tensor]:
        return self.filler.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.filler.load(tensors)


class Room(Kept):
    """How many exemplars a memory has room for in the present task: found again inside it, from other exemplars, it
    could be another number."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.name = replay, f"{replay.store.name}/size"

    def tensors(self) -> dict[str, Tensor]:
        filler = self.replay.filler
        size = filler.room if isinstance(filler, BalancedReservoir) else filler.capacity
        return {self.name: torch.as_tensor(size).clone()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if self.name in tensors:  # else the room is what it was
            self.replay.resize(tensors[self.name].clone())


@dataclass(frozen=True)
class ReplayOptions(Options):
    """How the memory is filled."""

    fill: str = option("auto", "what is kept: a reservoir over the stream, or one in each class (auto: by class "
                       "with --spc, else over the stream)", choices=("auto", "stream", "class"))


class ReplayMethod(Method):
    """A method that replays what reservoirs have kept. It says its loss; filling and keeping the memory is here."""

    keeps = "exemplars"
    replays = True
    Options = ReplayOptions
    defaults: ClassVar = {"spc": 20}

    def __init__(self, tools: Tools, options: ReplayOptions) -> None:
        super().__init__(tools, options)
        self.memory = self.keep(Replay(tools, options.fill))
        self.hold(self.memory.room)

    def begin_task(self, task: Task) -> None:
        at = self.horizon(task)
        self.memory.make_room(at.classes, lambda rows: self.bytes_at(at, rows))

    def after_step(self, batch: Batch) -> None:
        # Each sample is offered once, in the first pass: later passes would fill slots with copies.
        if batch.first_pass:
            self.memory.offer(batch)

    def end_task(self, task: Task) -> None:
        self.memory.settle()
