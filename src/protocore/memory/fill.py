"""Which of the samples that pass by are kept: reservoir sampling, over the stream or within each class, and what goes
where a budget is passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.errors import DataError
from protocore.memory.kept import without_row
from protocore.memory.plan import file_size, plan_of
from protocore.memory.quota import largest
from protocore.memory.store import ExemplarStore


def reservoir_slots(seen: int, offered: int, capacity: int, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which of `offered` items go where, after `seen` earlier ones: (item numbers, slots).

    Item n (counted from 0 over the whole stream) takes slot n while there is room, else a slot drawn from
    {0..n}, kept if it lies below the capacity. Where two items of the batch hit one slot, the later stays,
    so the outcome is that of offering them one by one. With `shares` s item n is kept if its draw lies below s times
    the capacity (1: as likely as without), in any slot.
    """
    number = torch.arange(seen, seen + offered)
    drawn = (torch.rand(offered, dtype=torch.float64) * (number + 1)).long()
    if shares is not None:
        anywhere = (torch.rand(offered, dtype=torch.float64) * capacity).long()
        drawn = torch.where(drawn < capacity * shares, anywhere, capacity)
    slot = torch.where(number < capacity, number, drawn)
    last = torch.full((min(capacity, seen + offered),), -1)  # the slots that can be hit at all
    hit = (slot < capacity).nonzero().flatten()
    last.scatter_reduce_(0, slot[hit], hit, reduce="amax")  # the latest item that landed in each slot
    slots = (last >= 0).nonzero().flatten()
    return last[slots], slots


