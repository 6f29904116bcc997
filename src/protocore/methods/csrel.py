"""CSReL: keep the samples whose loss can still be reduced (Tong et al., ICLR 2025), memory rebuilt at task ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones import Network
from protocore.backbones.proxy import fit_proxy
from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.memory.store import smallest_dtype
from protocore.methods.base import Batch, Tools
from protocore.methods.coreset import Coreset, Pool
from protocore.methods.replay import sample_of
from protocore.methods.selection import best, quota

TASK = "exemplars/task"
BATCH = 32  # of the reference model and of the models on the coreset


@dataclass(frozen=True)
class CSReLOptions(Options):
    """Replay, and what a selection costs."""

    alpha: float = option(1.0, "weight α of the replay loss", least=0)
    replay: str = option("sub", "what a step replays: a batch of the memory (sub), or all of it, with the sum of its "
                         "tasks' means (full)", choices=("sub", "full"))
    balance: str = option("auto", "on: every class has equal room, shared among the tasks it came in; off: tasks share "
                          "the memory, whatever their classes; auto: on with --spc or --online",
                          choices=("auto", "on", "off"))
    ref_epochs: int = option(6, "passes over the task of the reference model", least=1)
    ref_lr: float = option(0.05, "learning rate of the reference model (sgd)", above=0)
    proxy_steps: int = option(8, "steps of each model trained on the coreset so far", least=1)
    proxy_lr: float = option(0.05, "learning rate of these models (sgd)", above=0)
    selection_steps: int = option(10, "increments in which a coreset grows, a new model for each", least=1)
    prv: int = option(0, "exemplars of every old task that the reference model learns, too (the variant -prv)", least=0)


def greedy(reference: Tensor, kinds: Tensor, room: Tensor, selection_steps: int,
           losses_after: Callable[[Tensor], Tensor], tell: Callable[[int, int], object] | None = None) -> Tensor:
    """Candidates in the order of being picked, each time those of largest ReL(z) = L(z; θ_S) - L(z; θ_ref).

    `reference` are the losses L(z; θ_ref), `losses_after(S)` gives L(z; θ_S) of all candidates under a model trained
    on the candidates S; of kind k `room[k]` are picked.
    """
    count = int(torch.minimum(room, kinds.bincount(minlength=len(room))).sum())
    step = max(count // selection_steps, 1)
    picked = torch.empty(0, dtype=torch.int64)
    while len(picked) < count:
        reducible = losses_after(picked) - reference
        free = torch.ones(len(kinds), dtype=torch.bool)
        free[picked] = False
        left, still = free.nonzero().flatten(), room - kinds[picked].bincount(minlength=len(room))
        picked = torch.cat([picked, left[best(reducible[left], kinds[left], still, min(step, count - len(picked)))]])
        if tell:
            tell(len(picked), count)
    return picked


def sum_of_means(losses: Tensor, tasks: Tensor) -> Tensor:
    """Σ over tasks of the mean loss of the task's exemplars."""
    return (losses / tasks.bincount()[tasks]).sum()


