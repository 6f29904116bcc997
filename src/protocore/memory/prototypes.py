"""One feature vector a class: the real prototypes p̂ of the paper."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.codecs.int8 import to_int8
from protocore.errors import DataError
from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan
from protocore.memory.store import smallest_dtype

DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


def to_int4(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of whole numbers up to 7, two in a byte, and the float16 step of each row."""
    step = (vectors.abs().amax(1) / 7).clamp(min=2.0**-24).half()
    whole = (vectors / step.float()[:, None]).round().clamp(-7, 7).to(torch.int16) + 8
    pairs = F.pad(whole, (0, whole.shape[1] % 2), value=8).view(len(whole), -1, 2)
    return (pairs[..., 0] * 16 + pairs[..., 1]).to(torch.uint8), step


def from_int4(stored: Tensor) -> Tensor:
    """The whole numbers of `to_int4`, an even number of them in each row."""
    return torch.stack([stored // 16, stored % 16], 2).flatten(1).to(torch.int8) - 8


class PrototypeStore(Kept):
    """Prototypes by class. They are rounded to `dtype` when they are set: what is used is what is stored.

    int8 keeps each vector in steps of its largest entry / 127, and that step as a float16 beside it; int4 in steps of
    its largest / 7.
    """

    kind = "prototypes"

    def __init__(self, dim: int, dtype: str = "float16", name: str = "prototypes") -> None:
        self.dim = dim
        self.name = name
        self.a_byte = 2 if dtype == "int4" else 1  # numbers in one byte, at most
        self._dtype = torch.uint8 if dtype == "int4" else DTYPES[dtype]
        self._whole = dtype in ("int4", "int8")
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

    def forget(self, label: int) -> list[str]:
        self._vectors = {c - (c > label): v for c, v in self._vectors.items() if c != label}
        return []

    def narrow(self, dim: int) -> None:
        """Keep the first so many numbers of each."""
        labels, kept = self.classes, [self._vectors[label][:dim] for label in self.classes]
        self.dim = dim
        if labels:
            self.set(labels, torch.stack(kept))

    @property
    def _columns(self) -> int:
        """Of what is stored: less than `dim` where a byte holds several numbers."""
        return -(-self.dim // self.a_byte)

    def _encoded(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Vectors in the stored type, and the float16 steps that whole numbers need."""
        if not self._whole:
            return vectors.to(self._dtype), None
        return to_int8(vectors) if self.a_byte == 1 else to_int4(vectors)

    def _decoded(self, stored: Tensor, step: Tensor | None) -> Tensor:
        if step is None:
            return stored.float()
        return (stored if self.a_byte == 1 else from_int4(stored)[:, : self.dim]).float() * step.float()[:, None]

    def plan(self, at: Horizon, rows: int = 0) -> Plan:
        """What `tensors` will be once all classes of `at` are stored."""
        count = len(at.classes)
        if not count:
            return {}
        plan: Plan = {"features": (self._dtype, (count, self._columns)), "labels": (smallest_dtype(at.top), (count,))}
        if self._whole:
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
        if features.shape != (len(labels), self._columns) or (features.dtype == torch.uint8) != (self.a_byte == 2):
            raise DataError(f"the memory's prototypes are {features.dtype} of shape {tuple(features.shape)}, expected "
                            f"{self._dtype} of {(len(labels), self._columns)}")
        step = tensors.get(f"{self.name}/steps")
        if (step is None) == (not features.is_floating_point()) or (step is not None and len(step) != len(labels)):
            raise DataError(f"the memory's prototypes are {features.dtype}, which "
                            f"{'needs' if step is None else 'has no use for'} one step a vector")
        self._vectors = dict(zip(labels.tolist(), self._decoded(features, step).clone(), strict=True))
