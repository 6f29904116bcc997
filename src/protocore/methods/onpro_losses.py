"""OnPro's mathematics as pure functions: expansion of images, its losses, its feedback from close prototypes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.data.augment import flip, resized_crop
from protocore.methods.parts.losses import class_means

EPS = 1e-8  # inside the logarithms of the instance contrast
LUMA = (0.299, 0.587, 0.114)

# -- images ----------------------------------------------------------------------------------------------------


def expand(images: Tensor, variants: int = 16) -> Tensor:
    """R(x): the first `variants` of 16 rearrangements of each image, (variants·N, C, H, W), variant after variant.

    Nothing, the left half, both halves, the right half turned by 180° in place; each of the four turned as a whole
    by 0°, 180°, 90°, 270°. The quarter turns, from variant 8 on, need square images.
    """
    left, right = images.tensor_split([images.shape[3] // 2], dim=3)
    left_turned, right_turned = left.flip(2, 3), right.flip(2, 3)
    inner = torch.cat([images, torch.cat([left_turned, right], 3), torch.cat([left_turned, right_turned], 3),
                       torch.cat([left, right_turned], 3)])
    turns = (0, 2, 1, 3)[: -(-variants // 4)]
    return torch.cat([inner.rot90(turn, (2, 3)) for turn in turns])[: variants * len(images)]


def expand_labels(labels: Tensor, classes: int, variants: int = 16) -> Tensor:
    """The k-th rearrangement of class y is a class of its own: y + k·classes."""
    return (labels + classes * torch.arange(variants, device=labels.device)[:, None]).flatten()


def grey(images: Tensor, p: float = 0.25) -> Tensor:
    """Each image without its colours with probability p; one without colours stays as it is."""
    if images.shape[1] != len(LUMA):
        return images
    chosen = (torch.rand(len(images)) < p).view(-1, 1, 1, 1).to(images.device)
    light = (images * images.new_tensor(LUMA).view(1, -1, 1, 1)).sum(1, keepdim=True)
    return torch.where(chosen, light, images)


def distort(images: Tensor) -> Tensor:
    """T(x): mirrored, greyed, cropped and resized, each at random."""
    return resized_crop(grey(flip(images)), (0.3, 1.0))


# -- losses ----------------------------------------------------------------------------------------------------


def equilibrium(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """OPE of prototypes from two views, (K, d) each: NT-Xent, where the two of a class are the only positive pair."""
    count = len(first)
    p = F.normalize(torch.cat([first, second]), dim=1)
    closeness = (p @ p.T / temperature).fill_diagonal_(float("-inf"))
    twin = torch.arange(2 * count, device=p.device).roll(count)
    return F.cross_entropy(closeness, twin)


def prototypes_of(first: Tensor, second: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of normalised projections of two views, not normalised again, (K, d) each, and their classes."""
    classes = labels.unique()
    return class_means(first, labels, classes)[0], class_means(second, labels, classes)[0], classes


def similarity(z: Tensor, features: Tensor, begin: int, weight: float) -> Tensor:
    """weight·(z zᵀ + z fᵀ): z are normalised projections, f as many dimensions of the normalised features."""
    part = features[:, begin : begin + z.shape[1]]
    return weight * (z @ (z + part).T)


