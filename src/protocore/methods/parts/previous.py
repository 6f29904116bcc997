"""A network beside the one that learns, held while a task is learned and not after it: the one before the task, say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from protocore.backbones import Network
from protocore.memory.kept import Kept


class SideNetwork(Kept):
    """`renew` makes it, `drop` ends it. Held by a method, a killed run goes on with the same one.

    What it costs is shown in the ledger (`held`), not as memory: nothing of it outlives the task.
    """

    kind = "network"

    def __init__(self, name: str, said: str, make: Callable[[], Network]) -> None:
        self.name, self.said, self.make = name, said, make
        self.net: Network | None = None
        self.bytes = 0

    def renew(self) -> Network:
        self.net = self.make()
        self.bytes = max(self.bytes, sum(p.nbytes for p in self.net.state_dict().values()))
        return self.net

    def drop(self) -> None:
        self.net = None

    @property
    def there(self) -> Network:
        if self.net is None:
            raise TypeError(f"there is no {self.said}")
        return self.net

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return self.there.features(x)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        return self.there(x)

    def held(self) -> dict[str, int]:
        return {self.said: self.bytes} if self.bytes else {}

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.net is None else {f"{self.name}/{k}": v for k, v in self.net.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        prefix = f"{self.name}/"
        mine = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        self.net = None
        if mine:
            self.renew().load_state_dict(mine)


class Previous(SideNetwork):
    """The network as it was before the task, frozen: a teacher, whose outputs of new classes mean nothing."""

    def __init__(self, net: Network) -> None:
        super().__init__("previous", "previous network, during a task", net.frozen_copy)
