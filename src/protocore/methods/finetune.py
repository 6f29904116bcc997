"""Fine-tuning: plain training on each task, nothing kept. The lower bound."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from protocore.methods.base import Batch, Method


class Finetune(Method):
    """Cross entropy on the current data over all classes seen so far."""

    name = "finetune"
    checks = "published S-MNIST figure; digits end to end"
    paper = "lower bound"

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.x), batch.labels,
                               label_smoothing=self.tools.settings.label_smoothing)