class Reservoir:
    """A uniform sample of everything offered so far, of fixed size."""

    def __init__(self, store: ExemplarStore, capacity: int = 0) -> None:
        self.store = store
        self.capacity = capacity
        self.seen = 0

    def resize(self, capacity: int) -> None:
        """Change the size; a smaller reservoir keeps a uniform part of what it had."""
        if len(self.store) > capacity:
            self.store.keep(torch.randperm(len(self.store))[:capacity])
        self.capacity = capacity

    def forget(self, label: int) -> list[str]:
        """Nobody counted the class's pictures; the exemplars, a fair sample of all, tell which share they were."""
        before = len(self.store)
        mixed = self.store.forget(label)
        if before:
            self.seen = round(self.seen * len(self.store) / before)
        return [*mixed, f"{self.store.name}/seen: how many pictures came, one number for all classes, now lower by the "
                "class's share of the exemplars"]

    def offer(self, images: Tensor, labels: Tensor, *, rows: Tensor | None = None, shares: Tensor | None = None,
              **columns: Tensor) -> int:
        """How many of them are kept; `rows` as in `ExemplarStore.put`, `shares` as in `reservoir_slots`."""
        items, slots = reservoir_slots(self.seen, len(labels), self.capacity, shares)
        # A reservoir that grew after it was full has gaps before its capacity: fill from the end of the store.
        slots = torch.where(slots < len(self.store), slots, _next_free(slots, len(self.store)))
        self.store.put(slots, images[items], labels[items], rows=_part(rows, items),
                       **{k: v[items] for k, v in columns.items()})
        self.seen += len(labels)
        return len(items)

    def tensors(self) -> dict[str, Tensor]:
        return self.store.tensors() | {f"{self.store.name}/seen": torch.tensor([self.seen], dtype=torch.int32)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        rest = dict(tensors)
        seen = rest.pop(f"{self.store.name}/seen", torch.zeros(1))
        self.store.load(rest)
        self.seen = int(seen)


class BalancedReservoir:
    """A reservoir for each class: a uniform sample of every class. `room` is one size for all, or one a label."""

    def __init__(self, store: ExemplarStore, room: int | Tensor = 0) -> None:
        self.store = store
        self.room = room
        self.seen = torch.zeros(0, dtype=torch.int32)

    def resize(self, room: int | Tensor) -> None:
        """Change the sizes; a class that has more keeps a uniform part of what it had."""
        if any(count > _of(room, label) for label, count in self.store.counts().items()):
            self.store.keep(torch.randperm(len(self.store)))  # so that the first of each class are random ones
            self.store.keep(self.store.first_of_each(room))
        self.room = room

    def room_of(self, classes: Iterable[int]) -> int:
        return sum(_of(self.room, label) for label in classes)

    def lower(self, room: Mapping[int, int]) -> None:
        """Smaller sizes for some classes, which have no more than that."""
        if isinstance(self.room, Tensor):
            self.room = self.room.clone()
            for label, count in room.items():
                self.room[label] = count

    def forget(self, label: int) -> list[str]:
        self.seen = without_row(self.seen, label)
        if isinstance(self.room, Tensor):
            self.room = without_row(self.room, label)
        return self.store.forget(label)

    def offer(self, images: Tensor, labels: Tensor, *, rows: Tensor | None = None, shares: Tensor | None = None,
              **columns: Tensor) -> int:
        """How many of them are kept; `rows` as in `ExemplarStore.put`, `shares` as in `reservoir_slots`."""
        if not len(labels):
            return 0
        self.seen = F.pad(self.seen, (0, max(int(labels.max()) + 1 - len(self.seen), 0)))
        items, slots, end = [], [], len(self.store)
        for label in labels.unique().tolist():
            of_class = (labels == label).nonzero().flatten()
            chosen, places = reservoir_slots(int(self.seen[label]), len(of_class), _of(self.room, label),
                                             None if shares is None else shares[of_class])
            held = self.store.slots_of(label)
            new = (places >= len(held)).nonzero().flatten()
            target = held[places.clamp(max=max(len(held) - 1, 0))] if len(held) else torch.zeros_like(places)
            target[new] = torch.arange(end, end + len(new))
            end += len(new)
            items.append(of_class[chosen])
            slots.append(target)
            self.seen[label] += len(of_class)
        at = torch.cat(items)
        self.store.put(torch.cat(slots), images[at], labels[at], rows=_part(rows, at),
                       **{k: v[at] for k, v in columns.items()})
        return len(at)

    def tensors(self) -> dict[str, Tensor]:
        """One counter for each class of the store, ascending: a class number costs no bytes of its own."""
        return self.store.tensors() | {f"{self.store.name}/seen": self.seen[self.store.classes]}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        rest = dict(tensors)
        seen = rest.pop(f"{self.store.name}/seen", torch.zeros(0, dtype=torch.int32))
        self.store.load(rest)
        classes = self.store.classes
        if len(seen) != len(classes):
            raise DataError(f"the memory's {self.store.name}/seen counts {len(seen)} classes, "
                            f"but {len(classes)} are stored")
        self.seen = torch.zeros(int(classes.max()) + 1 if len(classes) else 0, dtype=torch.int32)
        self.seen[classes] = seen


def settle(budget: int | None, store: ExemplarStore, kept: Callable[[], Mapping[str, Tensor]],
           order: Callable[[], Tensor] | None = None) -> bool:
    """Where the size of an exemplar depends on the picture, drop what is over the budget after all; whether it was.

    `kept()` is what the budget counts. The last exemplars in `order` go first: unless given, those of the classes that
    have most. As many as there are classes stay: if these are over the budget, that is an error, which the learner
    raises.
    """
    if budget is None or file_size(plan := plan_of(kept())) <= budget:
        return False
    slots = order() if order else store.by_turns()
    least = len(store.classes)
    count = largest(lambda n: file_size(store.cut(plan, slots[:n])) <= budget, least, len(slots))
    store.keep(slots[:count].sort().values)
    return True


def _part(rows: Tensor | None, at: Tensor) -> Tensor | None:
    return None if rows is None else rows[at]


def _of(room: int | Tensor, label: int) -> int:
    return int(room[label]) if isinstance(room, Tensor) else room


def _next_free(slots: Tensor, length: int) -> Tensor:
    beyond = slots >= length
    return length + beyond.cumsum(0) - 1
