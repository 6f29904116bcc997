"""What fixes the shape of a VQGAN's weights."""

from __future__ import annotations

from dataclasses import dataclass

from protocore.errors import DataError


@dataclass(frozen=True)
class VQGANConfig:
    """Everything that fixes the shape of the weights, and how many candidates the code search keeps."""

    channels: int = 3
    factor: int = 8  # pixels of a side that share one position of the latent
    codes: int = 512
    stages: int = 8
    code_dim: int = 48
    code_rank: int = 20  # dimensions of a stage's codes
    width: int = 48  # the decoder's channels at half the factor; the latent's resolution has a third more
    encoder_width: int = 48
    blocks: int = 2  # residual blocks at each of the two resolutions
    beam: int = 16  # candidates kept from stage to stage; 1 is the greedy search

    def __post_init__(self) -> None:
        limits = {
            "channels": (1, 3),
            "factor": (2, 64),
            "codes": (2, 65536),
            "stages": (1, 64),
            "code_dim": (1, 1024),
            "code_rank": (1, 1024),
            "width": (8, 1024),
            "encoder_width": (8, 1024),
            "blocks": (0, 32),
            "beam": (1, 256),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise DataError(f"VQGAN {name.replace('_', '-')} is {value!r}: give {low}..{high}")
        if self.channels == 2:
            raise DataError("VQGAN channels is 2: give 1 (grey) or 3 (colour)")
        if self.code_rank > self.code_dim:
            raise DataError(f"VQGAN code-rank is {self.code_rank}: more than code-dim, {self.code_dim}")
        if self.factor & (self.factor - 1):
            raise DataError(f"VQGAN factor is {self.factor}: give a power of two, for example 4 or 8")

    @property
    def patch(self) -> int:
        """Values of one patch of factor x factor pixels."""
        return self.channels * self.factor**2
