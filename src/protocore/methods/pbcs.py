"""PBCS: a coreset drawn with learned probabilities, trained by policy gradient (Zhou et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import Options, option
from protocore.errors import UserError
from protocore.methods.base import Tools
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.selection import quota, rank_in_class
from protocore.methods.pbcs_problems import fit_masks, mean_losses, probabilities, repaired

DIVERGED = 9.0  # an inner problem that ends above this loss counts for nothing; its mask is drawn anew


@dataclass(frozen=True)
class PBCSOptions(Options):
    """The outer problem (probabilities), the inner one (a classifier on each drawn mask), and the candidates."""

    outer_steps: int = option(200, "steps T of the probabilities", least=1)
    outer_lr: float = option(0.05, "learning rate of the probabilities (adam, falling along a cosine)", above=0)
    masks: int = option(5, "masks M drawn at each step", least=1)
    estimator: str = option("vr", "gradient estimate: losses less their mean (vr), or as they are (plain)",
                            choices=("vr", "plain"))
    clip: float = option(3.0, "longest gradient of the probabilities", above=0)
    start: float = option(0.5, "size of the coreset at the start, as a share of its final size", above=0, most=1)
    inner_steps: int = option(30, "steps E of a classifier on the features of a drawn mask", least=1)
    inner_lr: float = option(0.05, "learning rate of these classifiers (adam, falling along a cosine)", above=0)
    candidates: int = option(1000, "samples of a task that are looked at, drawn at random", least=1)
    draws: int = option(5, "masks drawn in the end, of which the best one is kept", least=1)
    balance: str = option("auto", "on: all classes have equal room; off: a task has its share, whatever its classes; "
                          "auto: on with --spc, --online or --blurry", choices=("auto", "on", "off"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator == "vr" and self.masks < 2:
            raise UserError(f"--masks {self.masks} must be at least 2 with --estimator vr")


class PBCS(Coreset):
    """Which samples to keep, so that a classifier trained on them alone does best on all of the task."""

    name = "pbcs"
    paper = "Zhou et al. 2022, Probabilistic Bilevel Coreset Selection"
    Options = PBCSOptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = {
        # The selection is the released command for data summaries. There is none for continual learning: the training
        # is that of its published reruns beside experience replay.
        "paper": {"optimizer": "sgd", "lr": 0.1, "batch": 32, "replay_batch": 32, "outer_steps": 2000,
                  "inner_steps": 300, "inner_lr": 5e-3, "draws": 1},
        # A tenth of the outer and of the inner steps, the latter ten times as long.
        "cpu": {"outer_steps": 200, "inner_steps": 30, "inner_lr": 0.05},
    }
    checks = "oracles of the paper's formulas; digits end to end"

    options: PBCSOptions

    def __init__(self, tools: Tools, options: PBCSOptions) -> None:
        super().__init__(tools, options)
        s = tools.settings
        self.balanced = options.balance == "on" or (
            options.balance == "auto" and (s.spc is not None or s.online or s.blurry > 0))

    def select(self, pool: Pool, room: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        o = self.options
        classes, labels = pool.labels.unique(return_inverse=True)
        kinds = labels if self.balanced else torch.zeros_like(labels)
        room = room[classes] if self.balanced else room[classes].sum()[None]
        if bool((kinds.bincount() <= room).all()):
            return torch.randperm(len(pool)), {}
        # Candidates at random, but of every kind as many as there is room for.
        order = torch.randperm(len(pool))
        extra = rank_in_class(kinds[order]) >= room[kinds[order]]
        rows = order[extra.long().argsort(stable=True)][: max(o.candidates, 2 * int(room.sum()))]
        kinds, y = kinds[rows], labels[rows].to(self.tools.device)
        z = self.features(pool, rows)

        def loss_of(masks: Tensor) -> Tensor:
            theta, inner = fit_masks(z, y, masks.to(z), len(classes), steps=o.inner_steps, lr=o.inner_lr)
            return torch.where(inner <= DIVERGED, mean_losses(z, y, theta), torch.nan).cpu()

        s = probabilities(loss_of, kinds, room, o, lambda done, of: self.tools.progress("selecting", done, of))
        drawn = [repaired((torch.rand(len(s)) < s).to(s), s, kinds, room) for _ in range(o.draws)]
        if len(drawn) > 1:
            masks = torch.stack([torch.zeros_like(s).index_fill(0, picked, 1.0) for picked in drawn])
            drawn = [drawn[int(loss_of(masks).nan_to_num(torch.inf).argmin())]]
        return rows[drawn[0][s[drawn[0]].argsort(descending=True, stable=True)]], {}

    @torch.no_grad()
    def features(self, pool: Pool, rows: Tensor) -> Tensor:
        """Centred and scaled to a mean square norm of 1, and a column of ones for the bias."""
        z = torch.cat([self.net.features(x).float() for _, x, _ in pool.batches(rows=rows)])
        z = z - z.mean(0)
        z = z / z.square().sum(1).mean().sqrt().clamp(min=1e-12)
        return torch.cat([z, z.new_ones(len(z), 1)], 1)

    def shrink(self, others: Tensor, room: Tensor) -> Tensor:
        """The most probable of each class; without --balance its share of the memory stays what it was."""
        if self.balanced:
            return super().shrink(others, room)
        labels = self.store.labels[others]
        counts = labels.bincount()
        left = quota(min(int(room[labels.unique()].sum()), len(others)), counts)
        return others[rank_in_class(labels) < left[labels]]
