"""The one training loop of the project."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from protocore.config import Settings
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.cflat import flat_step
from protocore.learn.device import Machine, mix
from protocore.learn.muon import Muon
from protocore.methods.base import Batch, Method
from protocore.ranks.split import level


@dataclass(frozen=True)
class Plan:
    """How many steps a task takes and where each batch comes from; nothing in it depends on past steps."""

    samples: int
    batch: int
    steps: int
    seed: tuple[int, int]  # the run's seed and the number of the task, 0 for the first
    shuffled: bool = True

    @property
    def steps_per_epoch(self) -> int:
        return max(math.ceil(self.samples / self.batch), 1)

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    def size(self, step: int) -> int:
        """Samples in the batch of a step: the last one of an epoch may be smaller."""
        return min(self.batch, self.samples - step % self.steps_per_epoch * self.batch)

    def rows(self, start: int = 0) -> Iterator[tuple[int, Tensor]]:
        """(step, rows of its batch) from step `start` on: the same whether or not the run was interrupted."""
        epoch, order = -1, torch.arange(self.samples)
        for step in range(start, self.steps):
            at = step % self.steps_per_epoch
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                if self.shuffled:
                    generator = torch.Generator().manual_seed(mix(*self.seed, epoch))
                    order = torch.randperm(self.samples, generator=generator)
            yield step, order[at * self.batch : (at + 1) * self.batch]


def steps_for(samples: int, settings: Settings) -> int:
    """Training steps of a task of this size: whole epochs, more of them where they would be too few steps."""
    per_epoch = max(math.ceil(samples / settings.batch), 1)
    return settings.steps or max(settings.epochs, math.ceil(settings.least_steps / per_epoch)) * per_epoch


def plan_for(task: Task, settings: Settings, number: int) -> Plan:
    return Plan(len(task), settings.batch, steps_for(len(task), settings), (settings.seed, number))


def make_optimizer(net: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "muon":
        if settings.weight_decay:
            raise UserError(f"--weight-decay {settings.weight_decay:g} has no meaning with --optimizer muon, which "
                            "keeps the length of weights; leave it out")
        return Muon([p for p in net.parameters() if p.requires_grad], settings.lr)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    extra = {"momentum": settings.momentum} if settings.optimizer == "sgd" else {}
    parameters = [p for p in net.parameters() if p.requires_grad]
    return kinds[settings.optimizer](parameters, lr=settings.lr, weight_decay=settings.weight_decay, **extra)


def adopt(optimizer: torch.optim.Optimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    """Let the optimiser go on with a parameter that has grown: old rows keep their state, new ones start at 0."""
    for group in optimizer.param_groups:
        group["params"] = [new if p is old else p for p in group["params"]]
    state = optimizer.state.pop(old, None)
    if state is not None:
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == old.shape:
                grown = torch.zeros_like(new)
                grown[: len(old)] = value
                state[key] = grown
        optimizer.state[new] = state


def grow_head(net: nn.Module, classes: int, optimizer: torch.optim.Optimizer | None) -> None:
    """Room for this many classes; an optimiser that is at work keeps its state."""
    before = dict(net.named_parameters())
    if net.grow(classes) and optimizer is not None:  # type: ignore[operator]
        for name, parameter in net.named_parameters():
            if before[name] is not parameter:
                adopt(optimizer, before[name], parameter)


def learning_rate(settings: Settings, step: int, plan: Plan) -> float:
    """The schedule as a pure function of the step, so that a resumed run needs no state for it."""
    kind, _, milestones = settings.schedule.partition(":")
    if kind == "constant":
        return settings.lr
    if kind == "restarts":
        return settings.lr * warm_restarts(step // plan.steps_per_epoch)
    if kind == "triangle":
        return settings.lr * triangle(step / plan.steps)
    if kind == "cosine":
        return settings.lr * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
    try:
        after = [float(m) for m in milestones.split(",")]
    except ValueError:
        after = []
    if kind != "steps" or not after:
        raise UserError(f"--schedule {settings.schedule!r}: give constant, cosine, triangle, restarts or steps:35,45")
    return settings.lr * 0.1 ** sum(step >= m * plan.steps_per_epoch for m in after)


def triangle(at: float) -> float:
    """The factor at this share of the steps: up to 1 within the first fifth, then down to 0."""
    return at / 0.2 if at < 0.2 else (1 - at) / 0.8


def warm_restarts(epoch: int) -> float:
    """The factor of an epoch: 0.1, 1, then cosines to 0.01 over 1, 2, 4... epochs (the schedule of Rainbow Memory)."""
    if epoch < 2:
        return (0.1, 1.0)[epoch]
    length, at = 1, epoch - 1  # the first period of one epoch begins with epoch 1
    while at >= length:
        at, length = at - length, 2 * length
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * at / length))


def fit(method: Method, task: Task, plan: Plan, optimizer: torch.optim.Optimizer, machine: Machine, *,
        start: int = 0, after_step: Callable[[int, Tensor], None] | None = None) -> None:
    """Train the method's network on a task from step `start` to the end of the plan."""
    settings, net = method.tools.settings, method.net
    net.train()
    flat = settings.cflat and (settings.cflat_first or first_is_over(method, plan))
    trained = nn.ModuleList([net] if method.extra is None else [net, method.extra])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    summed = set(net.backbone.parameters())
    in_company = any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    if in_company and plan.samples < 2:
        raise UserError("batch normalisation needs two images or more in a task; use --norm group")
    for step, rows in plan.rows(start):
        if in_company and len(rows) == 1:  # it cannot normalise a lone last sample: a neighbour joins in
            rows = torch.cat([rows, (rows + 1) % plan.samples])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, plan) * group.get("share", 1.0)
        images, labels = task.take(rows), task.labels_of(rows)
        shown, raw = _shown(method.tools.space, task, rows, images)
        batch = Batch(images, method.tools.view(shown), labels.to(machine.device), rows,
                      first_pass=step < plan.steps_per_epoch, raw=raw)
        optimizer.zero_grad(set_to_none=True)
        if flat:
            loss = flat_step(lambda batch=batch: _loss(method, machine, replace(batch, notes={})),
                             lambda batch=batch: _loss(method, machine, batch), trained, parameters,
                             settings.cflat_rho, settings.cflat_lambda)
        else:
            loss = _loss(method, machine, batch)
            loss.backward()
        level(p.grad for p in parameters if p not in summed)  # several processes: those of the backbone are sums
        optimizer.step()
        method.after_step(batch)
        if after_step:
            after_step(step, loss.detach())


def first_is_over(method: Method, plan: Plan) -> bool:
    """Whether this is training of the second task or a later one.

    Online, where nobody tells tasks apart, the first one lasts until a class comes that the first window had not. In a
    blurry stream, which may have all of them in it, it is the first window.
    """
    settings = method.tools.settings
    if settings.online and not settings.blurry:
        return len(method.seen) > len(method.first_classes)
    return plan.seed[1] not in (0, -1)  # -1: the second phase of the first window


def _loss(method: Method, machine: Machine, batch: Batch) -> Tensor:
    with machine.autocast():
        return method.loss(batch)


def _shown(space: str, task: Task, rows: Tensor, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """What the network sees of current images, and which of them look raw where exemplars do not."""
    if space == "raw":
        return images, None
    coded = task.take_coded(rows)
    if space == "codec":
        return coded, None
    raw = torch.rand(len(rows)) >= 0.5
    return torch.where(raw.view(-1, 1, 1, 1), images, coded), raw if space == "mix" else None
