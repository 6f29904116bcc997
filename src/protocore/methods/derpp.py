"""DER++: dark experience replay, and the labels of a second draw beside it (Buzzega et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from protocore.config import option
from protocore.methods.base import Batch
from protocore.methods.der import DER, DEROptions


@dataclass(frozen=True)
class DERppOptions(DEROptions):
    """DER's, and the weight of the stored labels."""

    alpha: float = option(0.1, "weight α of the distance to the stored logits", least=0)
    beta: float = option(0.5, "weight β of the cross entropy of stored labels", least=0)


class DERpp(DER):
    """L = CE(z(x), y) + α · MSE(z(x'), z') + β · CE(z(x''), y''), the two draws independent."""

    name = "derpp"
    Options = DERppOptions
    presets: ClassVar = {"paper": DER.presets["paper"], "paper cifar100": DER.presets["paper cifar100"]}

    options: DERppOptions

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        if drawn := self.drawn(self.options.beta):
            hard = F.cross_entropy(self.replayed(drawn), drawn.labels.to(batch.labels),
                                   label_smoothing=self.tools.settings.label_smoothing)
            loss = loss + self.options.beta * hard
        return loss
