"""One symmetric matrix a class, or one for all of them, in half of its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protocore.memory.plan import Plan
from protocore.memory.prototypes import DTYPES


class Covariances:
    """Symmetric matrices by number. What is stored of one is its upper triangle over its mean variance, and that.

    So half precision holds the features of any scale, and no entry is stored twice.
    """

    def __init__(self, dim: int, dtype: str, name: str) -> None:
        self.dim, self.name = dim, name
        self._dtype = DTYPES[dtype]
        self._at = torch.triu_indices(dim, dim)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    def set(self, number: int, cov: Tensor) -> None:
        mean = cov.diagonal().mean()
        scale = (mean if mean > 0 else torch.ones_like(mean)).float().cpu()
        self._rows[number] = (cov[self._at[0], self._at[1]].cpu() / scale).to(self._dtype), scale

    def get(self, number: int) -> Tensor:
        """float64 (d, d)."""
        triangle, scale = self._rows[number]
        upper = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        upper[self._at[0], self._at[1]] = triangle.double() * scale.double()
        return upper + upper.T - upper.diagonal().diag()

    def tensors(self) -> dict[str, Tensor]:
        rows = [self._rows[number] for number in sorted(self._rows)]
        return {f"{self.name}/triangles": torch.stack([triangle for triangle, _ in rows]),
                f"{self.name}/scales": torch.stack([scale for _, scale in rows])} if rows else {}

    def load(self, tensors: Mapping[str, Tensor], numbers: Sequence[int]) -> None:
        triangles, scales = (tensors.get(f"{self.name}/{key}") for key in ("triangles", "scales"))
        self._rows = {}
        if triangles is not None and scales is not None:
            rows = zip(numbers, triangles, scales, strict=True)
            self._rows = {number: (triangle.to(self._dtype), scale.clone()) for number, triangle, scale in rows}

    def plan(self, count: int) -> Plan:
        """What `tensors` will be of so many matrices."""
        return {f"{self.name}/triangles": (self._dtype, (count, self._at.shape[1])),
                f"{self.name}/scales": (torch.float32, (count,))} if count else {}
