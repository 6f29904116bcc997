"""What condensed exemplars should match: filtered class means, or centres of a class's features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Targets:
    """One row an exemplar: the feature to match, its class, and the sample nearest to it."""

    features: Tensor  # (m, d)
    labels: Tensor  # (m,)
    nearest: Tensor  # (m,) rows of the features that were given
    members: Tensor  # (m, n) bool: the samples that each centre stands for


def believed(labels: Tensor, correct: Tensor, least: int | Tensor = 1) -> Tensor:
    """Rows that count for their class: the correctly classified ones, or all of a class that has fewer than `least`
    (a number, or one for each label).

    Where the memory has room for more exemplars than a class has correct samples, leaving it empty would be worse.
    """
    counts = torch.bincount(labels[correct], minlength=int(labels.max()) + 1)
    return correct | (counts < (least[: len(counts)].to(counts) if isinstance(least, Tensor) else least))[labels]


def k_means(points: Tensor, k: int, iterations: int = 20) -> Tensor:
    """Which of k groups each point belongs to; groups are numbered from the largest to the smallest."""
    chosen = torch.randint(len(points), (1,)).to(points.device)
    distance = (points - points[chosen]).square().sum(1)
    for _ in range(k - 1):  # k-means++: the next start is drawn by squared distance to those there are
        weights = distance.clamp(min=0).cpu() + 1e-12
        chosen = torch.cat([chosen, torch.multinomial(weights, 1).to(points.device)])
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1))
    centres = points[chosen]
    group = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for _ in range(iterations):
        group = torch.cdist(points, centres).argmin(1)
        member = F.one_hot(group, k).to(points.dtype)
        count = member.sum(0)
        centres = torch.where((count > 0)[:, None], member.T @ points / count.clamp(min=1)[:, None], centres)
    rank = torch.argsort(torch.bincount(group, minlength=k), descending=True, stable=True)
    return torch.argsort(rank)[group]


def make_targets(z: Tensor, labels: Tensor, classes: list[int], room: int | Tensor, keep: Tensor,
                 blend: int = 1) -> Targets:
    """`room` centres of each class (a number, or one for each label) over the rows in `keep`: its mean, or the centres
    of a clustering.

    Each centre is the mean of `blend` samples or more, so a class of n rows has at most n // blend centres, and none
    if it has fewer rows: a mean of few samples would give them away.
    """
    features, targets, nearest, members = [z[:0]], [], [], []
    for label in classes:
        rows = ((labels == label) & keep).nonzero().flatten()
        unit = F.normalize(z[rows], dim=1)
        k = min(int(room[label]) if isinstance(room, Tensor) else room, len(rows) // blend)
        if not k:
            continue
        group = k_means(unit, k) if k > 1 else torch.zeros_like(rows)
        for g in range(int(group.max()) + 1):
            inside = rows[group == g]
            if len(inside) < blend:  # its nearest neighbours join in
                away = (unit - F.normalize(z[inside].mean(0), dim=0)).square().sum(1)
                inside = rows[away.argsort()[:blend]]
            centre = z[inside].mean(0)
            gap = (F.normalize(z[inside], dim=1) - F.normalize(centre, dim=0)).square().sum(1)
            member = torch.zeros(len(z), dtype=torch.bool, device=z.device)
            member[inside] = True
            features.append(centre[None])
            targets.append(label)
            nearest.append(inside[gap.argmin()])
            members.append(member[None])
    return Targets(torch.cat(features), torch.tensor(targets, dtype=torch.int64, device=z.device),
                   torch.tensor(nearest, dtype=torch.int64, device=z.device),
                   torch.cat([torch.zeros(0, len(z), dtype=torch.bool, device=z.device), *members]))


@torch.no_grad()
def layer_goals(maps: Callable[[Tensor], Tensor], images_of: Callable[[Tensor], Tensor], targets: Targets, *,
                of_sample: bool) -> Tensor:
    """What `maps` give for the samples that each exemplar stands for: their mean, or that of the nearest one alone."""
    if of_sample:
        return maps(images_of(targets.nearest))
    members = targets.members.float()
    parts = torch.arange(members.shape[1], device=members.device).split(256)
    total = sum((members[:, rows] @ maps(images_of(rows)) for rows in parts), torch.zeros(()).to(members))
    return total / members.sum(1, keepdim=True)
