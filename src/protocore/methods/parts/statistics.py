"""Batch normalisation of pictures that look unlike those that the network is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def own_statistics(*nets: nn.Module) -> Iterator[None]:
    """A batch is normalised by its own mean and variance, and leaves none of them behind, in all of these networks.

    Which layers: those that learn in the first network, a frozen stage's do not.
    """
    names = {name for name, layer in nets[0].named_modules() if isinstance(layer, _BatchNorm) and layer.training}
    layers = [layer for net in nets for name, layer in net.named_modules()
              if name in names and isinstance(layer, _BatchNorm)]
    before = [(layer.training, layer.momentum) for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, (training, momentum) in zip(layers, before, strict=True):
            layer.train(training)
            layer.momentum = momentum
