"""FeCAM: a frozen network and an anisotropic Mahalanobis distance to each class (Goswami et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.covariances import Covariances
from protocore.memory.plan import Horizon, Plan, plan_of
from protocore.methods.base import Tools
from protocore.methods.finetune import Finetune
from protocore.methods.parts.means import ClassMeans, at_home, by_class

LEAST = 1e-6  # what a dead unit's logarithm is taken of


def tukey(z: Tensor, beta: float) -> Tensor:
    """Tukey's ladder of powers: φ^β, the logarithm for β = 0; φ itself for β = 1."""
    if beta == 1:
        return z
    if bool((z < 0).any()):
        raise UserError(f"--tukey {beta}: this backbone has features below 0, which have no such power; give --tukey 1")
    return z.clamp(min=LEAST).log() if beta == 0 else z.pow(beta)


def covariance(z: Tensor) -> Tensor:
    """The unbiased covariance of rows (n, d); of a single row, which has none, zeros."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(len(z) - 1, 1)


def shrunk(cov: Tensor, gamma1: float, gamma2: float, *, nonzero: bool = False) -> Tensor:
    """Σ + γ1·V1·I + γ2·V2·(11ᵀ - I), V1 and V2 the means of the entries on the diagonal and off it.

    `nonzero`: V2 is the mean of the entries that are not exactly 0 (0 if there are none).
    """
    diagonal = cov.diagonal()
    entries = int((cov != 0).sum() - (diagonal != 0).sum()) if nonzero else cov.numel() - len(cov)
    v1, v2 = diagonal.mean(), (cov.sum() - diagonal.sum()) / max(entries, 1)
    added = (gamma2 * v2).expand_as(cov).clone()
    return cov + added.fill_diagonal_(float(gamma1 * v1))


def correlation(cov: Tensor) -> Tensor:
    """Σ_ij / (σ_i σ_j): a unit diagonal. A dimension that does not vary correlates with none."""
    sigma = cov.diagonal().clamp(min=0).sqrt()
    sigma = torch.where(sigma > 0, sigma, torch.ones_like(sigma))
    return (cov / sigma[:, None] / sigma).fill_diagonal_(1)


def distances(x: Tensor, means: Tensor, inverses: Sequence[Tensor]) -> Tensor:
    """(x - μ_y)ᵀ Σ̂_y⁻¹ (x - μ_y) of rows (N, d) and each class, (N, C)."""
    columns = []
    for mean, inverse in zip(means, inverses, strict=True):
        offset = x - mean
        columns.append(((offset @ inverse) * offset).sum(1))
    return torch.stack(columns, 1)


def pooled(one: Tensor, n: int, other: Tensor, m: int) -> Tensor:
    """The covariance within two parts of a class, of n and m rows."""
    return ((n - 1) * one + (m - 1) * other) / max(n + m - 2, 1)


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
    class_bytes = 66_318
    keeps = "a mean and a covariance for each class"
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
        self.means = ClassMeans(self.net.dim, options.prototype_dtype)
        self.shared = options.covariance == "shared"
        self.covariances = Covariances(self.net.dim, options.covariance_dtype,
                                       "shared covariance" if self.shared else "prototypes")
        self.first = options.first_windows if tools.settings.online else 1
        self.tasks = 0  # learned so far; counted no further than needed
        self._inverses: dict[int, Tensor] = {}  # made of what is stored, never stored

    def wants_training(self, task: Task) -> bool:
        return self.tasks < self.first

    def planned(self, at: Horizon, rows: int) -> Plan:
        matrices = min(len(at.classes), 1) if self.shared else len(at.classes)
        return self.means.plan(at.classes) | self.covariances.plan(matrices) | plan_of(self._counter())

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
            for c in [0] if self.shared else task.classes:
                self._inverses.pop(c, None)
            self.inverses(task.classes)

    def _share(self, new: list[Tensor], old: int) -> None:
        """Σ ← ratio·Σ + (1 - ratio)·Σ_new, ratio the share of the old classes: so each class weighs the same."""
        if new:
            mean, ratio = torch.stack(new).mean(0), old / (old + len(new))
            self.covariances.set(0, ratio * self.covariances.get(0) + (1 - ratio) * mean if old else mean)

    def inverses(self, classes: Sequence[int]) -> list[Tensor]:
        """Σ̂⁻¹ of each of these classes, (d, d) on the device; kept until the statistics change."""
        o, numbers = self.options, [0] * len(classes) if self.shared else list(classes)
        missing = sorted({c for c in numbers if c not in self._inverses})
        for done, c in enumerate(missing):
            cov = self.covariances.get(c)
            for _ in range(o.shrinks):
                cov = shrunk(cov, o.gamma1, o.gamma2, nonzero=o.nonzero)
            inverse = torch.linalg.pinv(correlation(cov), hermitian=True)
            self._inverses[c] = inverse.float().to(self.tools.device)
            self.tools.progress("inverting covariances", done + 1, len(missing))
        return [self._inverses[c] for c in numbers]

    def scores(self, x: Tensor) -> Tensor:
        z, o = self.net.features(x), self.options
        if not len(self.means) or self.tasks < self.first + int(o.head_first):
            return self.net.logits(z)
        classes = self.means.classes
        with torch.autocast(z.device.type, enabled=False):
            means = F.normalize(tukey(self.means.get(classes).to(z.device), o.tukey), dim=1)  # mean, power, length 1
            unit = F.normalize(tukey(z.float(), o.tukey), dim=1)
            return by_class(-distances(unit, means, self.inverses(classes)), classes, self.seen[-1] + 1)

    def _counter(self) -> dict[str, Tensor]:
        return {"statistics/tasks": torch.tensor([self.tasks], dtype=torch.int32)}

    def state(self) -> dict[str, Tensor]:
        return self.means.tensors() | self.covariances.tensors() | self._counter() if len(self.means) else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.means.load(state)
        self.covariances.load(state, [0] if self.shared else self.means.classes)
        self.tasks = int(state["statistics/tasks"]) if state else 0
        self._inverses = {}
