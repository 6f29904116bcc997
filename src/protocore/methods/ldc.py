"""LDC: a linear map from old to new features, fitted on current images, moves old means (Gomez-Villa et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.config import option
from protocore.data.stream import Task
from protocore.methods.parts.drift import Drift, DriftOptions
from protocore.methods.parts.ridge import apply_map, moments, ridge_map


@dataclass(frozen=True)
class LDCOptions(DriftOptions):
    """How the map is fitted."""

    fit: str = option("ridge", "least squares in closed form, held to the identity, or the published projector "
                      "trained by Adam", choices=("ridge", "adam"))
    fit_bias: bool = option(False, "let the map have a bias")
    ridge: float = option(1e-3, "how strongly the map is held to the identity, against the mean square of a feature",
                          least=0)
    ridge_views: int = option(2, "ridge: augmented views of each image", least=1)
    adam_epochs: int = option(20, "adam: passes over the task", least=1)
    adam_lr: float = option(1e-3, "adam: learning rate", least=0)


class LDC(Drift):
    """After each task p_c ← P p_c for old classes; P minimises ‖P f_old(x) - f_new(x)‖² over the task's images."""

    name = "ldc"
    paper = "Gomez-Villa et al. 2024, Exemplar-free Continual Representation Learning via Learnable Drift Compensation"
    Options = LDCOptions
    checks = "recovers, composes and keeps linear maps; digits end to end"

    options: LDCOptions

    def moved(self, task: Task, classes: list[int], z: Tensor) -> Tensor:
        weights = self.closed_form(task) if self.options.fit == "ridge" else self.projector(task)
        return apply_map(weights, self.means.get(classes))

    @torch.no_grad()
    def pairs(self, task: Task, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Old and new features of the same augmented views."""
        for rows in order.split(size):
            x = self.tools.view(self.images(task, rows))
            yield self.previous.features(x), self.net.features(x)

    def closed_form(self, task: Task) -> Tensor:
        gram = cross = torch.zeros(())
        views = self.options.ridge_views
        for done in range(views):
            for old, new in self.pairs(task, torch.arange(len(task)), 256):
                more = moments(old, new, self.options.fit_bias)
                gram, cross = gram + more[0], cross + more[1]
            self.tools.progress("fitting the drift", done + 1, views)
        return ridge_map(gram, cross, self.options.ridge)

    def projector(self, task: Task) -> Tensor:
        o = self.options
        linear = nn.Linear(self.net.dim, self.net.dim, bias=o.fit_bias).to(self.tools.device)
        optimizer = torch.optim.Adam(linear.parameters(), lr=o.adam_lr)
        for done in range(o.adam_epochs):
            for old, new in self.pairs(task, torch.randperm(len(task)), 128):
                optimizer.zero_grad(set_to_none=True)
                F.mse_loss(linear(old), new).backward()
                optimizer.step()
            self.tools.progress("fitting the drift", done + 1, o.adam_epochs)
        weight = linear.weight.detach().cpu().double()
        return weight if linear.bias is None else torch.cat([weight, linear.bias.detach().cpu().double()[:, None]], 1)
