"""The size of a memory file that is not there yet: names, types and shapes are enough, to the byte."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

Shaped = tuple[torch.dtype, tuple[int, ...]]
Plan = dict[str, Shaped]

# As safetensors writes them, one behind the other in the file: wide types first.
_TYPES = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.float16: "F16",
          torch.uint16: "U16", torch.int8: "I8", torch.uint8: "U8"}
_ORDER = list(_TYPES)


@dataclass(frozen=True)
class Size:
    """Bytes of one coded exemplar: on average, and at most."""

    mean: float
    most: int


@dataclass(frozen=True)
class Horizon:
    """Up to where room is planned: the task that begins, or the end of the stream."""

    classes: tuple[int, ...]  # that will have come by then, ascending
    sizes: Mapping[str, Size] = field(default_factory=dict)  # of the exemplars in each store, by its name
    tasks: int = 0  # tasks or windows by then; 0: those learned so far and this one
    images: int = 0  # of the largest of them
    of_class: int = 0  # the most that one of them has of a class

    @property
    def top(self) -> int:
        return max(self.classes, default=0)


def plan_of(tensors: Mapping[str, Tensor]) -> Plan:
    return {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def file_size(plan: Plan) -> int:
    """Bytes of the file that `serialise` writes of such tensors: a number, a JSON header, the values."""
    rows, end = [], 0
    for name, (dtype, shape) in sorted(plan.items(), key=lambda item: (_ORDER.index(item[1][0]), item[0])):
        start, end = end, end + math.prod(shape) * dtype.itemsize
        rows.append(f'"{name}":{{"dtype":"{_TYPES[dtype]}","shape":[{",".join(map(str, shape))}],'
                    f'"data_offsets":[{start},{end}]}}')
    header = len("{" + ",".join(rows) + "}")
    return 8 + -(-header // 8) * 8 + end
