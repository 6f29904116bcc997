"""PASS: prototypes with noise replay the old classes in the head, rotations enrich the new (Zhu et al., CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.backbones import Network
from protocore.config import Options, option
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.methods.base import Batch, Method, Tools
from protocore.methods.parts.losses import RADIUS, radius
from protocore.methods.parts.means import ClassMeans, OfFeatures, at_home
from protocore.methods.parts.previous import Previous


def rotated(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Square images (N, C, S, S) turned by k·90°, k = 0..3, and the labels 4y + k: 4N of both."""
    turns = [torch.rot90(x, k, (2, 3)) for k in range(4)]
    return torch.cat(turns), torch.cat([4 * labels + k for k in range(4)])


def augmented(prototypes: Tensor, labels: Tensor, count: int, r: Tensor) -> tuple[Tensor, Tensor]:
    """`count` prototypes, each drawn uniformly with replacement and moved by r·ε, ε ~ N(0, I); their classes."""
    drawn = torch.randint(len(labels), (count,))
    noise = torch.randn(count, prototypes.shape[1])
    return prototypes[drawn.to(prototypes.device)] + (r * noise).to(prototypes), labels[drawn.to(labels.device)]


def frobenius(new: Tensor, old: Tensor) -> Tensor:
    """‖F_new - F_old‖ over the whole batch: neither squared nor a mean. Its gradient is 0 where they are the same."""
    return torch.linalg.vector_norm(new - old.detach())


def mean_deviation(z: Tensor, labels: Tensor) -> Tensor:
    """The radius of the ImageNet-Subset script: mean over classes and dimensions of the biased deviation."""
    return torch.stack([z[labels == c].std(0, correction=0).mean() for c in labels.unique()]).mean()


class Unturned(OfFeatures):
    """Scores of images as they are: the outputs of rotation 0."""

    def __init__(self, net: Network, outputs: int) -> None:
        super().__init__(net)
        self.outputs = outputs

    def logits(self, z: Tensor) -> Tensor:
        return self.net.logits(z)[:, :: self.outputs]


@dataclass(frozen=True)
class PASSOptions(Options):
    """The three terms of the loss, and the radius of the noise."""

    prototypes: float = option(10.0, "weight λ_p of the cross entropy of augmented prototypes")
    distill: float = option(10.0, "weight λ_k of the distance between new and old features of a batch")
    temperature: float = option(0.1, "temperature τ of both cross entropies", above=0)
    spread: str = option("variance", "radius: root of the mean variance, or the mean deviation (the authors' "
                         "ImageNet-Subset script)", choices=("variance", "deviation"))
    radius: str = option("first", "estimated in the first task, or as a mean over all classes as they come",
                         choices=("first", "every"))
    prototype_dtype: str = option("float16", "how prototypes are stored", choices=("float16", "float32"))


class PASS(Method):
    """L = CE(z/τ, 4y+k) + λ_p·CE(h(μ_c + rε)/τ, 4c) + λ_k·‖F_new - F_old‖, the last two once there are old classes."""

    name = "pass"
    paper = "Zhu et al. 2021, Prototype Augmentation and Self-Supervision for Incremental Learning"
    keeps = "one mean feature a class, the radius of their noise"
    outputs = 4
    Options = PASSOptions
    presets: ClassVar = {
        "paper": {"optimizer": "adam", "lr": 1e-3, "weight_decay": 2e-4, "schedule": "steps:45,90", "epochs": 101,
                  "batch": 64},
    }
    checks = "radius example, noise, gradients and limits of each term; digits end to end"

    options: PASSOptions

    def __init__(self, tools: Tools, options: PASSOptions) -> None:
        super().__init__(tools, options)
        _, height, width = self.net.image_shape
        if height != width:
            raise UserError(f"--method pass turns images by 90°, so they must be square; these are {height}x{width}. "
                            "Cut or scale them (--image-size N for picture files), or take another method")
        self.means = self.keep(ClassMeans(self.net.dim, options.prototype_dtype))
        self.sigma = torch.full((1,), float("nan"))  # until it is estimated
        self.keep("sigma", "statistics/sigma", mixed=RADIUS)
        self.previous = self.hold(Previous(self.net))
        self.home: list[int] = []

    @property
    def replayed(self) -> list[int]:
        """Classes with a prototype that the task is not about."""
        return [c for c in self.means.classes if c not in self.home]

    def open_task(self, task: Task) -> None:
        self.home = at_home(task)

    def begin_task(self, task: Task) -> None:
        if self.replayed:
            self.previous.renew()

    def loss(self, batch: Batch) -> Tensor:
        o, old = self.options, self.replayed
        x, labels = rotated(batch.x, batch.labels)
        z = self.net.features(x)
        loss = F.cross_entropy(self.net.logits(z) / o.temperature, labels,
                               label_smoothing=self.tools.settings.label_smoothing)
        if old and o.prototypes:
            p, c = augmented(self.means.get(old), torch.tensor(old), len(batch.labels), self.sigma.nan_to_num())
            loss = loss + o.prototypes * F.cross_entropy(self.net.logits(p.to(z)) / o.temperature, 4 * c.to(labels))
        if old and o.distill:
            loss = loss + o.distill * frobenius(z, self.previous.features(x))
        return loss

    def end_task(self, task: Task) -> None:
        with self.tools.timed("statistics"):
            z, labels = self.task_features(task)
            self._estimate(z, labels)
            self.means.update(z, labels, self.home)
        self.previous.drop()

    def _estimate(self, z: Tensor, labels: Tensor) -> None:
        """The radius of the first task, or the mean over the classes of all tasks (each when it first comes)."""
        classes, counts = labels.unique(return_counts=True)
        if self.options.radius == "every":
            stored = torch.tensor(self.means.classes, device=classes.device)
            counts = counts.masked_fill(torch.isin(classes, stored), 0)
        several = torch.isin(labels, classes[counts > 1])  # a single image has no spread
        if not bool(several.any()) or (self.options.radius == "first" and not self.sigma.isnan()):
            return
        z, labels = z[several], labels[several]
        power = 2 if self.options.spread == "variance" else 1
        found = (radius if power == 2 else mean_deviation)(z, labels).cpu()
        old, new = 0 if self.sigma.isnan() else len(self.means), len(labels.unique())
        self.sigma = ((old * self.sigma.nan_to_num() ** power + new * found**power) / (old + new)) ** (1 / power)

    def predictor(self) -> nn.Module:
        return Unturned(self.net, self.outputs)
