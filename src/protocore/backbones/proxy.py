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
        loss = F.cross_entropy(net(images(rows)), labels[rows.to(labels.device)])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return net.eval()
