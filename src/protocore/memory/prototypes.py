"""One feature vector a class: the real prototypes p̂ of the paper."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protocore.errors import DataError
from protocore.memory.store import smallest_dtype

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class PrototypeStore:
    """Prototypes by class. They are rounded to `dtype` when they are set: what is used is what is stored."""

    def __init__(self, dim: int, dtype: str = "float16", name: str = "prototypes") -> None:
        self.dim = dim
        self.name = name
        self._dtype = DTYPES[dtype]
        self._vectors: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._vectors)

    def __contains__(self, label: int) -> bool:
        return label in self._vectors

    @property
    def classes(self) -> list[int]:
        return sorted(self._vectors)

    def set(self, labels: list[int], vectors: Tensor) -> None:
        for label, vector in zip(labels, vectors.detach().cpu(), strict=True):
            self._vectors[label] = vector.to(self._dtype, copy=True)

    def get(self, labels: list[int]) -> Tensor:
        """float32 (len(labels), dim)."""
        return torch.stack([self._vectors[label] for label in labels]).float()

    def class_bytes(self, classes: int) -> int:
        return self.dim * self._dtype.itemsize + smallest_dtype(max(classes - 1, 0)).itemsize

    def tensors(self) -> dict[str, Tensor]:
        if not self._vectors:
            return {}
        labels = self.classes
        return {
            f"{self.name}/features": torch.stack([self._vectors[label] for label in labels]),
            f"{self.name}/labels": torch.tensor(labels).to(smallest_dtype(labels[-1])),
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._vectors = {}
        features, labels = (tensors.get(f"{self.name}/{key}") for key in ("features", "labels"))
        if features is None or labels is None:
            return
        if features.shape != (len(labels), self.dim):
            raise DataError(f"the memory's prototypes have shape {tuple(features.shape)}, expected "
                            f"{(len(labels), self.dim)}")
        self.set(labels.tolist(), features)
