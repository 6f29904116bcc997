"""Dark experience replay: the logits an image had when it came are replayed with it (Buzzega et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import option
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.memory.plan import Horizon, Plan
from protocore.memory.prototypes import DTYPES
from protocore.memory.store import Drawn
from protocore.methods.base import Batch, Tools
from protocore.methods.parts.losses import cross_entropy
from protocore.methods.parts.replay import ReplayMethod, ReplayOptions


@dataclass(frozen=True)
class DEROptions(ReplayOptions):
    """The weight of the stored logits, and how the memory is filled."""

    alpha: float = option(0.3, "weight α of the distance to the stored logits", least=0)
    distance: str = option("mean", "distance of logits: the mean over batch and classes (tuned values of α belong to "
                           "it), or the squared norm as printed (sum over classes)", choices=("mean", "norm"))
    logit_dtype: str = option("float16", "how logits are stored", choices=("float16", "float32"))
    offer: str = option("every", "when a sample is offered to the reservoir: in every pass over the task (copies of "
                        "one can fill several slots), or in the first only, with the logits of a network that has "
                        "hardly seen the task", choices=("every", "first"))
    unseen: str = option("fill", "outputs that did not exist when an exemplar came (not with --full-head): filled "
                         "with what they give for it when they are added, or left out of the distance (mask)",
                         choices=("fill", "mask"))


def padded(stored: Tensor, outputs: int) -> Tensor:
    """Rows of this many values; what was not stored is NaN."""
    return F.pad(stored, (0, outputs - stored.shape[1]), value=float("nan"))


def logit_distance(logits: Tensor, stored: Tensor, distance: str = "mean") -> Tensor:
    """MSE(z(x'), z') over the outputs that existed when z' was stored: the others are NaN or beyond its end."""
    stored = padded(stored.to(logits), logits.shape[1])
    known = ~stored.isnan()
    # The unknown ones are compared with themselves: zero, and zero gradient.
    squares = (logits - torch.where(known, stored, logits.detach())).square().sum()
    return squares / (known.sum().clamp(min=1) if distance == "mean" else len(logits))


class DER(ReplayMethod):
    """L = CE(z(x), y) + α · MSE(z(x'), z') with x', z' from the memory."""

    name = "der"
    paper = "Buzzega et al. 2020, Dark Experience for General Continual Learning"
    keeps = "exemplars, logits"
    Options = DEROptions
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.03, "batch": 32, "replay_batch": 32, "full_head": True},
        "paper cifar100": {"schedule": "steps:35,45"},
        "paper tinyimagenet": {"alpha": 0.1},
    }
    checks = "oracles of the paper's formulas; published S-MNIST figures; digits end to end"

    def __init__(self, tools: Tools, options: DEROptions) -> None:
        super().__init__(tools, options)
        self.dtype = DTYPES[options.logit_dtype]
        self.memory.store.per_class = frozenset({"logits"})

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        store = self.memory.store
        if self.options.unseen == "fill" and len(store) and store.column("logits").shape[1] < self.net.classes:
            self.fill()

    def planned(self, at: Horizon, rows: int) -> Plan:
        logits = self.dtype, (max(self.net.classes, at.top + 1),)
        return super().planned(at, rows) | self.memory.plan(at, rows, logits=logits)

    @torch.no_grad()
    def fill(self) -> None:
        """The logits of new outputs, untrained as they are, for what is stored: what a head of all classes had."""
        store, show = self.memory.store, self.tools.on_device
        with self.evaluating():
            logits = torch.cat([self.net(show(to_float(part))).cpu() for part in store.images.split(256)])
        store.complete("logits", self.rounded(logits))

    def rounded(self, logits: Tensor) -> Tensor:
        """Logits as they are stored."""
        largest = torch.finfo(self.dtype).max
        return logits.float().clamp(-largest, largest).to(self.dtype).cpu()

    def loss(self, batch: Batch) -> Tensor:
        logits = self.net(batch.x)
        batch.notes["logits"] = logits.detach()  # z of the view that is learned, before the step
        loss = cross_entropy(self.fair(logits, batch.raw), batch.labels,
                             label_smoothing=self.tools.settings.label_smoothing)
        if drawn := self.drawn(self.options.alpha):
            dark = logit_distance(self.replayed(drawn), drawn.columns["logits"], self.options.distance)
            loss = loss + self.options.alpha * dark
        return loss

    def drawn(self, weight: float) -> Drawn | None:
        """A draw of its own for each term; None while the memory is empty, or where the term has no weight."""
        return self.memory.draw(self.tools.settings.replay_batch) if weight else None

    def replayed(self, drawn: Drawn) -> Tensor:
        """Logits of a fresh view, in a forward pass of their own: batch statistics are not mixed."""
        return self.net(self.tools.view(drawn.images))

    def after_step(self, batch: Batch) -> None:
        if batch.first_pass or self.options.offer == "every":
            self.memory.offer(batch, logits=self.rounded(batch.notes["logits"]))
