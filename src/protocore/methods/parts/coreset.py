"""Replay methods that choose their exemplars at the end of each task: the common part, and the candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.memory.fill import settle
from protocore.memory.store import Drawn, ExemplarStore
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.parts.losses import cross_entropy


class Pool:
    """The candidates of a selection: the task's images (rows 0..n-1), then stored exemplars of the same classes.

    A class has stored ones where it came before: in a blurry stream, or in an earlier window of an online one.
    """

    def __init__(self, task: Task, store: ExemplarStore, tools: Tools, slots: Tensor | None = None) -> None:
        self.task, self.store, self.tools = task, store, tools
        self.new = len(task)
        of_classes = torch.isin(store.labels, torch.tensor(task.classes)).nonzero().flatten()
        self.slots = of_classes if slots is None else slots
        self.labels = torch.cat([task.labels, store.labels[self.slots]])

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, rows: Tensor, *, coded: bool = False) -> Tensor:
        """uint8 images of these candidates, in this order; `coded`: new ones as the codec shows them."""
        rows = rows.cpu()
        images = torch.empty(len(rows), *self.store.codec.image_shape, dtype=torch.uint8)
        new = rows < self.new
        take = self.task.take_coded if coded else self.task.take
        images[new] = take(rows[new])
        images[~new] = self.store.images[self.slots[rows[~new] - self.new]]
        return images

    def x(self, rows: Tensor) -> Tensor:
        """Float images without augmentation, on the device, as the network sees such images at test time."""
        return self.tools.on_device(to_float(self.images(rows, coded=self.tools.space == "codec")))

    def batches(self, size: int = 256, rows: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(rows, x, labels on the device) of all candidates, or of these."""
        every = torch.arange(len(self)) if rows is None else rows.cpu()
        for part in every.split(size):
            yield part, self.x(part), self.labels[part].to(self.tools.device)


class Coreset(Method):
    """A subclass says in `select` which candidates are kept, and may have its own `loss` and `shrink`."""

    keeps = "exemplars"
    replays = True

    def __init__(self, tools: Tools, options: object) -> None:
        super().__init__(tools, options)
        self.store = self.keep(tools.store())

    def draw(self, n: int | None = None) -> Drawn | None:
        """A replay batch, uniform over the exemplars, or None while there are none."""
        n = self.tools.settings.replay_batch if n is None else n
        return self.store.draw(n) if len(self.store) and n else None

    def loss(self, batch: Batch) -> Tensor:
        """The mean cross entropy of current and replayed images in one forward pass, as in experience replay."""
        drawn = self.draw()
        x, labels = batch.x, batch.labels
        if drawn is not None:
            x = torch.cat([x, self.tools.view(drawn.images)])
            labels = torch.cat([labels, drawn.labels.to(labels.device)])
        return cross_entropy(self.fair(self.net(x), batch.raw), labels,
                             label_smoothing=self.tools.settings.label_smoothing)

    def end_task(self, task: Task) -> None:
        with self.tools.timed("select"), self.evaluating():
            room = self.room(task)
            pool = Pool(task, self.store, self.tools)
            chosen, columns = self.select(pool, room)
            others = torch.isin(self.store.labels, pool.labels.unique(), invert=True).nonzero().flatten()
            self.replace(pool, chosen, self.shrink(others, room), columns)
            self.settle()

    def select(self, pool: Pool, room: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Candidates to keep (numbers in the pool, the most important of each class first), and their columns.

        Of class c there is room for `room[c]`.
        """
        raise TypeError(f"{type(self).__name__} selects nothing")

    def shrink(self, others: Tensor, room: Tensor) -> Tensor:
        """Which exemplars stay, of the slots `others` (classes not in the pool): the first of each class."""
        return others[torch.isin(others, self.store.first_of_each(room))]

    def replace(self, pool: Pool, chosen: Tensor, others: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Keep these others and the chosen candidates, in this order; nothing that is stored is coded again."""
        chosen = chosen.cpu()
        new = chosen < pool.new
        images, labels = pool.images(chosen[new]), pool.labels[chosen[new]]
        self.store.keep(torch.cat([others, pool.slots[chosen[~new] - pool.new]]))
        self.store.add(images, labels, rows=chosen[new],
                       **{name: values[new.to(values.device)] for name, values in columns.items()})
        at = torch.empty(len(chosen), dtype=torch.int64)
        at[~new] = len(others) + torch.arange(int((~new).sum()))
        at[new] = len(others) + int((~new).sum()) + torch.arange(int(new.sum()))
        self.store.keep(torch.cat([torch.arange(len(others)), at]))

    def settle(self) -> None:
        settle(self.tools.settings.budget, self.store, self.state)

    def room(self, task: Task) -> Tensor:
        """Exemplars of each class, by label."""
        at = self.horizon(task)
        return self.tools.allowance.room(at.classes, lambda rows: self.bytes_at(at, rows))
