"""Drift compensation: LwF trains, one mean a class predicts, and means of old classes follow the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from protocore.config import option
from protocore.data.stream import Task
from protocore.methods.base import Tools
from protocore.methods.lwf import LwF, LwFOptions
from protocore.methods.parts.means import ClassMeans, NearestMean, at_home


@dataclass(frozen=True)
class DriftOptions(LwFOptions):
    """LwF's, with the weight of this family, and the type of what is stored."""

    weight: float = option(10.0, "weight λ of the distillation", least=0)
    prototype_dtype: str = option("float16", "how means are stored", choices=("float16", "float32"))


class Drift(LwF):
    """A subclass says in `moved` where old means have gone while the network learned the task.

    A class that the task is about gets its mean from the task's images. Any other stored one is moved; if it visits
    the task with a few images, these are then counted in.
    """

    keeps = "one mean feature a class"
    by_head = False
    Options = DriftOptions
    defaults: ClassVar = {"head": "cosine"}
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 2e-4, "schedule": "steps:45,90",
                  "epochs": 100, "batch": 128, "head": "cosine"},
        "paper tinyimagenet": {"lr": 0.001},
    }

    def __init__(self, tools: Tools, options: DriftOptions) -> None:
        super().__init__(tools, options)
        self.means = self.keep(ClassMeans(self.net.dim, options.prototype_dtype))

    def end_task(self, task: Task) -> None:
        with self.tools.timed("compensate"), self.evaluating():
            z, labels = self.task_features(task)
            home = at_home(task)
            old = [c for c in self.means.classes if c not in home]
            if old:
                self.means.set(old, self.moved(task, old, z))
            self.means.update(z, labels, home)
        super().end_task(task)

    def moved(self, task: Task, classes: list[int], z: Tensor) -> Tensor:
        """Where the means of these classes are now, (C, d); z are the new features of the task's images."""
        raise TypeError(f"{type(self).__name__} moves nothing")

    def predictor(self) -> nn.Module:
        if not len(self.means):
            return self.net
        classes = self.means.classes
        return NearestMean(self.net, self.means.get(classes).to(self.tools.device), classes, self.seen[-1] + 1)
