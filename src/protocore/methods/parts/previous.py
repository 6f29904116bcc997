"""The network as it was before the task: a frozen copy, held while a task is learned and not after it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protocore.backbones import Network


class Previous:
    """Frozen in `begin_task`; part of `scratch`, so that a killed run goes on with the same teacher.

    What it costs is shown in the ledger (`held`), not as memory: when the task is closed it is dropped, and the next
    one is a copy of the network that is kept anyway.
    """

    def __init__(self) -> None:
        self.net: Network | None = None
        self.bytes = 0

    def freeze(self, net: Network) -> None:
        self.net = net.frozen_copy()
        self.bytes = max(self.bytes, sum(p.nbytes for p in self.net.state_dict().values()))

    def drop(self) -> None:
        self.net = None

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return self._there().features(x)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Outputs of the old network; those of classes that came with this task mean nothing."""
        return self._there()(x)

    def _there(self) -> Network:
        if self.net is None:
            raise TypeError("no previous network was frozen")
        return self.net

    def held(self) -> dict[str, int]:
        return {"previous network, during a task": self.bytes} if self.bytes else {}

    def scratch(self) -> dict[str, Tensor]:
        return {} if self.net is None else {f"previous/{k}": v for k, v in self.net.state_dict().items()}

    def load_scratch(self, scratch: Mapping[str, Tensor], net: Network) -> None:
        mine = {k.removeprefix("previous/"): v for k, v in scratch.items() if k.startswith("previous/")}
        self.net = None
        if mine:
            self.freeze(net)
            self._there().load_state_dict(mine)
