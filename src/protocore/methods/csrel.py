"""CSReL: keep the samples whose loss can still be reduced (Tong et al., ICLR 2025). Online: see csrel_stream."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones import Network
from protocore.backbones.proxy import fit_passes, fit_proxy
from protocore.config import Settings
from protocore.data.stream import Task
from protocore.memory.kept import without_row
from protocore.memory.plan import Horizon, Plan
from protocore.memory.store import smallest_dtype
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.csrel_options import BATCH, PRESETS, CSReLOptions
from protocore.methods.csrel_stream import CSReLStream
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.losses import cross_entropy, sum_of_means
from protocore.methods.parts.selection import greedy, quota


class CSReL(Coreset):
    """L = CE(batch) + α · R(memory); a task keeps what its coreset does not explain but the whole task can teach."""

    name = "csrel"
    paper = "Tong et al. 2025, Coreset Selection via Reducible Loss in Continual Learning"
    keeps = "exemplars, their reference losses and tasks (online: their logits)"
    Options = CSReLOptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = PRESETS
    checks = "oracles of the paper's formulas; digits end to end"

    options: CSReLOptions

    def __init__(self, tools: Tools, options: CSReLOptions) -> None:
        super().__init__(tools, options)
        self.balanced = options.balance == "on" or (options.balance == "auto" and tools.settings.spc is not None)
        self.sizes = torch.zeros(0, 1, dtype=torch.int64)  # of the pools: a row each task, balanced a column each class
        if self.balanced:
            self.keep("sizes", "pools/sizes", without=lambda sizes, label: without_row(sizes.T, label).T.contiguous())
        else:
            self.keep("sizes", "pools/sizes", mixed="how many pictures each task had, whatever their class")

    @classmethod
    def form_for(cls, settings: Settings) -> type[Method]:
        return CSReLStream if settings.online else cls

    def loss(self, batch: Batch) -> Tensor:
        smoothing, full = self.tools.settings.label_smoothing, self.options.replay == "full"
        drawn = self.draw(len(self.store) if full else None) if self.options.alpha else None
        if drawn is None:
            return cross_entropy(self.fair(self.net(batch.x), batch.raw), batch.labels, label_smoothing=smoothing)
        logits, now = self.net(torch.cat([batch.x, self.tools.view(drawn.images)])), len(batch.labels)
        losses = F.cross_entropy(logits[now:], drawn.labels.to(logits.device), reduction="none",
                                 label_smoothing=smoothing)
        replayed = sum_of_means(losses, drawn.columns["task"].to(losses.device).long()) if full else losses.mean()
        return (cross_entropy(self.fair(logits[:now], batch.raw), batch.labels, label_smoothing=smoothing)
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
        return rows[self.grown(pool, rows, self.store.column("reference")[slots], kinds, room,
                               f"selecting anew, task {task + 1} of {len(self.sizes)}")]

    def grown(self, pool: Pool, rows: Tensor, reference: Tensor, kinds: Tensor, room: Tensor, what: str) -> Tensor:
        """`greedy` over these candidates, every θ_S an untrained network trained for a few steps."""
        if bool((kinds[rows].bincount(minlength=len(room)) <= room).all()):
            return torch.arange(len(rows))  # picking all of them changes nothing
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
        return fit_passes(net, lambda at: self.view(pool, rows[at]), pool.labels[rows].to(self.tools.device),
                          passes=o.ref_epochs, lr=o.ref_lr, batch=BATCH,
                          tell=lambda done: self.tools.progress("training a reference model", done, o.ref_epochs))

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
        """Slots of each kind: a share of every class seen, or all of them."""
        if self.balanced:
            return super().room(task)
        at = self.horizon(task)
        return torch.tensor([self.tools.allowance.total(len(at.classes), lambda rows: self.bytes_at(at, rows))])

    def planned(self, at: Horizon, rows: int) -> Plan:
        tasks, kinds = max(at.tasks, len(self.sizes) + 1), at.top + 1 if self.balanced else 1
        most = max([at.of_class if self.balanced else at.images, *self.sizes.flatten().tolist()])
        columns: Plan = {"reference": (torch.float32, ()), "task": (smallest_dtype(tasks - 1), ())}
        own: Plan = {"pools/sizes": (smallest_dtype(most), (tasks, kinds))}
        return super().planned(at, rows) | self.store.plan(at, rows, **columns) | own
