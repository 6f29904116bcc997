"""Accuracy on a task before it is learned, for forward transfer.

The head has no rows for classes that are yet to come: a copy of the network gets fresh ones, drawn beside the run's
generator, so that the run is the same whether or not this is measured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocore.data.stream import Stream
from protocore.learn.device import mix
from protocore.learn.evaluate import CHUNK, made_ready
from protocore.learn.learner import Learner

_ROWS = 0x0A4EAD  # sets the seed of the fresh rows apart from those of batches


@torch.no_grad()
def evaluate_ahead(learner: Learner, stream: Stream, index: int, kept: dict[int, Tensor]) -> tuple[float, float]:
    """Percent right on task `index` with the network as it is: among all classes up to that task, and among its own.

    `kept` keeps test images that are made ready between calls.
    """
    part, outputs = stream.tests[index], learner.method.outputs
    among = torch.tensor(sorted({c for earlier in stream.tests[: index + 1] for c in earlier.classes}))
    own = torch.tensor(part.classes)
    net = learner.net.frozen_copy()
    with torch.random.fork_rng([]):  # rows are drawn on the processor, whatever the device
        torch.manual_seed(mix(learner.settings.seed, index, _ROWS))
        net.grow((int(among[-1]) + 1) * outputs)
    if learner.makes_ready and index not in kept:
        kept[index] = made_ready(learner, part)
    labels, free, told = torch.from_numpy(part.labels), [], []
    for start in range(0, len(labels), CHUNK):
        stop = min(start + CHUNK, len(labels))
        images = kept[index][start:stop] if index in kept else part.take(start, stop)
        with learner.machine.autocast():
            scores = net(learner.machine.images(images))[:, ::outputs].float().cpu()
        free.append(among[scores[:, among].argmax(1)])
        told.append(own[scores[:, own].argmax(1)])
    right = [torch.cat(found) == labels for found in (free, told)]
    return 100 * right[0].double().mean().item(), 100 * right[1].double().mean().item()
