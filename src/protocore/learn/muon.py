"""Muon (Jordan 2024): the step of a convolution is its momentum made orthogonal, so that no direction lags behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.6
ITERATIONS = 3
QUINTIC = (3.4445, -4.7750, 2.0315)  # takes singular values from (0, 1] to about 1 in few iterations
REST = 0.01  # Adam's rate for all that is no convolution, as a share of --lr


class Muon(torch.optim.Adam):
    """Convolutions keep their length and turn: each step is -lr times their length along the orthogonal momentum.

    Layers of that kind are followed by a normalisation, to which their length means nothing. Everything else (head,
    biases, norms) is Adam's, at a hundredth of the rate.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        parameters = list(parameters)
        turned = [p for p in parameters if p.ndim == 4]
        others = [p for p in parameters if p.ndim != 4]
        groups = [{"params": members, "turned": turns, "share": share}
                  for members, turns, share in ((turned, True, 1.0), (others, False, REST)) if members]
        super().__init__(groups, lr=lr)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # Adam's own looks for a count of steps beside every momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:  # type: ignore[override]
        groups = self.param_groups
        for group in groups:
            if group["turned"]:
                for p in group["params"]:
                    if p.grad is not None:
                        self._turn(p, group["lr"])
        try:
            self.param_groups = [group for group in groups if not group["turned"]]
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _turn(self, p: Tensor, lr: float) -> None:
        assert p.grad is not None
        momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
        momentum.mul_(MOMENTUM).add_(p.grad)
        length = p.norm()
        p.add_(orthogonal(p.grad + MOMENTUM * momentum) * (-lr * length / len(p) ** 0.5))
        p.mul_(length / p.norm().clamp(min=1e-12))


def orthogonal(gradient: Tensor) -> Tensor:
    """The gradient as a matrix (filters, the rest), its singular values near 1 (Newton-Schulz), in its own shape."""
    a, b, c = QUINTIC
    x = gradient.flatten(1).float()
    x = x / (x.norm() + 1e-7)
    wide = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(ITERATIONS):
        s = wide @ wide.T
        wide = a * wide + (b * s + c * s @ s) @ wide
    return (wide if x.shape[0] <= x.shape[1] else wide.T).reshape(gradient.shape).to(gradient)


def state_of(optimizer: torch.optim.Optimizer, index: int) -> set[str]:
    """What an optimiser keeps of a parameter, by its number."""
    if isinstance(optimizer, torch.optim.SGD):
        return {"momentum_buffer"}
    at = 0
    for group in optimizer.param_groups:
        at += len(group["params"])
        if index < at:
            return {"momentum_buffer"} if group.get("turned") else {"step", "exp_avg", "exp_avg_sq"}
    return set()
