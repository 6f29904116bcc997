"""The vote of the nearest exemplars: those that a network knows by heart still lie where their class is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protocore.backbones import Network
from protocore.methods.parts.means import OfFeatures

LEAST = 1e-4  # of a class's share in the vote: the head may still choose a class that no exemplar is near to


def vote(z: Tensor, features: Tensor, labels: Tensor, outputs: int, tau: float) -> Tensor:
    """Each class's share (N, outputs) in a vote of exemplars that count exp(cosine / tau): a soft nearest neighbour."""
    closeness = F.normalize(z.float(), dim=1) @ F.normalize(features.float(), dim=1).T / tau
    return closeness.softmax(1) @ F.one_hot(labels, outputs).to(closeness.dtype)


class HeadAndNeighbours(OfFeatures):
    """Scores of images: the logarithms of what the head and the vote of exemplars say, added up."""

    exemplars: Tensor
    labels: Tensor

    def __init__(self, net: Network, features: Tensor, labels: Tensor, temperature: float, tau: float) -> None:
        super().__init__(net)
        self.temperature, self.tau = temperature, tau
        self.register_buffer("exemplars", features)
        self.register_buffer("labels", labels)

    def logits(self, z: Tensor) -> Tensor:
        logits = self.net.logits(z)
        with torch.autocast(z.device.type, enabled=False):  # shares near 0 need all their digits
            share = vote(z, self.exemplars, self.labels, logits.shape[1], self.tau)
            return logits.float() / self.temperature + (share + LEAST).log()