def instance_new(sim: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """INS of new images, form "n", for 2N rows of which the second N are other views: its two terms.

    The first is -log p of the other view, mean over the rows. The second is twice the mean over the rows of the
    average -log p of all rows with the same label; a row itself counts among them with p = 0, a constant.
    """
    itself = torch.eye(len(sim), dtype=torch.bool, device=sim.device)
    surprise = _surprise(sim, temperature, itself)
    twins = surprise.diagonal(len(sim) // 2).sum() + surprise.diagonal(-(len(sim) // 2)).sum()
    return twins / len(sim), 2 * _same_label(surprise, labels)


def instance_memory(sim: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """INS of replayed images, form "uni": the average -log p of the rows with the same label, the row itself too."""
    return _same_label(_surprise(sim, temperature), labels)


def _surprise(sim: Tensor, temperature: float, without: Tensor | None = None) -> Tensor:
    """-log p, p the softmax of each row; entries in `without` have p = 0. EPS bounds it by -log EPS = 18.42."""
    weight = ((sim - sim.detach().amax(1, keepdim=True)) / temperature).exp()
    if without is not None:
        weight = weight.masked_fill(without, 0)
    return -(weight / (weight.sum(1, keepdim=True) + EPS) + EPS).log()


def _same_label(surprise: Tensor, labels: Tensor) -> Tensor:
    both = labels.repeat(2)
    same = (both[:, None] == both[None, :]).to(surprise.dtype)
    return ((same * surprise).sum(1) / same.sum(1)).mean()


def mixed_cross_entropy(logits: Tensor, first: Tensor, second: Tensor, share: Tensor,
                        label_smoothing: float = 0.0) -> Tensor:
    """(1 - l)·CE(y1) + l·CE(y2), mean over the rows."""
    one, other = (F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)
                  for y in (first, second))
    return ((1 - share) * one + share * other).mean()


# -- feedback (APF) --------------------------------------------------------------------------------------------


class Mixed(NamedTuple):
    """Images (1 - l)·x1 + l·x2 on the device, and y1, y2, l of each, on the CPU."""

    x: Tensor
    first: Tensor
    second: Tensor
    share: Tensor

    def numbers(self) -> Tensor:
        """A whole number for each value of (1 - l)·y1 + l·y2: what the instance contrast takes for the class."""
        value = self.first + self.share.double() * (self.second - self.first)  # exactly y1 where y1 = y2 or l = 0
        return value.unique(return_inverse=True)[1]


def mix(one: Tensor, other: Tensor, share: Tensor) -> Tensor:
    weight = share.view(-1, 1, 1, 1).to(one)
    return (1 - weight) * one + weight * other


def base_shares(count: int, p: float, gate: str, upper: float = 0.6) -> Tensor:
    """l ~ U(0, upper) of each image of ordinary mixup, 0 where it is not mixed.

    Gate "twice" asks p for the batch and again for each image, so that p² of the images are mixed; "once" for each.
    """
    batch = float(torch.rand(())) < p or gate == "once"
    chosen = (torch.rand(count) < p) & batch
    return torch.where(chosen, upper * torch.rand(count), 0.0)


def pair_shares(counts: Tensor, p: float, alpha: float = 0.4) -> Tensor:
    """l ~ Beta(alpha, alpha) of each image of the pairs that are mixed, each pair as a whole with probability p."""
    chosen = (torch.rand(len(counts)) < p).repeat_interleave(counts)
    beta = torch.distributions.Beta(torch.tensor(alpha), torch.tensor(alpha))
    return torch.where(chosen, beta.sample((len(chosen),)), 0.0)


def pair_probabilities(prototypes: Tensor, rule: str) -> Tensor:
    """P(i, j) of the pairs i < j in the order of `triu_indices`: the closer two prototypes, the likelier.

    "inverse" is the softmax of 1/d, "exponential" that of -d.
    """
    d = F.pdist(prototypes).clamp(min=1e-6)
    return (1 / d if rule == "inverse" else -d).softmax(0)


def pair_counts(probabilities: Tensor, total: int) -> Tensor:
    """Whole numbers that add up to `total`: rounded shares, then one more or one less on random pairs."""
    counts = (probabilities * total).round().long()
    missing = total - int(counts.sum())
    pairs = counts.nonzero().flatten() if missing < 0 else torch.arange(len(counts))
    chosen = pairs[torch.randperm(len(pairs))[: abs(missing)]]
    counts[chosen] += 1 if missing > 0 else -1
    return counts


def random_slots(labels: Tensor, wanted: Tensor) -> Tensor:
    """For each wanted class the place of a random one of the labels, drawn with replacement."""
    classes, counts = labels.unique(return_counts=True)
    at = torch.searchsorted(classes, wanted)
    within = (torch.rand(len(wanted), dtype=torch.float64) * counts[at]).long()
    return labels.argsort(stable=True)[(counts.cumsum(0) - counts)[at] + within]
