"""Learning without Forgetting: the network before the task is its teacher on the task's own images (Li, Hoiem 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.parts.losses import distillation, masked_cross_entropy
from protocore.methods.parts.previous import Previous


@dataclass(frozen=True)
class LwFOptions(Options):
    """The two terms of the loss."""

    weight: float = option(3.0, "weight λ of the distillation (3 in PyCIL, 10 in LDC and ADC; with --current seen 0.5 "
                           "to 3)", least=0)
    temperature: float = option(2.0, "temperature τ of the distillation", above=0)
    current: str = option("new", "classes that compete in the cross entropy: those of the task (new), or all seen",
                          choices=("new", "seen"))


class LwF(Method):
    """L = CE(z, y) + λ · H(softmax(z_old/τ), softmax(z/τ)), the second term over the classes known before the task."""

    name = "lwf"
    paper = "Li, Hoiem 2016, Learning without Forgetting"
    Options = LwFOptions
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 2e-4, "epochs": 250,
                  "schedule": "steps:60,120,180,220", "batch": 128},
    }
    checks = "oracles of the paper's formulas; digits end to end"

    def __init__(self, tools: Tools, options: LwFOptions) -> None:
        super().__init__(tools, options)
        self.previous = self.hold(Previous(self.net))  # it has learned the classes in `known`

    def begin_task(self, task: Task) -> None:
        if self.known:
            self.previous.renew()

    def loss(self, batch: Batch) -> Tensor:
        logits = self.net(batch.x)
        loss = self.task_loss(logits, batch.labels)
        if self.known and self.options.weight:
            teacher = self.previous.logits(batch.x)[:, self.known]
            loss = loss + self.options.weight * distillation(logits[:, self.known], teacher, self.options.temperature)
        return loss

    def task_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of current data over the classes that compete."""
        rivals = torch.tensor(self.current if self.options.current == "new" else self.seen, device=labels.device)
        return masked_cross_entropy(logits, labels, rivals, label_smoothing=self.tools.settings.label_smoothing)

    def end_task(self, task: Task) -> None:
        self.previous.drop()
