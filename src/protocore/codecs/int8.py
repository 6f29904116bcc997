"""Rows of numbers as whole numbers of one byte."""

from __future__ import annotations

import torch
from torch import Tensor


def to_int8(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of whole numbers up to 127, and the float16 step of each row; what came from them goes back unchanged."""
    step = (vectors.abs().amax(1) / 127).clamp(min=2.0**-24).half()  # a vector of zeros has a step too
    return (vectors / step.float()[:, None]).round().clamp(-127, 127).to(torch.int8), step
