"""Where training starts: linear paths at the principal components of the patches, codebooks at k-means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocore.codecs.vqgan.network import VQGAN
from protocore.codecs.vqgan.quantiser import search


@torch.no_grad()
def kmeans(vectors: Tensor, codes: int, generator: torch.Generator, rounds: int = 10) -> Tensor:
    """Lloyd's centres; a centre that nothing falls to moves to a random vector."""
    start = torch.randint(len(vectors), (codes,), generator=generator)
    if len(vectors) >= codes:
        start = torch.randperm(len(vectors), generator=generator)[:codes]
    centres = vectors[start].clone()
    for _ in range(rounds):
        index = search(vectors, centres[None])[:, 0]
        hits = torch.bincount(index, minlength=codes)
        centres = torch.zeros_like(centres).index_add_(0, index, vectors) / hits.clamp_min(1)[:, None]
        empty = torch.nonzero(hits == 0)[:, 0]
        centres[empty] = vectors[torch.randint(len(vectors), (len(empty),), generator=generator)]
    return centres


@torch.no_grad()
def initialise(model: VQGAN, images: Sequence[Tensor], generator: torch.Generator) -> None:
    """Linear paths = principal components of the patches; each stage = components and k-means of what is left."""
    config = model.config
    cut = [F.pixel_unshuffle(part - 0.5, config.factor) for part in images]
    patches = torch.cat([part.permute(0, 2, 3, 1).reshape(-1, config.patch) for part in cut])
    mean = patches.mean(0)
    centred = patches - mean
    rank = min(config.code_dim, config.patch)
    basis = torch.zeros(config.code_dim, config.patch)
    basis[:rank] = _components(centred, rank).T
    model.encoder.linear.weight.copy_(basis[:, :, None, None])
    nn.init.zeros_(_bias(model.encoder.out))
    nn.init.zeros_(_bias(model.decoder.out))
    _bias(model.encoder.linear).copy_(-basis @ mean)
    model.decoder.linear.weight.copy_(basis.T[:, :, None, None])
    _bias(model.decoder.linear).copy_(mean)
    residual = (centred @ basis.T)[torch.randperm(len(centred), generator=generator)[: 50 * config.codes]]
    for stage in range(config.stages):
        plane = _components(residual, config.code_rank)
        codes = kmeans(residual @ plane, config.codes, generator)
        model.quantiser.bases[stage], model.quantiser.codes[stage] = plane, codes
        residual = residual - codes[search(residual @ plane, codes[None])[:, 0]] @ plane.T
    model.quantiser.seed_averages()


def _components(vectors: Tensor, rank: int) -> Tensor:
    """The orthonormal directions (D, rank) that keep most of the vectors (N, D)."""
    directions = torch.linalg.eigh((vectors.T @ vectors / len(vectors)).double()).eigenvectors
    return directions.flip(1)[:, :rank].float()


def _bias(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return layer.bias
