"""What condensed exemplars should match: filtered class means, or centres of a class's features."""

from __future__ import annotations

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


def believed(labels: Tensor, correct: Tensor) -> Tensor:
    """Rows that count for their class: the correctly classified ones, or all of a class that has none."""
    hopeless = torch.ones(int(labels.max()) + 1, dtype=torch.bool, device=labels.device)
    hopeless[labels[correct]] = False
    return correct | hopeless[labels]


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


def make_targets(z: Tensor, labels: Tensor, classes: list[int], per_class: int, keep: Tensor) -> Targets:
    """`per_class` centres of each class over the rows in `keep`: its mean, or the centres of a clustering.

    A class of fewer such rows has fewer centres.
    """
    features, targets, nearest, members = [], [], [], []
    for label in classes:
        rows = ((labels == label) & keep).nonzero().flatten()
        of_class = z[rows]
        k = min(per_class, len(rows))
        group = k_means(F.normalize(of_class, dim=1), k) if k > 1 else torch.zeros_like(rows)
        for g in range(int(group.max()) + 1):
            inside = rows[group == g]
            centre = z[inside].mean(0)
            gap = (F.normalize(z[inside], dim=1) - F.normalize(centre, dim=0)).square().sum(1)
            member = torch.zeros(len(z), dtype=torch.bool, device=z.device)
            member[inside] = True
            features.append(centre)
            targets.append(label)
            nearest.append(inside[gap.argmin()])
            members.append(member)
    return Targets(torch.stack(features), torch.tensor(targets, device=z.device), torch.stack(nearest),
                   torch.stack(members))
