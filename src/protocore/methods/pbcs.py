"""PBCS: a coreset drawn with learned probabilities, trained by policy gradient (Zhou et al., ICML 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import Options, option
from protocore.errors import UserError
from protocore.methods.base import Tools
from protocore.methods.parts.coreset import Coreset, Pool
from protocore.methods.parts.selection import best, quota, rank_in_class
from protocore.methods.parts.simplex import project_capped_simplex

DIVERGED = 9.0  # an inner problem that ends above this loss counts for nothing; its mask is drawn anew
TRIES = 5


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


# -- the outer problem: min over s of E L(θ*(m)), m_i ~ Bernoulli(s_i), 0 <= s <= 1, Σ s <= K ---------------------


def score(masks: Tensor, s: Tensor) -> Tensor:
    """∇_s log p(m|s) = (m - s) / (s (1 - s)), and 0 where s is 0 or 1 and m can be nothing else."""
    variance = s * (1 - s)
    return torch.where(variance > 0, (masks - s) / variance, 0.0)


def policy_gradient(losses: Tensor, masks: Tensor, s: Tensor, estimator: str = "vr") -> Tensor:
    """The gradient of E L: Σ_j (L_j - L̄) ∇ log p(m_j|s) / (M - 1) ("vr"), or the mean of L_j ∇ log p(m_j|s)."""
    count, reduced = len(losses), int(estimator == "vr")
    return (losses - reduced * losses.mean()) @ score(masks, s) / max(count - reduced, 1)


def clipped(gradient: Tensor, longest: float) -> Tensor:
    """The gradient, shortened to this length where it is longer: where s is small, a pick has a score of 1/s."""
    return gradient * (longest / gradient.norm().clamp(min=longest))


def size_at(step: int, steps: int, start: float, final: float) -> float:
    """K of a step: `start` up to 16 % of the steps, `final` from 60 % on, a cubic between them."""
    done = min(max((step - 0.16 * steps) / (0.44 * steps), 0.0), 1.0)
    return final + (start - final) * (1 - done) ** 3


def cosine(step: int, steps: int) -> float:
    """The factor of a learning rate."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def sampled(s: Tensor, count: int, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Masks and the loss of each: where it is NaN the mask is drawn anew, a few times, then left out with it."""
    masks = (torch.rand(count, len(s)) < s).to(s)
    losses = loss_of(masks)
    for _ in range(TRIES):
        bad = losses.isnan()
        if not bool(bad.any()):
            break
        masks[bad] = (torch.rand(int(bad.sum()), len(s)) < s).to(s)
        losses[bad] = loss_of(masks[bad])
    return masks[~losses.isnan()], losses[~losses.isnan()]


def probabilities(loss_of: Callable[[Tensor], Tensor], kinds: Tensor, room: Tensor, o: PBCSOptions,
                  tell: Callable[[int, int], object] | None = None) -> Tensor:
    """s of each candidate, (n,); of kind k the coreset has `room[k]`. `loss_of` masks (M, n) is L(θ*(m)), (M,)."""
    first = o.start * room
    s = (first / kinds.bincount(minlength=len(room)).clamp(min=1))[kinds].clamp(max=1)
    adam = torch.optim.Adam([s], lr=o.outer_lr)
    of_kind = [(kinds == k).nonzero().flatten() for k in range(len(room))]
    for step in range(o.outer_steps):
        masks, losses = sampled(s, o.masks, loss_of)
        if len(losses) >= (2 if o.estimator == "vr" else 1):
            s.grad = clipped(policy_gradient(losses, masks, s, o.estimator), o.clip)
            adam.param_groups[0]["lr"] = o.outer_lr * cosine(step, o.outer_steps)
            adam.step()
        for k, at in enumerate(of_kind):
            s[at] = project_capped_simplex(s[at], size_at(step, o.outer_steps, float(first[k]), float(room[k])))
        if tell:
            tell(step + 1, o.outer_steps)
    return s


def repaired(mask: Tensor, s: Tensor, kinds: Tensor, room: Tensor) -> Tensor:
    """Candidates of exactly the right number: of those picked the most probable, then the most probable others."""
    return best(mask * 2 + s, kinds, room, len(mask))


# -- the inner problem: softmax regression on frozen features, for all masks at once ------------------------------


@torch.no_grad()
def fit_masks(z: Tensor, labels: Tensor, masks: Tensor, classes: int, *, steps: int,
              lr: float) -> tuple[Tensor, Tensor]:
    """θ*(m) of each mask, (M, d, classes), and its loss: `steps` full-batch steps of Adam from 0 on Σ m_i l_i / Σ m.

    Only picked samples are computed. An empty mask leaves θ at 0, and its loss is 0.
    """
    counts = masks.sum(1)
    most = max(int(counts.max()), 1)
    picked = torch.argsort(masks, dim=1, descending=True, stable=True)[:, :most]
    weight = (masks.gather(1, picked) / counts.clamp(min=1)[:, None])[..., None]
    x, y = z[picked], F.one_hot(labels[picked], classes).to(z) * weight
    theta = z.new_zeros(len(masks), z.shape[1], classes)
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for step in range(steps):  # Adam by hand: an optimiser object costs as much as the small products here
        gradient = x.mT @ ((x @ theta).softmax(2) * weight - y)
        m.lerp_(gradient, 0.1)
        v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        scale = (v / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
        theta.addcdiv_(m, scale, value=-lr * cosine(step, steps) / (1 - 0.9 ** (step + 1)))
    return theta, -((x @ theta).log_softmax(2) * y).sum((1, 2))


@torch.no_grad()
def mean_losses(z: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
    """L(θ): the mean cross entropy over all samples for each classifier, (M,)."""
    return F.cross_entropy((z @ theta).mT, labels.expand(len(theta), -1), reduction="none").mean(1)


class PBCS(Coreset):
    """Which samples to keep, so that a classifier trained on them alone does best on all of the task."""

    name = "pbcs"
    paper = "Zhou et al. 2022, Probabilistic Bilevel Coreset Selection"
    class_bytes = 61_462
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
