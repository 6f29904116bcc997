"""Pictures whose sides are no multiples of a codec's factor."""

from __future__ import annotations

import torch
from torch import Tensor


def reflect_pad(images: Tensor, factor: int) -> Tensor:
    """Images mirrored at the right and lower edge until both sides are multiples of the factor."""
    height, width = images.shape[-2:]
    if height % factor == 0 and width % factor == 0:
        return images
    rows, columns = (_mirrored(side, factor, images.device) for side in (height, width))
    return images[..., rows[:, None], columns]


def _mirrored(side: int, factor: int, device: torch.device) -> Tensor:
    """0 1 2 .. side-1 side-2 .. 0 1 ..: defined also where the padding is wider than the picture."""
    index = torch.arange(-(-side // factor) * factor, device=device)
    period = max(1, 2 * (side - 1))
    return (side - 1 - (index % period - (side - 1)).abs()) if side > 1 else index * 0
