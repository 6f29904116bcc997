"""Rainbow Memory: exemplars from robust to fragile, by votes over perturbed copies (Bang et al., CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.backbones.head import GrowingHead
from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.methods.base import Batch, Tools
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.losses import cross_entropy
from protocore.methods.parts.perturbations import cutmix, perturbed


def partners(count: int, raw: Tensor | None) -> Tensor:
    """Whom each row is mixed with: anyone, but what looks raw stays among itself, where all labels are current."""
    order = torch.randperm(count)
    if raw is None:
        return order
    apart = torch.zeros(count, dtype=torch.bool)
    apart[: len(raw)] = raw
    partner = torch.empty_like(order)
    partner[apart], partner[~apart] = order[apart[order]], order[~apart[order]]
    return partner


@dataclass(frozen=True)
class RMOptions(Options):
    """How the memory spans the range of uncertainty, and how training differs from plain replay."""

    positions: str = option("even", "which of a class's n candidates, sorted by uncertainty, are its q exemplars: "
                            "numbers floor(j·n/q), or numbers j·floor(n/q) as in the released code (stride)",
                            choices=("even", "stride"))
    cutmix: float = option(0.5, "probability of CutMix in a step", least=0, most=1)
    fresh_head: bool = option(False, "begin each task with an untrained classifier, as published (online: each window "
                              "that brings a new class)")


def uncertainty(votes: Tensor) -> Tensor:
    """u = 1 - max_c S_c / A, of the classes (N, A) that A copies of each image are taken for."""
    agreeing = (votes[:, :, None] == votes[:, None, :]).sum(2)  # S of the class that each copy voted for
    return 1 - agreeing.amax(1) / votes.shape[1]


def spread(count: int, quota: int, positions: str = "even") -> Tensor:
    """Places of min(quota, count) of `count` sorted candidates, from the first on evenly through the range."""
    quota = min(quota, count)
    j = torch.arange(quota)
    return j * (count // max(quota, 1)) if positions == "stride" else j * count // max(quota, 1)


def diverse(labels: Tensor, u: Tensor, quota: int, positions: str = "even") -> Tensor:
    """Rows of up to `quota` candidates of each class, spread over its uncertainties; ties are broken at random."""
    by_chance = torch.randperm(len(labels))
    order = by_chance[u[by_chance].argsort(stable=True)]
    chosen = [order[:0]]
    for label in labels.unique():
        of_class = order[labels[order] == label]
        chosen.append(of_class[spread(len(of_class), quota, positions)])
    return torch.cat(chosen)


def filled(chosen: Tensor, candidates: int, total: int) -> Tensor:
    """The chosen rows and, at random, as many others of all candidates as `total` leaves room for."""
    free = torch.ones(candidates, dtype=torch.bool)
    free[chosen] = False
    others = free.nonzero().flatten()
    return torch.cat([chosen, others[torch.randperm(len(others))[: max(total - len(chosen), 0)]]])


class RainbowMemory(Coreset):
    """Replay with CutMix; after each task all candidates are judged anew. Online, --epochs passes over them follow."""

    name = "rm"
    paper = "Bang et al. 2021, Rainbow Memory: Continual Learning with a Memory of Diverse Samples"
    checks = "votes, positions, quotas, schedule and CutMix against the formulas; digits end to end"
    Options = RMOptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "restarts",
                  "epochs": 256, "batch": 8, "replay_batch": 8, "fresh_head": True},
        "paper cifar100": {"lr": 0.03},
        "paper imagenet": {"schedule": "steps:30,60,80,90", "epochs": 100, "batch": 128, "replay_batch": 128},
        # These passes over the memory come once a task there: so often they come with windows of a task's size.
        "paper online": {"epochs": 256, "online_window": 5000},
    }

    options: RMOptions

    def __init__(self, tools: Tools, options: RMOptions) -> None:
        super().__init__(tools, options)
        self.rehearsing = False

    def open_task(self, task: Task) -> None:
        self.rehearsing = False

    def begin_task(self, task: Task) -> None:
        known = set(self.store.classes.tolist())  # empty in the first task, whose head is untrained anyway
        if self.options.fresh_head and known and not (self.tools.settings.online and known.issuperset(task.classes)):
            head = self.net.head
            untrained = GrowingHead(head.dim, head.kind, xavier=head.xavier)
            untrained.grow(head.classes)
            head.load_state_dict(untrained.state_dict())

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy of current and replayed images; with CutMix λ·CE(y) + (1 - λ)·CE(y of the partner)."""
        drawn = None if self.rehearsing else self.draw()
        x, labels, smoothing = batch.x, batch.labels, self.tools.settings.label_smoothing
        if drawn is not None:
            x = torch.cat([x, self.tools.view(drawn.images)])
            labels = torch.cat([labels, drawn.labels.to(labels.device)])
        if float(torch.rand(())) >= self.options.cutmix:
            return cross_entropy(self.fair(self.net(x), batch.raw), labels, label_smoothing=smoothing)
        partner = partners(len(x), batch.raw).to(x.device)
        centre = [int(torch.randint(length, ())) for length in x.shape[2:]]
        mixed, own = cutmix(x, partner, float(torch.rand(())), *centre)  # Beta(1, 1) is uniform
        logits = self.fair(self.net(mixed), batch.raw)
        return (own * cross_entropy(logits, labels, label_smoothing=smoothing)
                + (1 - own) * cross_entropy(logits, labels[partner], label_smoothing=smoothing))

    def end_task(self, task: Task) -> None:
        with self.tools.timed("select"):
            pool = Pool(task, self.store, self.tools, torch.arange(len(self.store)))
            total = self.total(task)
            quota = total // len(self.seen)
            # Where there is no memory yet, all count as equally certain: a random sample of each class.
            u = self.votes(pool, quota) if len(self.store) else torch.zeros(len(pool))
            chosen = diverse(pool.labels, u, quota, self.options.positions)
            if self.tools.settings.spc is None:
                chosen = filled(chosen, len(pool), total)
            # In random order, so that `settle` drops easy and hard ones alike.
            self.replace(pool, chosen[torch.randperm(len(chosen))], pool.slots[:0], {})
            self.settle()

    @torch.no_grad()
    def votes(self, pool: Pool, quota: int) -> Tensor:
        """The uncertainty of all candidates whose class has more than its quota of them (the others stay anyway)."""
        u, seen = torch.zeros(len(pool)), torch.tensor(self.seen, device=self.tools.device)
        rows = (pool.labels.bincount()[pool.labels] > quota).nonzero().flatten()
        done = 0
        with self.evaluating():
            for part, x, _ in pool.batches(rows=rows) if len(rows) else ():
                copies = [self.net(self.tools.on_device(copy))[:, seen].argmax(1) for copy in perturbed(x)]
                u[part] = uncertainty(torch.stack(copies, dim=1)).cpu()
                done += len(part)
                self.tools.progress("voting", done, len(rows))
        return u

    def total(self, task: Task) -> int:
        """Exemplars in all that the allowance has room for."""
        at = self.horizon(task)
        return self.tools.allowance.total(len(self.seen), lambda rows: self.bytes_at(at, rows))

    def rehearse(self) -> Task | None:
        """Online, the memory alone is learned after each update of it."""
        if not self.tools.settings.online or len(self.store) < 2:
            return None
        self.rehearsing = True
        return Task.from_arrays(self.store.images.clone().numpy(), self.store.labels.clone().numpy())
