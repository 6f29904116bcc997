"""One feature vector a class: the real prototypes p̂ of the paper."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protocore.errors import DataError
from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan
from protocore.memory.store import smallest_dtype

DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


def to_int8(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of whole numbers up to 127, and the float16 step of each row; what came from them goes back unchanged."""
    step = (vectors.abs().amax(1) / 127).clamp(min=2.0**-24).half()  # a vector of zeros has a step too
    return (vectors / step.float()[:, None]).round().clamp(-127, 127).to(torch.int8), step


class PrototypeStore(Kept):
    """Prototypes by class. They are rounded to `dtype` when they are set: what is used is what is stored.

    int8 keeps each vector in steps of its largest entry / 127, and that step as a float16 beside it.
    """

    kind = "prototypes"

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
        rounded = self._decoded(*self._encoded(vectors.detach().cpu().float()))
        for label, vector in zip(labels, rounded, strict=True):
            self._vectors[label] = vector.clone()

    def get(self, labels: list[int]) -> Tensor:
        """float32 (len(labels), dim)."""
        return torch.stack([self._vectors[label] for label in labels])

    def _encoded(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors in the stored type, and the float16 steps that int8 needs."""
        return to_int8(vectors) if self._dtype == torch.int8 else (vectors.to(self._dtype), None)

    @staticmethod
    def _decoded(stored: Tensor, step: Tensor | None) -> Tensor:
        return stored.float() if step is None else stored.float() * step.float()[:, None]

    def plan(self, at: Horizon, rows: int = 0) -> Plan:
        """What `tensors` will be once all classes of `at` are stored."""
        count = len(at.classes)
        if not count:
            return {}
        plan: Plan = {"features": (self._dtype, (count, self.dim)), "labels": (smallest_dtype(at.top), (count,))}
        if self._dtype == torch.int8:
            plan["steps"] = torch.float16, (count,)
        return {f"{self.name}/{key}": shaped for key, shaped in plan.items()}

    def tensors(self) -> dict[str, Tensor]:
        if not self._vectors:
            return {}
        labels = self.classes
        features, step = self._encoded(self.get(labels))
        kept = {
            f"{self.name}/features": features,
            f"{self.name}/labels": torch.tensor(labels).to(smallest_dtype(labels[-1])),
        }
        return kept | ({} if step is None else {f"{self.name}/steps": step})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._vectors = {}
        features, labels = (tensors.get(f"{self.name}/{key}") for key in ("features", "labels"))
        if features is None or labels is None:
            return
        if features.shape != (len(labels), self.dim):
            raise DataError(f"the memory's prototypes have shape {tuple(features.shape)}, expected "
                            f"{(len(labels), self.dim)}")
        step = tensors.get(f"{self.name}/steps")
        if (step is None) != (features.dtype != torch.int8) or (step is not None and len(step) != len(labels)):
            raise DataError(f"the memory's prototypes are {features.dtype}, which "
                            f"{'needs' if step is None else 'has no use for'} one step a vector")
        self._vectors = dict(zip(labels.tolist(), self._decoded(features, step).clone(), strict=True))
