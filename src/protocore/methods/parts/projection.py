"""What is kept of a feature vector: its power, at length 1, along some directions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Module):
    """Features (N, dim) as the numbers that are kept of them: a power with the sign kept, length 1, directions.

    `rectified`: what is below 0 along a direction counts as 0, as in a layer of random units.
    """

    directions: Tensor | None

    def __init__(self, power: float, vectors: Tensor | None, *, rectified: bool = False) -> None:
        super().__init__()
        self.power, self.rectified = power, rectified
        self.register_buffer("directions", None if vectors is None else vectors.float())

    def forward(self, z: Tensor) -> Tensor:
        z = z.float()
        if self.power != 1:
            z = z.sign() * z.abs().pow(self.power)
        z = F.normalize(z, dim=1)
        if self.directions is not None:
            z = z @ self.directions.T
        return z.relu() if self.rectified else z
