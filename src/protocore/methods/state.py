"""An attribute of a method as something kept or held: the method works with the value, the file with a tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from protocore.memory.kept import Kept
from protocore.memory.plan import Horizon, Plan, plan_of
from protocore.memory.store import narrowest

Without = Callable[[Any, int], Any]


class Attribute(Kept):
    """A number, a list of whole numbers, a tensor or a dictionary of tensors that is an attribute of `owner`.

    Its value when it is registered is what it is again where a file says nothing of it. Not written are 0, NaN and
    whatever is empty. `without` says what it is without a class, given its number; `mixed` says in words what of a
    class stays in it.
    """

    def __init__(self, owner: Any, attribute: str, name: str | None = None, kind: str | None = None, *,
                 without: Without | None = None, mixed: str = "") -> None:
        self.owner, self.attribute, self.name = owner, attribute, name or attribute
        self.without, self.mixed = without, mixed
        self.start = copy.deepcopy(getattr(owner, attribute))
        self.kind = kind or self.kind

    def tensors(self) -> dict[str, Tensor]:
        value = getattr(self.owner, self.attribute)
        if isinstance(value, dict):
            return {f"{self.name}/{key}": part.detach().cpu() for key, part in value.items()}
        stored = _stored(value)
        nothing = isinstance(value, int | float) and not value
        unknown = stored.numel() == 1 and bool(stored.isnan())
        return {} if nothing or unknown or not stored.numel() else {self.name: stored}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        setattr(self.owner, self.attribute, self._loaded(tensors))

    def _loaded(self, tensors: Mapping[str, Tensor]) -> Any:
        start, prefix = self.start, f"{self.name}/"
        if isinstance(start, dict):
            device, mine = self.owner.tools.device, [key for key in tensors if key.startswith(prefix)]
            return {key.removeprefix(prefix): tensors[key].to(device) for key in mine}
        if self.name not in tensors:
            return copy.deepcopy(start)
        stored = tensors[self.name]
        if isinstance(start, Tensor):
            return stored.to(start.dtype, copy=True)
        return stored.tolist() if isinstance(start, list) else type(start)(stored.item())

    def forgets(self) -> bool:
        return self.without is not None or bool(self.mixed)

    def forget(self, label: int) -> list[str]:
        if self.without is not None:
            setattr(self.owner, self.attribute, self.without(getattr(self.owner, self.attribute), label))
        return [f"{self.name}: {self.mixed}"] if self.mixed and self.tensors() else []

    def plan(self, at: Horizon, rows: int) -> Plan:
        return plan_of({self.name: _stored(getattr(self.owner, self.attribute))})


def _stored(value: Any) -> Tensor:
    """Whole numbers of a tensor in the narrowest type, a single one in four bytes, a float as exact as it is."""
    if isinstance(value, Tensor):
        return narrowest(value.detach().cpu()).clone()
    if isinstance(value, list):
        return torch.tensor(value, dtype=torch.int64)
    return torch.tensor([value], dtype=torch.int32 if isinstance(value, int) else torch.float64)
