"""Nearest class mean: one mean feature a class, the closest in angle wins (iCaRL, LDC, ADC and their kin)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.backbones import Network
from protocore.data.stream import Task
from protocore.memory.plan import Horizon, Plan
from protocore.memory.prototypes import PrototypeStore
from protocore.methods.parts.losses import class_means


def nearest_mean_scores(z: Tensor, means: Tensor) -> Tensor:
    """Minus the squared Euclidean distance of L2-normalised features (N, d) and means (C, d): (N, C)."""
    with torch.autocast(z.device.type, enabled=False):  # close means would be one in half precision
        a, b = F.normalize(z.float(), dim=1), F.normalize(means.to(z.device, torch.float32), dim=1)
        return 2 * a @ b.T - a.square().sum(1)[:, None] - b.square().sum(1)


def by_class(scores: Tensor, classes: Collection[int], width: int) -> Tensor:
    """Scores (N, len(classes)) in the columns of their classes; -inf where a class has none."""
    full = scores.new_full((scores.shape[0], width), float("-inf"))  # len() would fix the batch of an exported graph
    full[:, list(classes)] = scores
    return full


class OfFeatures(nn.Module):
    """A predictor in two steps, as the network is one itself: `features` of images, then `logits` of these."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def features(self, x: Tensor) -> Tensor:
        return self.net.features(x)

    def logits(self, z: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} defines no logits")

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.features(x))


class NearestMean(OfFeatures):
    """Scores of images: how near their features are to the mean of each class."""

    means: Tensor

    def __init__(self, net: Network, means: Tensor, classes: Collection[int], width: int) -> None:
        super().__init__(net)
        self.classes, self.width = list(classes), width
        self.register_buffer("means", means)

    def logits(self, z: Tensor) -> Tensor:
        return by_class(nearest_mean_scores(z, self.means), self.classes, self.width)


def at_home(task: Task) -> list[int]:
    """The classes that a task is about: those with at least half of an equal share of its images.

    The others only visit, with a few images: in a blurry stream, or where a window of an online one takes in the end
    of one task and the beginning of the next.
    """
    counts = task.labels.bincount()
    return [c for c in task.classes if 2 * len(task.classes) * int(counts[c]) >= len(task)]


class ClassMeans(PrototypeStore):
    """Raw means by class, and of how many images each of them is: a class may come again with further ones."""

    def __init__(self, dim: int, dtype: str = "float16", name: str = "prototypes") -> None:
        super().__init__(dim, dtype, name)
        self.counts: dict[int, int] = {}

    def update(self, z: Tensor, labels: Tensor, anew: Collection[int] = ()) -> None:
        """Means of the classes in `labels`; one that is stored counts by its images, unless it is made `anew`."""
        classes = labels.unique()
        means, counts = class_means(z.float(), labels, classes)
        for label, mean, count in zip(classes.tolist(), means.cpu(), counts.long().tolist(), strict=True):
            if label in anew:
                self.counts.pop(label, None)
            self.join(label, mean, count)

    def join(self, label: int, mean: Tensor, count: int) -> None:
        """The mean of so many further images of a class joins what is stored of it."""
        before = self.counts.get(label, 0)
        if before:
            mean = mean + (self.get([label])[0] - mean) * (before / (before + count))
        self.set([label], mean[None])
        self.counts[label] = before + count

    def forget(self, label: int) -> list[str]:
        self.counts = {c - (c > label): count for c, count in self.counts.items() if c != label}
        return super().forget(label)

    def put(self, labels: list[int], means: Tensor, counts: list[int]) -> None:
        """Means of so many images each, in place of what is stored of these classes."""
        self.set(labels, means)
        self.counts |= zip(labels, counts, strict=True)

    def tensors(self) -> dict[str, Tensor]:
        kept = super().tensors()
        if kept:
            counts = [self.counts[label] for label in self.classes]
            kept[f"{self.name}/counts"] = torch.tensor(counts, dtype=torch.int32)
        return kept

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        counts = tensors.get(f"{self.name}/counts")
        self.counts = {} if counts is None else dict(zip(self.classes, counts.tolist(), strict=True))

    def plan(self, at: Horizon, rows: int = 0) -> Plan:
        more: Plan = {f"{self.name}/counts": (torch.int32, (len(at.classes),))}
        return super().plan(at) | (more if at.classes else {})
