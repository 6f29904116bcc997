"""Fine-tuning: plain training on each task, nothing kept. The lower bound."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from protocore.methods.base import Batch, Method


class Finetune(Method):
    """Cross entropy on the current data over all classes seen so far."""

    name = "finetune"
    checks = "published S-MNIST figure; digits end to end"
    paper = "lower bound"
    presets: ClassVar = {  # mammoth's; its 50 and 100 epochs are those of the benchmarks
        "paper": {"optimizer": "sgd", "lr": 0.03, "batch": 32},
        "paper cifar10": {"lr": 0.1},
        "paper cifar100": {"schedule": "steps:35,45"},
    }

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.x), batch.labels,
                               label_smoothing=self.tools.settings.label_smoothing)
