"""Experience replay: current and stored images in one batch (Chaudhry et al. 2019; reservoir: Vitter 1985)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import option
from protocore.data.stream import Task
from protocore.memory.store import ExemplarStore
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.losses import masked_cross_entropy
from protocore.methods.replay import Replay


@dataclass(frozen=True)
class EROptions:
    """How the memory is filled and drawn from."""

    fill: str = option("auto", "what is kept: a reservoir over the stream, or one in each class (auto: by class "
                       "with --spc, else over the stream)", choices=("auto", "stream", "class"))
    draw: str = option("uniform", "how a replay batch is drawn: uniform over exemplars, or balanced over classes",
                       choices=("uniform", "balanced"))
    current: str = option("all", "classes that compete in the loss of current data: all seen, or only those of "
                          "the current data (masked)", choices=("all", "masked"))


class ER(Method):
    """One forward pass over current and replayed images; the mean cross entropy of both."""

    name = "er"
    paper = "Chaudhry et al. 2019, On Tiny Episodic Memories"
    class_bytes = 61_466
    keeps = "exemplars"
    checks = "reservoir statistics; published S-MNIST figures; digits end to end"
    replays = True
    Options = EROptions
    defaults: ClassVar = {"spc": 20}

    def __init__(self, tools: Tools, options: EROptions) -> None:
        super().__init__(tools, options)
        self.memory = Replay(tools, options.fill)

    def begin_task(self, task: Task) -> None:
        self.memory.make_room(len(self.seen), task)

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

    def after_step(self, batch: Batch) -> None:
        # Each sample is offered once, in the first pass: later passes would fill slots with copies.
        if batch.first_pass:
            self.memory.offer(batch.images, batch.labels.cpu())

    def end_task(self, task: Task) -> None:
        self.memory.settle()

    def stores(self) -> list[ExemplarStore]:
        return [self.memory.store]

    def state(self) -> dict[str, Tensor]:
        return self.memory.tensors()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.memory.load(state)

    def scratch(self) -> dict[str, Tensor]:
        return self.memory.scratch()

    def load_scratch(self, scratch: Mapping[str, Tensor]) -> None:
        self.memory.load_scratch(scratch)
