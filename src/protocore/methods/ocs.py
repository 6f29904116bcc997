"""OCS: online coreset selection by gradients (Yoon et al., ICLR 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocore.config import Options, option
from protocore.methods.base import Batch
from protocore.methods.parts.gradients import along, cosines, gram_rows, mean_gradient, norms, residuals
from protocore.methods.parts.picking import Picking


@dataclass(frozen=True)
class OCSOptions(Options):
    """The published batch is 10 picked of 20, a half; the published memories are 83 to 200 exemplars."""

    kappa: float = option(0.5, "share κ of each current batch that is learned from (published: 10 of 20)",
                          above=0, most=1)
    tau: float = option(1000.0, "weight τ of the affinity to the memory", least=0)
    ref: float = option(1.0, "weight of the replay loss (published: 0.1 to 10)", least=0)
    warmup: int = option(100, "first steps of a task, in its first pass, in which chance picks", least=0)
    reference: int = option(200, "exemplars, drawn anew in each step, whose mean gradient stands for the memory "
                            "(0: all of them)", least=0)
    candidates: int = option(1000, "at most so many of the last picks, by chance, are ranked for the memory "
                             "(published: 250; 0: all)", least=0)
    rank: str = option("score", "order of the candidates for the memory: by score, or by chance as in the released "
                       "code", choices=("score", "random"))
    diversity: str = option("others", "V averages over the other samples, or over all as in the released code",
                            choices=("others", "all"))


def similarity_and_diversity(rows: Iterable[Tensor], squares: Tensor, *,
                             leave_one_out: bool = True) -> tuple[Tensor, Tensor]:
    """S(n) = cos(g_n, ḡ) and V(n) = -mean over p ≠ n of cos(g_n, g_p), from the Gram matrix.

    `rows` are its rows in one or several blocks, `squares` its diagonal |g_n|². Without `leave_one_out` V is the
    mean over all samples, n itself included.
    """
    length, n = squares.sqrt(), len(squares)
    to_mean, pairs, start = [], [], 0
    for block in rows:
        to_mean.append(block.mean(1))
        pairs.append(cosines(block, length[start : start + len(block), None], length).sum(1))
        start += len(block)
    dots, total = torch.cat(to_mean), torch.cat(pairs)
    similarity = cosines(dots, length, dots.mean().clamp(min=0).sqrt())
    if not leave_one_out:
        return similarity, -total / n
    return similarity, -(total - cosines(squares, length, length)) / max(n - 1, 1)


def affinity(r: Tensor, h: Tensor, past: Tensor) -> Tensor:
    """A(n) = cos(g_n, g_C), g_C (C, D) the mean gradient of the memory."""
    return cosines(along(r, h, past), norms(r, h), past.norm())


def scores(r: Tensor, h: Tensor, past: Tensor | None = None, tau: float = 1000.0, *,
           leave_one_out: bool = True, block: int = 1024) -> Tensor:
    """S + V, and + τA where there is a past, of gradients r ⊗ h."""
    s, v = similarity_and_diversity(gram_rows(r, h, block), norms(r, h).square(), leave_one_out=leave_one_out)
    return s + v if past is None else s + v + tau * affinity(r, h, past)


class OCS(Picking):
    """Learns from the part of each batch, and keeps the exemplars, whose gradients are representative of the batch,
    diverse, and in accord with the memory's."""

    name = "ocs"
    paper = "Yoon et al. 2022, Online Coreset Selection for Rehearsal-based Continual Learning"
    checks = "oracles of S, V, A; Gram matrix against explicit gradients; digits end to end"
    Options = OCSOptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = {"paper": {"optimizer": "sgd", "lr": 0.1275, "momentum": 0.8, "epochs": 2, "batch": 20,
                                   "replay_batch": 10, "augment": "none", "ref": 0.5, "candidates": 250,
                                   "reference": 0, "tau": 1000.0}}

    options: OCSOptions

    def warming_up(self, batch: Batch) -> bool:
        """The first steps of a task. Windows of an online stream are no tasks: there, only of the very first one."""
        early = batch.first_pass and self.steps < self.options.warmup
        return early and not (self.tools.settings.online and len(self.store))

    def choose(self, h: Tensor, labels: Tensor, theta: Tensor, count: int) -> Tensor:
        n = self.options.reference or len(self.store)
        slots = torch.randperm(len(self.store))[:n]
        return self.score(h, labels, theta, slots).topk(count).indices

    def ranked(self, h: Tensor, labels: Tensor, theta: Tensor, keep: int) -> Tensor:
        if self.options.rank == "random":
            return torch.randperm(len(labels))
        everything = torch.arange(len(self.store))
        return self.score(h, labels, theta, everything).argsort(descending=True, stable=True)

    def ranked_old(self, h: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
        return self.score(h, labels, theta, torch.empty(0, dtype=torch.int64)).argsort(descending=True, stable=True)

    def score(self, h: Tensor, labels: Tensor, theta: Tensor, slots: Tensor) -> Tensor:
        """The score against these exemplars; where there are none, without the affinity."""
        past = None
        if len(slots):
            memory, _ = self.of_memory(slots)
            past = mean_gradient(residuals(memory @ theta.T, self.store.labels[slots].to(h.device)), memory)
        return scores(residuals(h @ theta.T, labels), h, past, self.options.tau,
                      leave_one_out=self.options.diversity == "others")
