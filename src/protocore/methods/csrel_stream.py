"""CSReL for online streams: DER++ whose reservoir prefers samples of large reducible loss (Tong et al., ICLR 2025)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones.proxy import fit_proxy
from protocore.data.stream import Task
from protocore.errors import UserError
from protocore.memory.fill import BalancedReservoir
from protocore.methods.base import Batch, Tools
from protocore.methods.csrel_options import BATCH, CSReLOptions
from protocore.methods.derpp import DERpp, DERppOptions
from protocore.methods.parts.previous import SideNetwork

FILLS = {"on": "class", "off": "stream", "auto": "auto"}


def reducible(logits: Tensor, of_memory: Tensor, labels: Tensor, mse: float) -> Tensor:
    """CE(x; θ_buf) + mse · mean (z_buf - z)² - CE(x; θ) of each row: what the memory does not explain, but could."""
    gap = (of_memory - logits).square().mean(1)
    return (F.cross_entropy(of_memory, labels, reduction="none") + mse * gap
            - F.cross_entropy(logits, labels, reduction="none"))


def shares_of(reducible: Tensor) -> Tensor:
    """s = B · softmax(d): how much likelier than by chance each of a batch of B is kept; their mean is 1."""
    return len(reducible) * reducible.double().softmax(0)


class CSReLStream(DERpp):
    """L = CE(batch) + α · CE(memory) + β · MSE(stored logits); sample n is kept with probability M · s / n.

    θ_buf, which d is measured with, is an untrained network trained for a few steps on the exemplars of the window's
    classes; it is made anew whenever enough of them have changed. Nothing of it outlives a window.
    """

    name = "csrel"

    def __init__(self, tools: Tools, options: CSReLOptions) -> None:
        s = tools.settings
        if options.balance == "off" and s.capacity is None and s.budget is None:
            raise UserError("--balance off needs a fixed size online: give --capacity N or --budget BYTES instead of "
                            "--spc, or leave it out")
        super().__init__(tools, DERppOptions(alpha=options.beta, beta=options.alpha, fill=FILLS[options.balance]))
        self.choice = options
        self.model = self.hold(SideNetwork("model", "model of the memory, during a window",  # θ_buf
                                           lambda: tools.fresh(self.net.classes).eval()))
        self.updates = 0  # exemplars that came since it was made
        self.hold("updates")

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.renew()

    def renew(self) -> None:
        """θ_buf anew. Other classes are none of its business, as old tasks are none in the paper."""
        store, o = self.memory.store, self.choice
        with self.tools.timed("select"):
            model, self.updates = self.model.renew(), 0
            slots = torch.isin(store.labels, torch.tensor(self.current)).nonzero().flatten()
            if len(slots):
                fit_proxy(model, lambda at: self.tools.view(store.images[slots[at]]),
                          store.labels[slots].to(self.tools.device), steps=o.proxy_steps, lr=o.proxy_lr, batch=BATCH)

    def due(self) -> float:
        """New exemplars after which θ_buf is made anew: a part of the room that the window's classes have."""
        filler = self.memory.filler
        room = filler.room_of(self.current) if isinstance(filler, BalancedReservoir) else \
            filler.capacity * len(self.current) / len(self.seen)
        return max(room / self.choice.selection_steps, 1.0)

    def after_step(self, batch: Batch) -> None:
        logits = batch.notes["logits"]  # before the step, as they are stored
        with torch.no_grad(), self.tools.timed("select"):
            found = reducible(logits.float(), self.model.logits(batch.x).float(), batch.labels, self.choice.mse)
        self.updates += self.memory.offer(batch, shares=shares_of(found).cpu(), logits=self.rounded(logits))
        if self.updates >= self.due():
            self.renew()

    def end_task(self, task: Task) -> None:
        super().end_task(task)
        self.model.drop()
