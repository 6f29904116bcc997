"""A frozen network in front of a learner: every picture becomes its features, once, and is learned as these."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from protocore.backbones import Backbone, Network
from protocore.backbones.folding import folded
from protocore.data.images import ArrayImages
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.learn.device import Machine
from protocore.learn.features_kept import KeptFeatures, Remembered
from protocore.memory.codings import to_uint8
from protocore.methods.base import Progress, sample_rows
from protocore.pictures import ImageShape

FIRST = 2000  # pictures that fix the scale, evenly over the first task
HEADROOM = 1.25  # times the largest root of the first pictures: those to come may have larger ones


class Front(nn.Module):
    """Float pictures (N, C, H, W) in [0, 1] to feature pictures (N, dim, 1, 1) in [0, 1], which are bytes once rounded.

    A feature z becomes its signed square root, and all of them are scaled by one number, which the first pictures fix.
    """

    low: Tensor
    high: Tensor

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = folded(net)
        self.kept: KeptFeatures | Remembered | None = None
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @property
    def image_shape(self) -> ImageShape:
        """Of the pictures that it takes."""
        return self.net.image_shape

    @property
    def shape(self) -> ImageShape:
        """Of the feature pictures that it gives."""
        return self.net.dim, 1, 1

    @property
    def fixed(self) -> bool:
        return bool(self.high > 0)

    def train(self, mode: bool = True) -> Front:
        return super().train(False)

    def roots(self, x: Tensor) -> Tensor:
        """Signed square roots of the features, (N, dim)."""
        z = self.net.features(x.contiguous(memory_format=torch.channels_last)).float()
        return z.sign() * z.abs().sqrt()

    def fix(self, roots: Tensor) -> None:
        """Choose the scale by the roots of the first pictures: from 0 where none is negative, else around 0."""
        top = HEADROOM * float(roots.abs().max()) or 1.0
        self.high.fill_(top)
        self.low.fill_(-top if bool((roots < 0).any()) else 0.0)

    def scaled(self, roots: Tensor) -> Tensor:
        """Roots as feature pictures."""
        return ((roots - self.low) / (self.high - self.low)).clamp(0, 1)[:, :, None, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.roots(x))


class Unscaled(Backbone):
    """The backbone behind a front: feature pictures to the roots of the features that they were made of."""

    low: Tensor
    high: Tensor

    def __init__(self, front: Front) -> None:
        super().__init__(nn.Sequential(nn.Flatten()), front.shape[0])
        self.register_buffer("low", front.low.clone())
        self.register_buffer("high", front.high.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * self.stages(x)

    def layers(self, x: Tensor) -> list[Tensor]:
        return [self(x)]

    def follow(self, other: Backbone | Front) -> None:
        """Take the scale over."""
        assert isinstance(other, Unscaled | Front)
        self.low.copy_(other.low)
        self.high.copy_(other.high)


@torch.no_grad()
def features_of(front: Front, images: Tensor, machine: Machine) -> Tensor:
    """Feature pictures as floats, on the processor, for uint8 or float pictures of any number."""
    if not front.fixed:
        raise UserError("this learner has learned nothing yet; call learn or partial_fit first")
    parts = [front.scaled(_roots(front, part, machine)) for part in images.split(front.net.at_once())]
    return torch.cat(parts).cpu() if len(images) else torch.empty(0, *front.shape)


@torch.no_grad()
def feature_task(front: Front, task: Task, machine: Machine, progress: Progress | None) -> Task:
    """The task of the features of a task's pictures, as bytes; the first one fixes the scale.

    Which pictures go through the front together never changes, so that an interrupted run meets the same bits.
    """
    first = sample_rows(len(task), FIRST)
    rest = torch.ones(len(task), dtype=torch.bool)
    rest[first] = False
    made = np.empty((len(task), *front.shape), np.uint8)
    waiting: list[tuple[Tensor, Tensor]] = []
    done, size = 0, front.net.at_once()
    for group in (first, rest.nonzero().flatten()):
        for rows in group.split(size) if len(group) else ():
            waiting.append((rows, _roots(front, task.take(rows), machine)))
            done += len(rows)
            if progress:
                progress("features", done, len(task))
            if front.fixed or done == len(first):
                if not front.fixed:
                    front.fix(torch.cat([roots for _, roots in waiting]))
                for chosen, roots in waiting:
                    made[chosen.numpy()] = to_uint8(front.scaled(roots)).cpu().numpy()
                waiting.clear()
    return Task(ArrayImages(made), task.labels.numpy(), index=task.index, class_names=task.class_names)


def _roots(front: Front, images: Tensor, machine: Machine) -> Tensor:
    """In float32 whatever the precision of training: an exported front must give the same."""
    def made(images: Tensor) -> Tensor:
        return front.roots(machine.images(images))

    return made(images) if front.kept is None else front.kept.of(images, made)


def nbytes(module: nn.Module) -> int:
    """Bytes of everything in its state."""
    return sum(tensor.nbytes for tensor in module.state_dict().values())
