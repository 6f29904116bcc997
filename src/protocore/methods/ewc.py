"""Elastic weight consolidation, online: one Fisher matrix and one anchor for all tasks (Kirkpatrick et al. 2017;
Schwarz et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from protocore.config import Options, option
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.memory.kept import without_row
from protocore.memory.plan import Horizon, Plan
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.parts.losses import masked_cross_entropy
from protocore.ranks.split import split_sum

Named = dict[str, Tensor]
FLOATS_AT_ONCE = 2**25  # of per-sample gradients: what bounds the memory of an estimate


@dataclass(frozen=True)
class EWCOptions(Options):
    """The penalty, and what is taken for the Fisher matrix."""

    strength: float = option(10.0, "weight λ of the penalty λ·Σ F(θ-θ*)² (it has no ½: halve a λ of the other form)",
                             least=0)
    fisher: str = option("weighted", "diagonal of the Fisher matrix: squared gradients of the true label's log "
                         "probability, weighted with that probability (weighted) or plain (empirical), or the "
                         "expectation over all labels (true: a backward pass for each class)",
                         choices=("weighted", "empirical", "true"))
    merge: str = option("sum", "F of all tasks: γF + F_new (sum), or a mean by numbers of classes, old and new (share)",
                        choices=("sum", "share"))
    gamma: float = option(1.0, "γ: what is left of the old F in a sum", least=0)
    current: str = option("seen", "classes that compete in the cross entropy: all seen, or those of the task (new)",
                          choices=("new", "seen"))


def diagonal_fisher(net: nn.Module, x: Tensor, labels: Tensor, kind: str) -> Named:
    """Sum over the samples of w(y)·(∂ log p(y|x)/∂θ)², by parameter; w is p(y|x) or 1, y the label or every class."""
    parameters = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}

    def log_probability(theta: Named, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        value = F.log_softmax(functional_call(net, theta, (image[None],))[0], dim=0).gather(0, label[None])[0]
        return value, value

    per_sample = vmap(grad(log_probability, has_aux=True), in_dims=(None, 0, 0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    at_once = max(FLOATS_AT_ONCE // sum(p.numel() for p in parameters.values()), 1)
    for images, own in zip(x.split(at_once), labels.split(at_once), strict=True):
        classes = range(net(images[:1]).shape[1]) if kind == "true" else [None]
        for label in classes:
            y = own if label is None else torch.full_like(own, label)
            gradients, log_p = per_sample(parameters, images, y)
            weight = torch.ones_like(log_p) if kind == "empirical" else log_p.exp()
            for name, g in gradients.items():
                total[name] += torch.einsum("n...,n->...", g.square(), weight)
    return total


def penalty(parameters: Mapping[str, Tensor], fisher: Named, anchor: Named) -> Tensor:
    """Σ F(θ-θ*)², over the rows that existed when F was estimated."""
    terms = [(f * (_rows(parameters[name], f) - anchor[name]).square()).sum() for name, f in fisher.items()]
    return torch.stack(terms).sum()


def merged(old: Named, new: Named, keep: float, take: float) -> Named:
    """keep·F + take·F_new where there was an F, F_new in the rows that are new."""
    result = {name: f.clone() for name, f in new.items()}
    for name, f in old.items():
        rows = _rows(result[name], f)
        rows.mul_(take).add_(f, alpha=keep)
    return result


def without_head_row(values: Named, label: int) -> Named:
    """The same without the class's row of the head."""
    return {name: without_row(v, label) if name.startswith("head.") and v.ndim else v for name, v in values.items()}


def _rows(larger: Tensor, of: Tensor) -> Tensor:
    """The part of a parameter that an older, shorter one had: heads grow at the end."""
    return larger[: len(of)] if of.ndim else larger


class EWC(Method):
    """L = CE(z, y) + λ Σ F(θ-θ*)²; after each task F ← γF + F_new and θ* ← θ."""

    name = "ewc"
    paper = "Kirkpatrick et al. 2017, Overcoming catastrophic forgetting; online: Schwarz et al. 2018"
    keeps = "a weight and a former value for each parameter"
    Options = EWCOptions
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.03, "batch": 32},
        "paper tinyimagenet": {"strength": 25.0},
    }
    checks = "closed forms of the Fisher matrix; loops over samples; digits end to end (task-incremental)"

    options: EWCOptions

    def __init__(self, tools: Tools, options: EWCOptions) -> None:
        super().__init__(tools, options)
        self.fisher: Named = {}
        self.anchor: Named = {}
        self.keep("fisher", kind="parameters", without=without_head_row,
                  mixed="how much each weight of the network mattered, summed over the tasks; rows of the head apart")
        self.keep("anchor", kind="parameters", without=without_head_row,
                  mixed="each weight of the network as it was after the last task; rows of the head apart")

    def planned(self, at: Horizon, rows: int) -> Plan:
        """Two values for each parameter; those of the head have a row for each class, but for a cosine head's scale."""
        outputs = max(self.net.classes if self.tools.settings.full_head else 0, at.top + 1)
        shapes = {name: (outputs, *p.shape[1:]) if name.startswith("head.") and p.ndim else tuple(p.shape)
                  for name, p in self._parameters().items()}
        return {f"{part}/{name}": (torch.float32, shape) for part in ("fisher", "anchor")
                for name, shape in shapes.items()}

    def loss(self, batch: Batch) -> Tensor:
        rivals = torch.tensor(self.current if self.options.current == "new" else self.seen, device=batch.labels.device)
        loss = masked_cross_entropy(self.net(batch.x), batch.labels, rivals,
                                    label_smoothing=self.tools.settings.label_smoothing)
        if self.fisher and self.options.strength:
            loss = loss + self.options.strength * penalty(self._parameters(), self.fisher, self.anchor)
        return loss

    def end_task(self, task: Task) -> None:
        with self.tools.timed("fisher"), self.evaluating():  # one sample has no batch statistics of its own
            total: Named = {}
            for rows in torch.arange(len(task)).split(256):
                total = merged(total, split_sum(lambda mine: self._fisher(task, mine), rows), 1.0, 1.0)
                self.tools.progress("estimating the Fisher matrix", int(rows[-1]) + 1, len(task))
        share = len(self.known) / max(len(self.seen), 1)
        keep, take = (self.options.gamma, 1.0) if self.options.merge == "sum" else (share, 1 - share)
        # Contiguous, as they come back from a checkpoint: a sum over another layout would round otherwise.
        mean = {name: (f / len(task)).contiguous() for name, f in total.items()}
        self.fisher = merged(self.fisher, mean, keep, take)
        self.anchor = {name: p.detach().clone().contiguous() for name, p in self._parameters().items()}

    def _fisher(self, task: Task, rows: Tensor) -> Named:
        x, labels = self.tools.on_device(to_float(task.take(rows))), task.labels_of(rows)
        return diagonal_fisher(self.net, x, labels.to(self.tools.device), self.options.fisher)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}
