"""BCSR: bilevel coreset selection with a smoothed top-K regulariser (Hao et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.config import Options, option
from protocore.methods.base import Batch
from protocore.methods.parts.gradients import along, curvature, hessian_vector, mean_gradient, residuals
from protocore.methods.parts.picking import Picking
from protocore.methods.parts.simplex import project_simplex


@dataclass(frozen=True)
class BCSROptions(Options):
    """The inner model is the last layer on frozen features. Both step sizes are free of units, see their help."""

    kappa: float = option(0.5, "share of each current batch that is learned from (published: 10 of 50)",
                          above=0, most=1)
    ref: float = option(1.0, "weight of the replay loss (published: 0.1)", least=0)
    candidates: int = option(1000, "at most so many of the last picks, by chance, compete for the memory (0: all)",
                             least=0)
    outer: int = option(5, "J: steps of the weights w", least=1)
    inner: int = option(1, "N: steps of the last layer before each of them", least=0)
    terms: int = option(3, "Q: terms of the Neumann series after the first", least=0)
    proxy_lr: float = option(1.0, "step η of the last layer and of the series, in units of 1 / its largest curvature",
                             above=0, below=2)
    weight_lr: float = option(5.0, "step of the weights, in units of 1 / number of candidates", least=0)
    beta: float = option(0.1, "weight λ of the top-K regulariser (0: off, as in effect in the released code)", least=0)
    delta: float = option(1e-3, "δ: noise that smooths the top K", least=0)
    noise: int = option(64, "draws of that noise for each step (published: 1)", least=1)
    draw: str = option("sample", "how K are taken: drawn with probabilities w, or the largest w",
                       choices=("sample", "top"))
    form: str = option("formulas", "the bilevel problem as written, or as in the released code: inner weights w/n, "
                       "outer ones softmax(w)/n, series without η, no regulariser", choices=("formulas", "released"))


def neumann(hvp: Callable[[Tensor], Tensor], g: Tensor, eta: float, terms: int) -> Tensor:
    """v = η Σ_{q=0..Q} (I - ηH)^q g, which tends to H⁻¹g."""
    total = g
    for _ in range(terms):
        g = g - eta * hvp(g)
        total = total + g
    return eta * total


def noisy_top(w: Tensor, k: int, delta: float, noise: Tensor) -> Tensor:
    """P(i is among the K largest of w + δz), estimated from rows z of `noise` (m, n): -∂R/∂w."""
    top = (w + delta * noise).topk(min(k, len(w)), dim=1).indices
    return torch.zeros_like(noise).scatter_(1, top, 1.0).mean(0)


def top_k_regulariser(w: Tensor, k: int, delta: float, noise: Tensor) -> Tensor:
    """R(w) = -E of the sum of the K largest entries of w + δz, over the rows z of `noise`."""
    return -(w + delta * noise).topk(min(k, len(w)), dim=1).values.sum(1).mean()


def hypergradient(h: Tensor, labels: Tensor, theta: Tensor, w: Tensor, eta: float, terms: int,
                  outer: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """dL(θ*(w))/dw_i = -⟨∇l_i, v⟩, v the Neumann series of H⁻¹∇L, at a last layer θ that fits Σ w_i l_i.

    L is the mean loss of the candidates, or of `outer` (inputs, labels).
    """
    logits, (outer_h, outer_labels) = h @ theta.T, outer or (h, labels)
    p, aim = F.softmax(logits, 1), mean_gradient(residuals(outer_h @ theta.T, outer_labels), outer_h)
    v = neumann(lambda v: hessian_vector(p, h, w, v), aim, eta, terms)
    return -along(residuals(logits, labels), h, v)


def coreset_weights(h: Tensor, labels: Tensor, theta: Tensor, k: int, options: BCSROptions,
                    outer: tuple[Tensor, Tensor] | None = None,
                    told: Callable[[int], None] = lambda done: None) -> Tensor:
    """The weights w of the candidates, inputs h of a last layer that starts as θ, on the simplex."""
    o, n = options, len(labels)
    w = torch.full((n,), 1 / n, dtype=h.dtype, device=h.device)
    for step in range(o.outer):
        soft = F.softmax(w, 0)
        inside, outside = (w, w) if o.form == "formulas" else (w / n, soft / n)
        for _ in range(o.inner):
            theta = theta - o.proxy_lr / bound(h, inside) * (inside[:, None] * residuals(h @ theta.T, labels)).T @ h
        eta = o.proxy_lr / bound(h, outside)
        slope = hypergradient(h, labels, theta, outside, eta, o.terms, outer)
        if o.form == "formulas":
            noise = torch.randn(o.noise, n).to(w)
            move = (slope - o.beta * noisy_top(w, k, o.delta, noise)) / n
        else:  # through the softmax, and without the series' factor η
            move = soft * (slope - (soft * slope).sum()) / (n * eta)
        w = project_simplex(w - o.weight_lr * move)
        told(step + 1)
    return w


def bound(h: Tensor, w: Tensor) -> float:
    return max(float(curvature(h, w)), 1e-12)  # all features may be zero


def weighted_order(w: Tensor) -> Tensor:
    """A random order: one after the other without replacement, with probabilities w; those of weight 0 come last."""
    chance = torch.empty(len(w), dtype=torch.float64).exponential_()
    return (chance / w.cpu().double().clamp(min=1e-12)).argsort()


class BCSR(Picking):
    """Learns from the part of each batch, and keeps the exemplars, that carry the weight in a bilevel problem: a last
    layer trained on the weighted candidates shall do well on all of them."""

    name = "bcsr"
    paper = "Hao et al. 2023, Bilevel Coreset Selection in Continual Learning: A New Formulation and Algorithm"
    checks = "oracles of hypergradient and projection, label noise, closed form against autograd; digits end to end"
    Options = BCSROptions
    defaults: ClassVar = {"spc": 20}
    presets: ClassVar = {"paper": {"optimizer": "sgd", "lr": 0.15, "momentum": 0.8, "epochs": 5, "batch": 50,
                                   "replay_batch": 10, "augment": "none", "kappa": 0.2, "ref": 0.1}}

    options: BCSROptions

    def warming_up(self, batch: Batch) -> bool:
        """The first task up to its last pass, later ones in their first; never in an online stream's single pass."""
        return batch.first_pass and not self.tools.settings.online if len(self.store) else not self.last_pass

    def choose(self, h: Tensor, labels: Tensor, theta: Tensor, count: int) -> Tensor:
        return self._order(coreset_weights(h, labels, theta, count, self.options))[:count]

    def ranked(self, h: Tensor, labels: Tensor, theta: Tensor, keep: int) -> Tensor:
        w = coreset_weights(h, labels, theta, keep, self.options,
                            told=lambda done: self.tools.progress("selecting", done, self.options.outer))
        return self._order(w)

    def ranked_old(self, h: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
        return F.cross_entropy(h @ theta.T, labels, reduction="none").argsort(stable=True)

    def _order(self, w: Tensor) -> Tensor:
        return weighted_order(w) if self.options.draw == "sample" else w.argsort(descending=True, stable=True)
