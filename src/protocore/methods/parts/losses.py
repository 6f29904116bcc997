"""Losses as pure functions: tensors in, a scalar out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """torch's, where a logit of -inf takes a class out of the competition: smoothing is shared by the others."""
    if not label_smoothing or not bool(logits.isneginf().any()):
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction=reduction)
    there, logs = ~logits.isneginf(), F.log_softmax(logits, dim=1)
    even = logs.masked_fill(~there, 0).sum(1) / there.sum(1)
    losses = -(1 - label_smoothing) * logs.gather(1, labels[:, None])[:, 0] - label_smoothing * even
    return losses.mean() if reduction == "mean" else losses


def masked_cross_entropy(logits: Tensor, labels: Tensor, classes: Tensor, temperature: float = 1.0,
                         label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy over a part of the classes only: the other logits get no gradient."""
    position = torch.full((logits.shape[1],), -1, device=logits.device)
    position[classes] = torch.arange(len(classes), device=logits.device)
    return F.cross_entropy(logits[:, classes] / temperature, position[labels], label_smoothing=label_smoothing)


def sum_of_means(losses: Tensor, tasks: Tensor) -> Tensor:
    """Σ over tasks of the mean loss of the task's exemplars."""
    return (losses / tasks.bincount()[tasks]).sum()


def distillation(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross entropy of softened outputs, mean over the batch, without the factor τ² (Hinton; LwF): both (N, C)."""
    return F.cross_entropy(logits / temperature, F.softmax(teacher.detach() / temperature, dim=1))


def prototype_distances(z: Tensor, prototypes: Tensor) -> Tensor:
    """Squared distances of L2-normalised features and prototypes, (N, P): 2 - 2·cosine."""
    return 2 - 2 * F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T


def prototype_loss(z: Tensor, labels: Tensor, prototypes: Tensor, prototype_labels: Tensor, *,
                   temperature: float, own_in_denominator: bool) -> Tensor:
    """-log of exp(-d_own/τ) over the sum of exp(-d/τ): L_cur_pro and L_pre_pro of the paper (eq. 5, 6).

    The paper prints the ratio itself, to be minimised, which would push samples off their class; the minus
    logarithm is meant. "Contrastive" sums over the other classes only, "prototypical" over all of them.
    A sample whose class has no prototype yet is left out; with no other class to hold against, the
    contrastive form is the pull to the own prototype alone.
    """
    closeness = -prototype_distances(z, prototypes) / temperature
    own = labels[:, None] == prototype_labels[None, :]
    has_own = own.any(1)
    if not bool(has_own.any()):
        return z.sum() * 0
    closeness, own = closeness[has_own], own[has_own]
    pull = closeness.masked_fill(~own, 0).sum(1)
    others = closeness if own_in_denominator else closeness.masked_fill(own, float("-inf"))
    if others.shape[1] - int(not own_in_denominator) < 1:
        return -pull.mean()
    return (torch.logsumexp(others, 1) - pull).mean()


RADIUS = "one number for all classes, the spread of their features"  # what stays of a class in it


def radius(z: Tensor, labels: Tensor) -> Tensor:
    """√ of the mean over classes of trace(Cov_c)/d, as in PASS: one scalar for all classes and dimensions."""
    classes, counts = labels.unique(return_counts=True)
    spread = [z[labels == c].var(0).mean() for c in classes[counts > 1]]
    return torch.stack(spread).mean().sqrt() if spread else torch.zeros((), device=z.device)


def class_means(z: Tensor, labels: Tensor, classes: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean feature of each class over the rows in `keep`, (C, d), and how many rows there were, (C,)."""
    member = (labels[None, :] == classes[:, None]).to(z.dtype)
    if keep is not None:
        member = member * keep.to(z.dtype)
    count = member.sum(1)
    return member @ z / count.clamp(min=1)[:, None], count


def mixed_prototypes(z: Tensor, labels: Tensor, old: Tensor, old_labels: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Prototypes and their classes: batch means of the classes at hand, and the old ones of the others.

    A class that is both keeps β of the old one (the paper's prototype of a returning class).
    """
    old, old_labels, present = old.to(z.device), old_labels.to(z.device), labels.unique()
    means, _ = class_means(z, labels, present)
    same = present[:, None] == old_labels[None, :]
    mixed = beta * (same.to(z.dtype) @ old) + (1 - beta) * means
    means = torch.where(same.any(1, keepdim=True), mixed, means)
    stays = ~same.any(0)
    return torch.cat([old[stays], means]), torch.cat([old_labels[stays], present])


def icarl_targets(labels: Tensor, outputs: int, old: Tensor, teacher: Tensor | None) -> Tensor:
    """What each sigmoid is to say, (N, outputs): the label's one-hot, and for `old` classes what the teacher says.

    The teacher's word counts for exemplars too: for an image of an old class the label itself is not used.
    """
    targets = F.one_hot(labels, outputs).to(torch.float32)
    if teacher is not None:
        targets[:, old] = teacher[:, old].sigmoid().to(targets)
    return targets


def icarl_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy, the mean over the batch and over all outputs."""
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


def icarl_fair_loss(logits: Tensor, targets: Tensor, raw: Tensor, old: Tensor) -> Tensor:
    """The same where the first rows may look raw: these say nothing for or against new classes as such.

    They keep the teacher's word on old classes, and their new classes compete among themselves (a softmax, as large as
    the sigmoids that it stands for). `raw` is a bool of each of the first rows.
    """
    logits, apart = logits.float(), torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    apart[: len(raw)] = raw.to(logits.device)
    new = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    new[old] = False
    counts = ~(apart[:, None] & new)
    loss = (F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * counts).mean()
    if bool(apart.any()):
        own = F.cross_entropy(logits[apart][:, new], targets[apart][:, new].argmax(1), reduction="sum")
        loss = loss + own / logits.numel()
    return loss
