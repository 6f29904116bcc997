"""Experience replay: current and stored images in one batch (Chaudhry et al. 2019; reservoir: Vitter 1985)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import option
from protocore.methods.base import Batch
from protocore.methods.losses import masked_cross_entropy
from protocore.methods.replay import ReplayMethod, ReplayOptions


@dataclass(frozen=True)
class EROptions(ReplayOptions):
    """How the memory is filled and drawn from, and what competes."""

    draw: str = option("uniform", "how a replay batch is drawn: uniform over exemplars, or balanced over classes",
                       choices=("uniform", "balanced"))
    current: str = option("all", "classes that compete in the loss of current data: all seen, or only those of "
                          "the current data (masked)", choices=("all", "masked"))


class ER(ReplayMethod):
    """One forward pass over current and replayed images; the mean cross entropy of both."""

    name = "er"
    paper = "Chaudhry et al. 2019, On Tiny Episodic Memories"
    checks = "reservoir statistics; published S-MNIST figures; digits end to end"
    Options = EROptions

    options: EROptions

    def loss(self, batch: Batch) -> Tensor:
        drawn = self.memory.draw(self.tools.settings.replay_batch, balanced=self.options.draw == "balanced")
        x, labels, smoothing = batch.x, batch.labels, self.tools.settings.label_smoothing
        if drawn is not None:
            x = torch.cat([x, self.tools.view(drawn.images)])
            labels = torch.cat([labels, drawn.labels.to(labels.device)])
        logits, now = self.net(x), len(batch.labels)
        if self.options.current == "all":
            return F.cross_entropy(logits, labels, label_smoothing=smoothing)
        classes = torch.tensor(self.current, device=labels.device)
        loss = masked_cross_entropy(logits[:now], labels[:now], classes, label_smoothing=smoothing)
        if drawn is not None:
            loss = loss + F.cross_entropy(logits[now:], labels[now:], label_smoothing=smoothing)
        return loss
