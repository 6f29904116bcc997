"""Residual vector quantisation: the search for codes, and the codebooks as moving averages."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from protocore.codecs.vqgan.config import VQGANConfig

_CHUNK_SCORES = 2**19  # entries of a score matrix held at once: they stay in the processor's cache


def search(vectors: Tensor, codebooks: Tensor, beam: int = 1) -> Tensor:
    """Indices (P, stages) of the codes whose sum is near each vector (P, D); `beam` 1 is greedy.

    Stage after stage the `beam` best partial sums are kept, by |r - c|^2 = |r|^2 - 2 r.c + |c|^2: all of it in
    one product, since reading the scores again costs more than making them.
    """
    rows = max(1, _CHUNK_SCORES // (beam * codebooks.shape[1]))
    return torch.cat([_search(part, codebooks, beam) for part in vectors.split(rows)])


def _search(vectors: Tensor, codebooks: Tensor, beam: int) -> Tensor:
    count, codes = len(vectors), codebooks.shape[1]
    residual = vectors[:, None]  # (P, candidates, D)
    chosen = torch.empty(count, 1, 0, dtype=torch.long, device=vectors.device)
    for book in codebooks:
        left = torch.cat([residual, _square(residual), torch.ones_like(residual[..., :1])], 2)
        score = (left @ torch.cat([-2 * book, torch.ones_like(book[:, :1]), _square(book)], 1).T).flatten(1)
        best = score.argmin(1, keepdim=True) if beam == 1 else _smallest(score, beam)
        parent, index = (best // codes)[..., None], best % codes
        residual = residual.gather(1, parent.expand(-1, -1, residual.shape[2])) - book[index]
        chosen = torch.cat([chosen.gather(1, parent.expand(-1, -1, chosen.shape[2])), index[..., None]], 2)
    first = _square(residual)[..., 0].argmin(1)
    return chosen[torch.arange(count, device=chosen.device), first]


def _square(x: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True)


def _smallest(score: Tensor, count: int, members: int = 16) -> Tensor:
    """Columns of the `count` smallest entries of each row.

    They lie in the `count` groups with the smallest minima: two small sorts instead of one over the whole row.
    """
    groups, rest = divmod(score.shape[1], members)
    if rest or groups <= count:
        return score.topk(min(count, score.shape[1]), dim=1, largest=False).indices
    group = score.view(-1, members, groups).amin(1).topk(count, dim=1, largest=False).indices
    columns = (group[:, None] + groups * torch.arange(members, device=score.device)[:, None]).flatten(1)
    return columns.gather(1, score.gather(1, columns).topk(count, dim=1, largest=False).indices)


class Quantiser(nn.Module):
    """One codebook a stage, kept as the moving average of what falls to each code.

    `codes` (stages, codes, code_rank) are coordinates in the plane that the orthonormal columns of `bases`
    (stages, code_dim, code_rank) span.
    """

    codes: Tensor
    bases: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        self.beam = config.beam
        stages, dim, rank = config.stages, config.code_dim, config.code_rank
        codes = torch.randn(stages, config.codes, rank) / math.sqrt(rank)
        self.register_buffer("codes", codes)
        self.register_buffer("bases", torch.eye(dim, rank).repeat(stages, 1, 1))
        self.register_buffer("counts", torch.ones(codes.shape[:2]), persistent=False)
        self.register_buffer("sums", codes.clone(), persistent=False)

    def codebooks(self, stages: int) -> Tensor:
        """The first codebooks as latents (stages, codes, code_dim)."""
        return self.codes[:stages] @ self.bases[:stages].mT

    def indices(self, z: Tensor, stages: int, beam: int | None = None) -> Tensor:
        """Codes (N, stages, h, w) of the latents (N, D, h, w)."""
        count, _, height, width = z.shape
        with torch.no_grad():
            found = search(_vectors(z), self.codebooks(stages), beam or self.beam)
        return found.view(count, height, width, stages).permute(0, 3, 1, 2)

    def lookup(self, indices: Tensor) -> Tensor:
        """Latents (N, D, h, w): the sum of the codes over the stages."""
        stage = torch.arange(indices.shape[1], device=indices.device)[:, None, None]
        return self.codebooks(indices.shape[1])[stage, indices].sum(1).permute(0, 3, 1, 2).contiguous()

    def forward(self, z: Tensor, stages: int, beam: int | None = None) -> tuple[Tensor, Tensor]:
        """Quantised latents, gradients straight through to z, and their indices."""
        indices = self.indices(z, stages, beam)
        return z + (self.lookup(indices) - z).detach(), indices

    @torch.no_grad()
    def seed_averages(self) -> None:
        """Start the averages at the present codes, as if each had been met once."""
        self.counts.fill_(1.0)
        self.sums.copy_(self.codes)

    def _residuals(self, z: Tensor, indices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Stage after stage: what is left to code, in the stage's coordinates, and the codes it got."""
        residual = _vectors(z)
        rows = indices.transpose(0, 1).flatten(1)
        for basis, codes, index in zip(self.bases, self.codes, rows, strict=False):
            yield residual @ basis, index
            residual = residual - codes[index] @ basis.T

    @torch.no_grad()
    def update(self, z: Tensor, indices: Tensor, decay: float, skip: int = 0) -> None:
        """count <- decay count + (1 - decay) n, sum likewise, code = sum / count, from stage `skip` on."""
        for stage, (left, index) in enumerate(list(self._residuals(z, indices))):
            if stage < skip:
                continue
            counts, sums = self.counts[stage], self.sums[stage]
            hits = torch.bincount(index, minlength=len(counts)).to(left)
            counts.mul_(decay).add_(hits, alpha=1 - decay)
            sums.mul_(decay).add_(torch.zeros_like(sums).index_add_(0, index, left), alpha=1 - decay)
            live = counts > 1e-6
            self.codes[stage, live] = sums[live] / counts[live, None]

    @torch.no_grad()
    def revive(self, z: Tensor, indices: Tensor, generator: torch.Generator, skip: int = 0) -> int:
        """Move codes met less than a twentieth of an even use to residuals met now; returns how many."""
        moved = 0
        for stage, (left, _) in enumerate(list(self._residuals(z, indices))):
            even = self.counts[stage].mean()
            dead = torch.nonzero(self.counts[stage] < even / 20)[:, 0][: len(left)]
            if stage >= skip and len(dead):
                fresh = left[torch.randperm(len(left), generator=generator)[: len(dead)]]
                self.codes[stage, dead], self.counts[stage, dead] = fresh, even
                self.sums[stage, dead] = fresh * even
                moved += len(dead)
        return moved


def _vectors(z: Tensor) -> Tensor:
    return z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