class CSReL(Coreset):
    """L = CE(batch) + α · R(memory); a task keeps what its coreset does not explain but the whole task can teach."""

    name = "csrel"
    paper = "Tong et al. 2025, Coreset Selection via Reducible Loss in Continual Learning"
    class_bytes = 61_574
    keeps = "exemplars, their reference losses and tasks"
    Options = CSReLOptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = {
        # Split-CIFAR-100: 200 exemplars, hence up to 40 models of 7 steps for each task in memory, after every task.
        "paper": {"optimizer": "sgd", "lr": 0.02, "epochs": 100, "batch": 32, "replay_batch": 32, "alpha": 4.0,
                  "ref_epochs": 10, "ref_lr": 3e-3, "proxy_steps": 7, "proxy_lr": 5e-3, "selection_steps": 40},
        # Fewer and larger increments, and larger steps in a shorter training of the reference model.
        "cpu": {"ref_epochs": 4, "proxy_steps": 7, "selection_steps": 5},
    }
    checks = "oracles of the paper's formulas; digits end to end"

    options: CSReLOptions

    def __init__(self, tools: Tools, options: CSReLOptions) -> None:
        super().__init__(tools, options)
        s = tools.settings
        self.balanced = options.balance == "on" or (options.balance == "auto" and (s.spc is not None or s.online))
        self.sizes = torch.zeros(0, 1, dtype=torch.int64)  # of the pools: a row each task, balanced a column each class

    def begin_task(self, task: Task) -> None:
        self.room(task)  # a budget that cannot hold the new classes is an error now, not after the training

    def loss(self, batch: Batch) -> Tensor:
        smoothing, full = self.tools.settings.label_smoothing, self.options.replay == "full"
        drawn = self.draw(len(self.store) if full else None) if self.options.alpha else None
        if drawn is None:
            return F.cross_entropy(self.net(batch.x), batch.labels, label_smoothing=smoothing)
        logits, now = self.net(torch.cat([batch.x, self.tools.view(drawn.images)])), len(batch.labels)
        losses = F.cross_entropy(logits[now:], drawn.labels.to(logits.device), reduction="none",
                                 label_smoothing=smoothing)
        replayed = sum_of_means(losses, drawn.columns["task"].to(losses.device).long()) if full else losses.mean()
        return (F.cross_entropy(logits[:now], batch.labels, label_smoothing=smoothing)
                + self.options.alpha * replayed)

    # -- selection -----------------------------------------------------------------------------------------

    def end_task(self, task: Task) -> None:
        with self.tools.timed("select"):
            pool = Pool(task, self.store, self.tools, torch.arange(len(self.store)))
            kinds = pool.labels if self.balanced else torch.zeros_like(pool.labels)
            room, now = self.room(task), len(self.sizes)
            self.sizes = self.with_task(task)
            quotas = torch.stack([quota(int(room[k]), self.sizes[:, k]) for k in range(len(room))], 1)
            kept = [self.reselected(pool, kinds, t, quotas[t]) for t in range(now)]
            old = torch.cat([*kept, torch.empty(0, dtype=torch.int64)])
            rows = torch.arange(pool.new)
            reference = self.losses(self.reference(pool, kept), pool, rows)
            room = room - kinds[old].bincount(minlength=len(room))
            chosen = self.grown(pool, rows, reference, kinds, room, "selecting")
            self.replace(pool, torch.cat([old, chosen]), torch.empty(0, dtype=torch.int64), {
                "reference": torch.cat([torch.zeros(len(old)), reference[chosen]]),
                "task": torch.full((len(old) + len(chosen),), now, dtype=torch.int32)})
            self.settle()

    def reselected(self, pool: Pool, kinds: Tensor, task: int, room: Tensor) -> Tensor:
        """Of an old task's exemplars as many as still have room, by the reference losses stored with them."""
        slots = (self.store.column("task") == task).nonzero().flatten()
        rows = pool.new + slots
        if bool((kinds[rows].bincount(minlength=len(room)) <= room).all()):
            return rows  # picking all of them changes nothing
        return rows[self.grown(pool, rows, self.store.column("reference")[slots], kinds, room,
                               f"selecting anew, task {task + 1} of {len(self.sizes)}")]

    def grown(self, pool: Pool, rows: Tensor, reference: Tensor, kinds: Tensor, room: Tensor, what: str) -> Tensor:
        """`greedy` over these candidates, every θ_S an untrained network trained for a few steps."""
        if bool((kinds[rows].bincount(minlength=len(room)) <= room).all()):
            return torch.arange(len(rows))
        labels = pool.labels[rows].to(self.tools.device)

        def losses_after(picked: Tensor) -> Tensor:
            net, o = self.tools.fresh(self.net.classes), self.options
            if len(picked):
                fit_proxy(net, lambda at: self.view(pool, rows[picked[at]]), labels[picked.to(labels.device)],
                          steps=o.proxy_steps, lr=o.proxy_lr, batch=BATCH)
            return self.losses(net, pool, rows)

        return greedy(reference, kinds[rows], room, self.options.selection_steps, losses_after,
                      lambda done, of: self.tools.progress(what, done, of))

    def reference(self, pool: Pool, kept: list[Tensor]) -> Network:
        """θ_ref: an untrained network trained on the whole task, with --prv on some exemplars of every old one, too."""
        net, o = self.tools.fresh(self.net.classes), self.options
        older = [rows[torch.randperm(len(rows))[torch.arange(o.prv) % len(rows)]] for rows in kept if len(rows)]
        rows = torch.cat([torch.arange(pool.new), *older])
        optimiser = torch.optim.SGD(net.parameters(), lr=o.ref_lr)
        for epoch in range(o.ref_epochs):
            for part in rows[torch.randperm(len(rows))].tensor_split(-(-len(rows) // BATCH)):  # none of a lone image
                loss = F.cross_entropy(net(self.view(pool, part)), pool.labels[part].to(self.tools.device))
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
            self.tools.progress("training a reference model", epoch + 1, o.ref_epochs)
        return net

    @torch.no_grad()
    def losses(self, net: Network, pool: Pool, rows: Tensor) -> Tensor:
        """L(z; θ) of these candidates, one view each, the network in evaluation mode."""
        net.eval()
        return torch.cat([F.cross_entropy(net(self.view(pool, part)), pool.labels[part].to(self.tools.device),
                                          reduction="none").cpu() for part in rows.split(256)])

    def view(self, pool: Pool, rows: Tensor) -> Tensor:
        return self.tools.view(pool.images(rows, coded=self.tools.space == "codec"))

    # -- what is kept --------------------------------------------------------------------------------------

    def with_task(self, task: Task) -> Tensor:
        """The pool sizes with this task's, (tasks, kinds)."""
        kinds = task.labels if self.balanced else torch.zeros(len(task), dtype=torch.int64)
        new = kinds.bincount(minlength=max(self.seen) + 1 if self.balanced else 1)[None]
        return torch.cat([F.pad(self.sizes, (0, new.shape[1] - self.sizes.shape[1])), new])

    def room(self, task: Task) -> Tensor:
        """Slots of each kind: an equal share of every class seen, or all of them."""
        # A reference loss of 4 bytes and a task number, which is narrower on disk than in the working copy.
        number = smallest_dtype(len(self.sizes)).itemsize
        columns = number - 4 if len(self.store) else number + 4
        row = self.store.row_bytes(len(self.seen), lambda: sample_of(task)) + columns
        sizes = self.with_task(task)
        other = sizes.numel() * smallest_dtype(int(sizes.max())).itemsize
        total = self.tools.allowance.total(len(self.seen), row, other, tensors=6)
        room = torch.zeros(sizes.shape[1], dtype=torch.int64)
        if self.balanced:
            room[self.seen] = total // len(self.seen)
            return room
        return room + total

    def state(self) -> dict[str, Tensor]:
        kept = self.store.tensors()
        if kept:
            kept[TASK] = kept[TASK].to(smallest_dtype(int(kept[TASK].max())))
        if len(self.sizes):
            kept["pools/sizes"] = self.sizes.to(smallest_dtype(int(self.sizes.max())))
        return kept

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.store.load({k: v.to(torch.int32) if k == TASK else v for k, v in state.items()})
        self.sizes = state.get("pools/sizes", torch.zeros(0, 1)).to(torch.int64)
