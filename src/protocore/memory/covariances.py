"""One symmetric matrix a class, or one for all of them, in half of its entries."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan
from protocore.memory.prototypes import DTYPES, PrototypeStore


class Covariances(Kept):
    """Symmetric matrices by class, or number 0 for all. What is stored of one is its upper triangle over its mean
    variance, and that: so half precision holds the features of any scale, and no entry is stored twice.

    The classes are those of `means`, whose numbers are stored with them; without `means` one matrix is for all.
    """

    def __init__(self, dim: int, dtype: str, name: str, means: PrototypeStore | None = None) -> None:
        self.dim, self.name, self.means = dim, name, means
        self._dtype = DTYPES[dtype]
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}
        self._places: tuple[int, Tensor] | None = None

    @property
    def _at(self) -> Tensor:
        """Places of the upper triangle; made when they are asked for, as a plan needs no more than their number."""
        if self._places is None or self._places[0] != self.dim:
            self._places = self.dim, torch.triu_indices(self.dim, self.dim)
        return self._places[1]

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    def set(self, number: int, cov: Tensor) -> None:
        mean = cov.diagonal().mean()
        scale = (mean if mean > 0 else torch.ones_like(mean)).float().cpu()
        self._rows[number] = (cov[self._at[0], self._at[1]].cpu() / scale).to(self._dtype), scale

    def triangle(self, number: int) -> Tensor:
        """What is stored of one: another tensor whenever it is set anew."""
        return self._rows[number][0]

    def get(self, number: int) -> Tensor:
        """float64 (d, d)."""
        triangle, scale = self._rows[number]
        upper = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        upper[self._at[0], self._at[1]] = triangle.double() * scale.double()
        return upper + upper.T - upper.diagonal().diag()

    def forget(self, label: int) -> list[str]:
        if self.means is None:
            return [f"{self.name}: one matrix, a mean over all classes that were measured, this one among them"]
        self._rows = {number - (number > label): row for number, row in self._rows.items() if number != label}
        return []

    def narrow(self, dim: int) -> None:
        """Keep the first so many rows and columns of each."""
        kept = {number: self.get(number)[:dim, :dim] for number in self._rows}
        self.dim = dim
        for number, cov in kept.items():
            self.set(number, cov)

    def tensors(self) -> dict[str, Tensor]:
        rows = [self._rows[number] for number in sorted(self._rows)]
        return {f"{self.name}/triangles": torch.stack([triangle for triangle, _ in rows]),
                f"{self.name}/scales": torch.stack([scale for _, scale in rows])} if rows else {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        numbers = [0] if self.means is None else self.means.classes
        triangles, scales = (tensors.get(f"{self.name}/{key}") for key in ("triangles", "scales"))
        self._rows = {}
        if triangles is not None and scales is not None:
            rows = zip(numbers, triangles, scales, strict=True)
            self._rows = {number: (triangle.to(self._dtype), scale.clone()) for number, triangle, scale in rows}

    def plan(self, at: Horizon, rows: int = 0) -> Plan:
        count = min(len(at.classes), 1) if self.means is None else len(at.classes)
        return {f"{self.name}/triangles": (self._dtype, (count, self.dim * (self.dim + 1) // 2)),
                f"{self.name}/scales": (torch.float32, (count,))} if count else {}
