"""ADC: current images, turned into old classes by an attack on the old network, show their drift (Goswami 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import option
from protocore.data.augment import to_float
from protocore.data.stream import Task
from protocore.methods.parts.drift import Drift, DriftOptions

Features = Callable[[Tensor], Tensor]
CHUNK = 512  # images that go through a network at once


def nearest(z: Tensor, prototypes: Tensor, m: int) -> Tensor:
    """Rows of the m features nearest to each prototype in plain L2, (K, m)."""
    return torch.cdist(prototypes, z).topk(m, dim=1, largest=False).indices


def attack(features: Features, x: Tensor, targets: Tensor, *, alpha: float, steps: int, low: float, high: float,
           scale: Tensor | float = 1.0, each: bool = False) -> Tensor:
    """Images (K, m, ...) moved towards the targets (K, d) of their classes: x ← clamp(x - α·∇/‖∇‖), ∇ of the MSE.

    The norm is over the m images of a class, or over `each` image. Lengths are measured in units of `scale` (a
    standard deviation of each channel), the range is that of x.
    """
    for _ in range(steps):
        x = x.detach().requires_grad_()
        z = features(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        # Images do not see each other, so the gradient of the sum over classes holds that of each class.
        gradient = torch.autograd.grad((z - targets[:, None]).square().sum(), x)[0] * scale
        norm = gradient.flatten(2).norm(dim=2) if each else gradient.flatten(1).norm(dim=1, keepdim=True)
        norm = norm.clamp(min=1e-20).view(*norm.shape, *[1] * (x.ndim - 2))
        x = (x - scale * (alpha * (gradient / norm))).clamp(low, high)
    return x.detach()


@torch.no_grad()
def drift(old: Features, new: Features, x: Tensor, own: Tensor, snapshot: Tensor, clean: Tensor) -> Tensor:
    """Δ_k (K, d): mean of f_new(x) - f_old(x) over the class's images x (K, m, ...) that the old network takes for it.

    `own` are the places of the K classes among the old prototypes `snapshot`. Where none is taken for its class:
    the mean of `clean` (K, m, d), the differences at the images before the attack.
    """
    before, after = (f(x.flatten(0, 1)) for f in (old, new))
    kept = torch.cdist(before, snapshot).argmin(1).view(x.shape[:2]) == own[:, None]
    weights = kept.to(before.dtype) / kept.sum(1, keepdim=True).clamp(min=1)
    found = torch.einsum("km,kmd->kd", weights, (after - before).unflatten(0, x.shape[:2]))
    return torch.where(kept.any(1, keepdim=True), found, clean.mean(1))


@dataclass(frozen=True)
class ADCOptions(DriftOptions):
    """The attack."""

    attack_alpha: float = option(25.0, "step α in normalised pixel values, for all images of a class together (with "
                                 "--attack-norm image: for each, about 2.5)", least=0)
    attack_steps: int = option(3, "steps of the attack", least=0)
    attack_images: int = option(100, "images attacked for each old class: those nearest to its mean", least=1)
    attack_total: int = option(10000, "images attacked after a task at most: many old classes share them", least=1)
    attack_norm: str = option("batch", "what a step's gradient is normalised over: all images of a class (the "
                              "published code), or each image (the paper)", choices=("batch", "image"))


class ADC(Drift):
    """After each task p_k ← p_k + Δ_k for old classes k."""

    name = "adc"
    paper = "Goswami et al. 2024, Resurrecting Old Classes with New Data for Exemplar-Free Continual Learning"
    Options = ADCOptions
    presets: ClassVar = {
        **Drift.presets,
        "cpu": {"attack_total": 2000},  # 90 classes of 100 images would take several times as long as the training
    }
    checks = "exact for translations, bounds of linear drift, selection, steps and range; digits end to end"

    options: ADCOptions

    def moved(self, task: Task, classes: list[int], z: Tensor) -> Tensor:
        o, old = self.options, self.previous.net
        assert old is not None
        stored = self.means.classes
        snapshot = self.means.get(stored).to(z.device)  # as it was before any of them moved
        own = torch.tensor([stored.index(c) for c in classes], device=z.device)
        before, low, high = self.seen_by_old(task)
        m = min(o.attack_images, len(task), max(o.attack_total // len(classes), 1))
        # With fewer images the whole step is shorter, so that each of them moves as far as among all of them.
        alpha = o.attack_alpha * (1.0 if o.attack_norm == "image" else math.sqrt(m / o.attack_images))
        places = []
        for part in own.split(max(CHUNK // m, 1)):
            rows = nearest(before, snapshot[part], m)
            x = self.tools.on_device(to_float(self.images(task, rows.flatten().cpu()))).unflatten(0, rows.shape)
            x = attack(old.features, x, snapshot[part], alpha=alpha, steps=o.attack_steps, low=low, high=high,
                       scale=self.net.std, each=o.attack_norm == "image")
            found = drift(old.features, self.net.features, x, part, snapshot, (z - before)[rows])
            places.append(snapshot[part] + found)
            self.tools.progress("attacking", sum(map(len, places)), len(classes))
        return torch.cat(places)

    @torch.no_grad()
    def seen_by_old(self, task: Task) -> tuple[Tensor, float, float]:
        """Old features of the task's images, and the least and largest value of a pixel among them."""
        features, low, high = [], 1.0, 0.0
        for rows in torch.arange(len(task)).split(CHUNK):
            x = to_float(self.images(task, rows))
            low, high = min(low, float(x.min())), max(high, float(x.max()))
            features.append(self.previous.features(self.tools.on_device(x)))
        return torch.cat(features), low, high
