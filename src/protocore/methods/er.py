"""Experience replay: current and stored images in one batch (Chaudhry et al. 2019; reservoir: Vitter 1985)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import option
from protocore.methods.base import Batch
from protocore.methods.parts.losses import cross_entropy, masked_cross_entropy
from protocore.methods.parts.replay import ReplayMethod, ReplayOptions


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
    presets: ClassVar = {  # mammoth's; its 50 and 100 epochs are those of the benchmarks
        "paper": {"optimizer": "sgd", "lr": 0.1, "batch": 32, "replay_batch": 32},
        "paper cifar100": {"schedule": "steps:35,45"},
        # C-Flat around replay, its authors' recipe of all tasks but the first. They shuffle 2,000 exemplars among 5,000
        # new images: about one replayed image to two new ones.
        "paper cflat": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 2e-4, "epochs": 170,
                        "schedule": "steps:80,120,150", "batch": 128, "replay_batch": 64},
        "paper online": {"lr": 0.06, "schedule": "constant", "batch": 10, "replay_batch": 10},  # ocl_survey's
    }

    options: EROptions

    def loss(self, batch: Batch) -> Tensor:
        drawn = self.memory.draw(self.tools.settings.replay_batch, balanced=self.options.draw == "balanced")
        x, labels, smoothing = batch.x, batch.labels, self.tools.settings.label_smoothing
        if drawn is not None:
            x = torch.cat([x, self.tools.view(drawn.images)])
            labels = torch.cat([labels, drawn.labels.to(labels.device)])
        logits, now = self.net(x), len(batch.labels)
        if self.options.current == "all":
            return cross_entropy(self.fair(logits, batch.raw), labels, label_smoothing=smoothing)
        classes = torch.tensor(self.current, device=labels.device)
        loss = masked_cross_entropy(logits[:now], labels[:now], classes, label_smoothing=smoothing)
        if drawn is not None:
            loss = loss + cross_entropy(logits[now:], labels[now:], label_smoothing=smoothing)
        return loss
