"""What all feature extractors share: a chain of stages, and the choice of normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from protocore.errors import UserError

NORMS = ("batch", "group")
MAX_GROUPS = 8


class Backbone(nn.Module):
    """Images (N, C, H, W) to features (N, dim): `stages` in a row, the last of them giving the features."""

    xavier_head = False  # whether rows of the head start by Xavier's rule, with no bias, as the stages do
    mean: Sequence[float] | None = None  # a normalisation of its own, in place of the data's
    std: Sequence[float] | None = None
    image_size: tuple[int, int] | None = None  # height and width to which pictures are resized for it
    channels: int | None = None  # that it takes, whatever the pictures have: a grey one is repeated

    def __init__(self, stages: nn.Sequential, dim: int) -> None:
        super().__init__()
        self.stages = stages
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x)

    def prepare(self, pictures: Callable[[], Tensor]) -> None:
        """Fix what depends on the data, once, before the first task: `pictures` gives some of them, normalised."""

    def follow(self, other: Backbone) -> None:
        """Take what `prepare` has fixed in another network of the same kind."""

    def layers(self, x: Tensor) -> list[Tensor]:
        """The output of every stage; the last one is what `forward` gives."""
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs


def group_count(channels: int) -> int:
    """The most groups, at most MAX_GROUPS, that divide the channels.

    A group has two channels or more: alone on a map of 1x1 a channel would be normalised to zero.
    """
    most = max(1, min(MAX_GROUPS, channels // 2))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def norm_layer(norm: str, channels: int) -> nn.Module:
    """Batch norm, or group norm, whose output for a sample does not depend on the rest of its batch."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(group_count(channels), channels)
    raise UserError(f"norm: {norm!r} is not known; choose one of {', '.join(NORMS)}")
