"""A classifier that gains rows as classes arrive: nobody says beforehand how many there will be."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocore.errors import UserError

HEADS = ("linear", "cosine")
START_SCALE = 10.0  # logits of cosines alone lie in [-1, 1], too flat for a softmax over many classes


class GrowingHead(nn.Module):
    """Features (N, dim) to logits (N, classes), starting with no class at all.

    "linear" is w·z + b; "cosine" is scale · cos(w, z) with a learnt scale. Growing replaces the parameters,
    so an optimiser made before must be told of the new ones. New rows start as torch's linear layers do, or by
    `xavier`'s rule with no bias.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    scale: nn.Parameter | None

    def __init__(self, dim: int, kind: str = "linear", *, xavier: bool = False) -> None:
        super().__init__()
        if kind not in HEADS:
            raise UserError(f"head: {kind!r} is not known; choose one of {', '.join(HEADS)}")
        self.dim = dim
        self.kind = kind
        self.xavier = xavier
        linear = kind == "linear"
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0)) if linear else None
        self.scale = None if linear else nn.Parameter(torch.tensor(START_SCALE))

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def grow(self, n: int) -> bool:
        """Make room for at least n classes; the rows there are keep their bits. True if any were added.

        Old logits may still move by a rounding error: a product of another shape sums in another order.
        """
        extra = n - self.classes
        if extra <= 0:
            return False
        # drawn on the CPU whatever the device, so that a seed means the same weights everywhere
        fresh = nn.Linear(self.dim, extra, bias=self.bias is not None)
        if self.xavier:
            nn.init.xavier_uniform_(fresh.weight)
            if self.bias is not None:
                nn.init.zeros_(fresh.bias)
        self._append(fresh.weight, fresh.bias)
        return True

    def drop(self, first: int, count: int) -> None:
        """Take these rows out; those after them keep their bits and move down."""
        rows = torch.arange(self.classes)
        kept = rows[(rows < first) | (rows >= first + count)].to(self.weight.device)
        self.weight = nn.Parameter(self.weight.detach()[kept], requires_grad=self.weight.requires_grad)
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach()[kept], requires_grad=self.bias.requires_grad)

    def forward(self, z: Tensor) -> Tensor:
        if self.scale is None:
            return F.linear(z, self.weight, self.bias)
        # 1e-6 is a number in half precision too; the default 1e-12 would turn a zero feature into NaN there
        directions = F.normalize(self.weight, dim=-1, eps=1e-6)
        return self.scale * F.linear(F.normalize(z, dim=-1, eps=1e-6), directions)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, classes={self.classes}, kind={self.kind}"

    def _append(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = _extended(self.weight, weight)
        if self.bias is not None and bias is not None:
            self.bias = _extended(self.bias, bias)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        stored = state_dict.get(prefix + "weight")
        extra = 0 if stored is None else len(stored) - self.classes
        if extra > 0:
            # zeros, soon overwritten: loading must not draw from the generator
            self._append(torch.zeros(extra, self.dim), torch.zeros(extra))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _extended(old: nn.Parameter, rows: Tensor) -> nn.Parameter:
    data = torch.cat([old.detach(), rows.detach().to(old)])
    return nn.Parameter(data, requires_grad=old.requires_grad)
