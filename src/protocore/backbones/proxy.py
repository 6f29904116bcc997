"""Training a small network on a handful of images: reference and proxy models of selections, second opinions."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones.network import Network


def fit_proxy(net: Network, images: Callable[[Tensor], Tensor], labels: Tensor, *, steps: int, lr: float,
              batch: int = 32, momentum: float = 0.0, weights: Tensor | None = None) -> Network:
    """Plain SGD on the mean cross entropy; each batch is drawn from all rows with replacement.

    `images(rows)` gives float images on the network's device, `labels` are all labels there. With `weights` rows
    are drawn in proportion to them. Returns the network in evaluation mode.
    """
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    for _ in range(steps):
        if weights is None:
            rows = torch.randint(len(labels), (batch,))
        else:
            rows = torch.multinomial(weights.cpu(), batch, replacement=True)
        _step(net, optimiser, images(rows), labels[rows.to(labels.device)])
    return net.eval()


def fit_passes(net: Network, images: Callable[[Tensor], Tensor], labels: Tensor, *, passes: int, lr: float,
               batch: int = 32, tell: Callable[[int], object] | None = None) -> Network:
    """The same in whole passes over all rows, shuffled, in equal parts of at most `batch`: none of a lone image."""
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for done in range(passes):
        for rows in torch.randperm(len(labels)).tensor_split(-(-len(labels) // batch)):
            _step(net, optimiser, images(rows), labels[rows.to(labels.device)])
        if tell:
            tell(done + 1)
    return net.eval()


def _step(net: Network, optimiser: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> None:
    loss = F.cross_entropy(net(x), labels)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
