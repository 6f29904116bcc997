"""FeCAM: a frozen network and an anisotropic Mahalanobis distance to each class (Goswami et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.memory.covariances import Covariances
from protocore.methods.base import Tools
from protocore.methods.finetune import Finetune
from protocore.methods.parts.gaussian import Mahalanobis, correlation, covariance, pooled, shrunk, tukey
from protocore.methods.parts.means import ClassMeans, at_home


@dataclass(frozen=True)
class FeCAMOptions(Options):
    """The statistics of a class and how they are stored."""

    tukey: float = option(0.5, "power β of features before statistics and distances (0: logarithm, 1: as they are)",
                          least=0)
    shrinks: int = option(2, "how often the covariance is shrunk (the paper's equation: 1, its code: 2)", least=0)
    gamma1: float = option(1.0, "shrinkage of the diagonal", least=0)
    gamma2: float = option(1.0, "shrinkage of the other entries", least=0)
    nonzero: bool = option(False, "their mean leaves out entries that are exactly 0, as the published code does")
    covariance: str = option("class", "a covariance for each class, or one shared by all", choices=("class", "shared"))
    covariance_dtype: str = option("float16", "how covariances are stored", choices=("float16", "float32"))
    prototype_dtype: str = option("float16", "how means are stored", choices=("float16", "float32"))
    first_windows: int = option(10, "online: windows that the network is trained on before it is frozen, in place of "
                                "the first task", least=1)
    head_first: bool = option(False, "right after the first task the head answers, as in the published code")


class FeCAM(Finetune):
    """Trains on the first task only; later classes are told by mean and covariance of the frozen features."""

    name = "fecam"
    paper = "Goswami et al. 2023, FeCAM: Exploiting the Heterogeneity of Class Distributions"
    keeps = "a mean and a covariance for each class"
    by_head = False
    Options = FeCAMOptions
    defaults: ClassVar = {"head": "cosine"}
    presets: ClassVar = {
        "paper": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
                  "epochs": 200, "batch": 128, "head": "cosine"},
    }
    checks = "worked example and invariances of the distance; digits end to end"

    options: FeCAMOptions

    def __init__(self, tools: Tools, options: FeCAMOptions) -> None:
        super().__init__(tools, options)
        self.means = self.keep(ClassMeans(self.net.dim, options.prototype_dtype))
        self.shared = options.covariance == "shared"
        one = ("shared covariance", None) if self.shared else ("prototypes", self.means)
        self.covariances = self.keep(Covariances(self.net.dim, options.covariance_dtype, *one))
        self.first = options.first_windows if tools.settings.online else 1
        self.tasks = 0  # learned so far; counted no further than needed
        self.keep("tasks", "statistics/tasks", without=lambda tasks, label: tasks)
        # What is stored of a covariance, and the inverse that was made of it, which is never stored.
        self._inverses: dict[int, tuple[Tensor, Tensor]] = {}

    def wants_training(self, task: Task) -> bool:
        return self.tasks < self.first

    def end_task(self, task: Task) -> None:
        with self.tools.timed("statistics"):
            # While the network is trained, what was measured before is of another one; later it stays true.
            z, labels = self.task_features(task)
            before, home = dict(self.means.counts), at_home(task) if self.wants_training(task) else []
            anew = [c for c in task.classes if c in home or c not in before]
            self.means.update(z, labels, anew)
            z, labels = tukey(z.cpu().double(), self.options.tukey), labels.cpu()
            found = {c: covariance(z[labels == c]) for c in task.classes}
            if self.shared:
                self._share([found[c] for c in anew], len(before.keys() - set(anew)))
            else:
                for c, cov in found.items():
                    if c not in anew:
                        cov = pooled(self.covariances.get(c), before[c], cov, self.means.counts[c] - before[c])
                    self.covariances.set(c, cov)
            self.tasks = min(self.tasks + 1, self.first + 1)
            self.inverses(task.classes)

    def forget(self, label: int) -> list[str]:
        self._inverses = {}
        return super().forget(label)

    def _share(self, new: list[Tensor], old: int) -> None:
        """Σ ← ratio·Σ + (1 - ratio)·Σ_new, ratio the share of the old classes: so each class weighs the same."""
        if new:
            mean, ratio = torch.stack(new).mean(0), old / (old + len(new))
            self.covariances.set(0, ratio * self.covariances.get(0) + (1 - ratio) * mean if old else mean)

    def inverses(self, classes: Sequence[int]) -> list[Tensor]:
        """Σ̂⁻¹ of each of these classes, (d, d) on the device; kept until the statistics change."""
        o, numbers = self.options, [0] * len(classes) if self.shared else list(classes)
        missing = sorted({c for c in numbers
                          if c not in self._inverses or self._inverses[c][0] is not self.covariances.triangle(c)})
        for done, c in enumerate(missing):
            cov = self.covariances.get(c)
            for _ in range(o.shrinks):
                cov = shrunk(cov, o.gamma1, o.gamma2, nonzero=o.nonzero)
            inverse = torch.linalg.pinv(correlation(cov), hermitian=True)
            self._inverses[c] = self.covariances.triangle(c), inverse.float().to(self.tools.device)
            self.tools.progress("inverting covariances", done + 1, len(missing))
        return [self._inverses[c][1] for c in numbers]

    def predictor(self) -> nn.Module:
        if not len(self.means) or self.tasks < self.first + int(self.options.head_first):
            return self.net
        classes = self.means.classes
        with torch.autocast(self.tools.device.type, enabled=False):
            return Mahalanobis(self.net, self.means.get(classes).to(self.tools.device), self.inverses(classes), classes,
                               self.seen[-1] + 1, self.options.tukey)
