"""C-Flat (Bian et al., NeurIPS 2024): a step around any method's loss that seeks flat minima."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Gradients = list[Tensor | None]


def flat_step(again: Callable[[], Tensor], first: Callable[[], Tensor], net: nn.Module,
              parameters: Sequence[nn.Parameter], rho: float, weight: float) -> Tensor:
    """Put C-Flat's gradient g1 + λ(g3 - g2) into the parameters; returns the loss of the first evaluation.

    All four evaluations see the same draws and augmentations: the generators are put back before each. Running
    statistics of batch normalisation move in the first one only.
    """
    device = parameters[0].device
    before = _generators(device)
    loss = first()
    g0 = torch.autograd.grad(loss, parameters, allow_unused=True)
    after = _generators(device)
    there = [p.detach().clone() for p in parameters]

    def gradient(*shifts: Gradients) -> Gradients:
        """∇L at θ plus these shifts; θ has its own bits again afterwards."""
        _put_back(before, device)
        try:
            with torch.no_grad():
                for shift in shifts:
                    _add(parameters, shift)
            return list(torch.autograd.grad(again(), parameters, allow_unused=True))
        finally:
            with torch.no_grad():
                for p, value in zip(parameters, there, strict=True):
                    p.copy_(value)

    with _frozen_statistics(net):
        g1 = gradient(_scaled(list(g0), rho))
        e1 = _scaled(_combined(g1, list(g0), -1.0), rho)
        g2 = gradient(e1)
        g3 = gradient(e1, _scaled(g2, rho))
    _put_back(after, device)
    for p, g in zip(parameters, _combined(g1, _combined(g3, g2, -1.0), weight), strict=True):
        p.grad = g
    return loss


def _scaled(gradients: Gradients, length: float) -> Gradients:
    """The same direction with this length; the norm is over all parameters together."""
    norm = torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt()
    return [None if g is None else g * (length / (norm + 1e-12)) for g in gradients]


def _combined(a: Gradients, b: Gradients, factor: float) -> Gradients:
    return [None if x is None or y is None else x + factor * y for x, y in zip(a, b, strict=True)]


def _add(parameters: Sequence[nn.Parameter], shift: Gradients) -> None:
    for p, s in zip(parameters, shift, strict=True):
        if s is not None:
            p.add_(s)


def _generators(device: torch.device) -> list[Tensor]:
    """Where the generators stand: the CPU's, and that of the device, from which noise and dropout may come."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def _put_back(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])


@contextmanager
def _frozen_statistics(net: nn.Module) -> Iterator[None]:
    """Batch statistics are still used, the running ones do not move."""
    layers = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    counts = [layer.num_batches_tracked for layer in layers]
    try:
        for layer in layers:
            layer.momentum = 0.0
            layer.num_batches_tracked = None
        yield
    finally:
        for layer, momentum, count in zip(layers, momenta, counts, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count
