"""Coreset methods that also pick which images of each batch are learned from: the common part of OCS and BCSR."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.methods.base import Batch, Tools
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.gradients import last_layer
from protocore.methods.parts.losses import cross_entropy
from protocore.methods.parts.selection import rank_in_class


class Picking(Coreset):
    """A subclass says in `choose` what is picked from a batch, in `warming_up` when chance does it instead, and in
    `ranked` in which order the candidates for the memory come. Options: `kappa`, `ref`, `candidates`.

    Candidates are the images that were picked when they were last shown: with whole epochs, the picks of the last one.
    """

    def __init__(self, tools: Tools, options: object) -> None:
        super().__init__(tools, options)
        self.picked = torch.empty(0, dtype=torch.bool)  # of the task's images: picked when last shown
        self.steps = self.steps_planned = self.steps_per_pass = 0
        self.hold("picked")
        self.hold("steps")
        self._choice: tuple[Tensor, Tensor] | None = None  # the present batch's rows, and what was picked

    def begin_task(self, task: Task) -> None:
        self.picked, self.steps = torch.zeros(len(task), dtype=torch.bool), 0

    def open_task(self, task: Task) -> None:
        s = self.tools.settings
        self.steps_per_pass = math.ceil(len(task) / s.batch)
        self.steps_planned = self.steps_per_pass if s.online else s.steps or s.epochs * self.steps_per_pass

    # -- a step --------------------------------------------------------------------------------------------

    def loss(self, batch: Batch) -> Tensor:
        """The mean cross entropy of the picked images + ref · that of a replay batch."""
        drawn, smoothing = self.draw(), self.tools.settings.label_smoothing
        replayed = None if drawn is None else self.tools.view(drawn.images)
        picked = batch.notes["picked"] = self._pick(batch)
        at = picked.to(batch.labels.device)
        x, now = batch.x[at], len(picked)
        logits = self.net(x if replayed is None else torch.cat([x, replayed]))
        raw = None if batch.raw is None else batch.raw[picked.cpu()]
        loss = cross_entropy(self.fair(logits[:now], raw), batch.labels[at], label_smoothing=smoothing)
        if drawn is not None:
            old = cross_entropy(logits[now:], drawn.labels.to(at.device), label_smoothing=smoothing)
            loss = loss + self.options.ref * old
        return loss

    def _pick(self, batch: Batch) -> Tensor:
        """Positions in the batch. A step that evaluates its loss several times (--cflat) learns from the same ones."""
        if self._choice is None or self._choice[0] is not batch.rows:
            n = len(batch.labels)
            # Two at least: batch normalisation may be alone with them.
            count = min(max(round(self.options.kappa * n), 2), n)
            if count == n or self.warming_up(batch):
                picked = torch.randperm(n)[:count]
            else:
                with self.exact():
                    h, theta = self.last_layer(batch.x)
                    picked = self.choose(h, batch.labels, theta, count).cpu()
            self._choice = batch.rows, picked
        return self._choice[1]

    def after_step(self, batch: Batch) -> None:
        self.picked[batch.rows] = False
        self.picked[batch.rows[batch.notes["picked"]]] = True
        self.steps += 1
        self._choice = None

    def warming_up(self, batch: Batch) -> bool:
        raise TypeError(f"{type(self).__name__} defines no warm-up")

    def choose(self, h: Tensor, labels: Tensor, theta: Tensor, count: int) -> Tensor:
        """`count` positions of a batch, from the inputs and weights of its last layer."""
        raise TypeError(f"{type(self).__name__} chooses nothing")

    @property
    def last_pass(self) -> bool:
        return self.steps >= self.steps_planned - self.steps_per_pass

    # -- the end of a task ---------------------------------------------------------------------------------

    def select(self, pool: Pool, room: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        # Candidates first, in the method's order; where they do not suffice for a class, the others by chance.
        wanted = torch.ones(len(pool), dtype=torch.bool)
        wanted[: pool.new] = self.picked
        by_chance = torch.randperm(len(pool))
        by_chance = by_chance[(~wanted[by_chance]).long().argsort(stable=True)]
        count = int(wanted.sum())
        rows = by_chance[: min(self.options.candidates or count, count)]
        if len(rows):
            with self.exact():
                parts = [self.last_layer(x) for _, x, _ in pool.batches(rows=rows)]
                h, labels = torch.cat([h for h, _ in parts]), pool.labels[rows]
                keep = min(int(room[labels.unique()].sum()), len(rows))
                order = self.ranked(h, labels.to(h.device), parts[0][1], keep).cpu()
            by_chance[: len(rows)] = rows[order]
        labels = pool.labels[by_chance]
        return by_chance[rank_in_class(labels) < room[labels]], {}

    def ranked(self, h: Tensor, labels: Tensor, theta: Tensor, keep: int) -> Tensor:
        """The order of the candidates for the memory, the most wanted first; `keep` of them will stay."""
        raise TypeError(f"{type(self).__name__} ranks nothing")

    def shrink(self, others: Tensor, room: Tensor) -> Tensor:
        """Of classes that hold too many exemplars the best in the order of `ranked_old` stay, where they are."""
        labels = self.store.labels[others]
        if bool((rank_in_class(labels) < room[labels]).all()):
            return others
        with self.exact():
            h, theta = self.of_memory(others)
            order = self.ranked_old(h, labels.to(h.device), theta).cpu()
        return others[order[rank_in_class(labels[order]) < room[labels[order]]].sort().values]

    def ranked_old(self, h: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
        """The order of exemplars of earlier classes, when the memory holds fewer of each class."""
        raise TypeError(f"{type(self).__name__} ranks nothing")

    # -- the network as it is, without a gradient ------------------------------------------------------------

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Evaluation mode, no gradients, no half precision."""
        with self.evaluating(), torch.no_grad(), torch.autocast(self.tools.device.type, enabled=False):
            yield

    def last_layer(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return last_layer(self.net.head, self.net.features(x))

    def of_memory(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and weights of the last layer for stored exemplars."""
        images = self.store.images[slots]
        parts = [self.last_layer(self.tools.on_device(to_float(part))) for part in images.split(256)]
        return torch.cat([h for h, _ in parts]), parts[0][1]
