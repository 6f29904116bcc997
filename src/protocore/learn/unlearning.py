"""A pass after a class was forgotten: what the network learned fades, and exemplars of the others bring it back.

Steps that push the network away from pictures of the class do worse: it comes to say less of them than of any other
picture of that class, and so gives them away (benchmarks/forgetting.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.data.augment import to_float
from protocore.methods.base import Batch, Method

LEFT = 0.4  # part of each weight that stays: with 0.7 the pictures of the class could still be told as well as before


class Unlearning(Method):
    """θ ← 0.4·θ + 0.6·θ', θ' an untrained network; then L = CE(softmax of the network as it was, z) on the exemplars.

    (The first as Ash and Adams 2020 shrink and perturb a network that is to learn anew.) The head stays. What the
    network said of the exemplars is taken down first, so that no second network is needed in the steps.
    """

    name = "unlearning"

    def __init__(self, method: Method, others: Tensor) -> None:
        super().__init__(method.tools, None)
        self.seen, show = method.seen, self.tools.on_device
        with self.evaluating(), torch.no_grad():
            self.said = torch.cat([self.net(show(to_float(part))).float().softmax(1) for part in others.split(256)])
            untrained = dict(self.tools.fresh(self.net.classes).backbone.named_parameters())
            for name, parameter in self.net.backbone.named_parameters():
                if parameter.requires_grad:
                    parameter.lerp_(untrained[name], 1 - LEFT)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.x), self.said[batch.rows.to(self.said.device)])
