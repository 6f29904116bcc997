"""Feature vectors in a few bytes: turned at random, cut into parts, each the nearest of 256 codes (Jégou et al. 2011).

Two departures make the codebook small enough to be counted. After a random rotation all parts look alike, so they
share one codebook: 256 codes, where one for each part would take megabytes. And it holds shapes: how far a vector is
from the mean is its first byte, so a codebook of few pictures serves for whatever comes later.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protocore.codecs.base import Codec, ImageShape
from protocore.codecs.int8 import to_int8
from protocore.codecs.vqgan.quantiser import search
from protocore.codecs.vqgan.start import kmeans
from protocore.directions import directions, orthonormal
from protocore.errors import DataError, UserError, shown

CODES = 256
LEARNED_FROM = 32 * CODES  # parts of vectors; where pictures give fewer, noise stands in for the others
OCTAVE = 16  # steps of the byte for the distance: each is 4.4 % more than the one below
SEED = 1993  # of the rotation, which is the same for everybody


@functools.lru_cache(maxsize=4)
def rotation(rows: int, dim: int) -> Tensor:
    """Orthonormal columns (rows, dim), rows >= dim: a vector is turned by it, and turned back by its transpose."""
    return orthonormal(directions(dim, rows, SEED)).T.float().contiguous()


class ProductQuantiser(Codec):
    """The latent is the vector less the mean, turned; a linear decoder turns it back."""

    name = "pq"
    learns = True

    def __init__(self, image_shape: ImageShape, size: int = 64) -> None:
        super().__init__(image_shape)
        dim = math.prod(image_shape)
        if image_shape[1:] != (1, 1):
            raise UserError(f"--codec pq is for feature vectors, as a frozen network gives them, and not for pictures "
                            f"of shape {image_shape}; take --codec vqgan, or give --freeze all")
        if not 2 <= size <= dim + 1:
            raise UserError(f"--codec pq:{size}: give 2 to {dim + 1:,} bytes for vectors of {dim:,} numbers, for "
                            "example pq:64")
        self.size, self.parts = size, size - 1
        self.length = -(-dim // self.parts)  # of a part
        self._begin()

    def _begin(self) -> None:
        """As long as it has learned nothing: the mean is grey, the codes are any shapes."""
        self.mean = torch.full((math.prod(self.image_shape),), 128, dtype=torch.uint8, device=self.device)
        self._set(_noise(CODES, self.length))
        self.learned = False

    def _set(self, codes: Tensor) -> None:
        whole, step = to_int8(codes.flatten()[None])
        self.codes, self.step = whole.view(CODES, self.length).to(self.device), step.to(self.device)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """The mean, and by k-means the codes of parts of vectors at the same distance from it."""
        flat = images.flatten(1).cpu()
        self.mean = (flat.mean(0) * 255).round().to(torch.uint8).to(self.device)
        z = self.encode(images.to(self.device)).cpu()
        away = _distance(z)
        shapes = (z / away.clamp(min=1e-6))[away[:, 0] > 0].view(-1, self.length)
        shapes = torch.cat([shapes, _noise(max(LEARNED_FROM - len(shapes), 0), self.length)])
        generator = torch.Generator().manual_seed(SEED)
        chosen = torch.randperm(len(shapes), generator=generator)[:LEARNED_FROM]
        self._set(kmeans(shapes[chosen], CODES, generator))
        self.learned = True

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean.cpu(), "codes": self.codes.cpu(), "step": self.step.cpu()} if self.learned else {}

    def shapes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {"mean": (torch.uint8, (math.prod(self.image_shape),)), "codes": (torch.int8, (CODES, self.length)),
                "step": (torch.float16, (1,))}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            return self._begin()
        wanted = self.shapes()
        met = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}
        if met != wanted:
            raise DataError(f"the codebook of {self.spec} holds {shown(met)}, expected {shown(wanted)}")
        if not bool(state["step"].isfinite().all()):
            raise DataError(f"the codebook of {self.spec} holds a number that is not finite")
        self.mean, self.codes, self.step = (state[name].to(self.device) for name in ("mean", "codes", "step"))
        self.learned = True

    @property
    def turn(self) -> Tensor:
        return rotation(self.parts * self.length, math.prod(self.image_shape)).to(self.device)

    @property
    def book(self) -> Tensor:
        return self.codes.float() * self.step.float()

    def encode(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            raise DataError(f"vectors of shape {tuple(images.shape[1:])} met a codec for {self.image_shape}")
        return (images.flatten(1) - self.mean.float() / 255) @ self.turn.T

    def decode(self, z: Tensor) -> Tensor:
        return (z @ self.turn + self.mean.float() / 255).clamp(0, 1).view(-1, *self.image_shape)

    def quantise(self, z: Tensor) -> Tensor:
        return z + (self._lookup(*self._indices(z)) - z).detach()

    @torch.no_grad()
    def _indices(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The bytes of the distances (N,), and the codes (N, parts)."""
        level = (OCTAVE * _distance(z)[:, 0].clamp(min=2.0**-20).log2()).round().clamp(-255, 0) + 255
        shapes = (z / _from_level(level)[:, None]).view(-1, self.length)
        return level, search(shapes, self.book[None])[:, 0].view(len(z), self.parts)

    def _lookup(self, level: Tensor, indices: Tensor) -> Tensor:
        return self.book[indices].flatten(1) * _from_level(level)[:, None]

    def to_bytes(self, z: Tensor) -> list[bytes]:
        level, indices = self._indices(z)
        rows = torch.cat([level[:, None], indices.to(level)], 1).to(torch.uint8).cpu().numpy()
        return [row.tobytes() for row in rows]

    def from_bytes(self, stored: Sequence[bytes]) -> Tensor:
        for i, row in enumerate(stored):
            if len(row) != self.size:
                raise DataError(f"exemplar {i} holds {len(row)} bytes, but {self.spec} needs {self.size}")
        rows = torch.frombuffer(bytearray(b"".join(stored)), dtype=torch.uint8) if stored else torch.empty(0).byte()
        rows = rows.view(-1, self.size).to(self.device)
        return self._lookup(rows[:, 0].float(), rows[:, 1:].long())

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return (self.parts * self.length,)

    @property
    def exemplar_bytes(self) -> int:
        return self.size

    @property
    def digest(self) -> str:
        found = hashlib.sha256(f"pq {self.image_shape} {self.size}".encode())
        for name, tensor in sorted(self.state().items()):
            found.update(name.encode() + tensor.numpy().tobytes())
        return found.hexdigest()


def _distance(z: Tensor) -> Tensor:
    """Root mean squares of rows, (N, 1)."""
    return z.square().mean(1, keepdim=True).sqrt()


def _from_level(level: Tensor) -> Tensor:
    return torch.exp2((level - 255) / OCTAVE)


def _noise(count: int, length: int) -> Tensor:
    """Parts of vectors of which nothing is known but their distance."""
    return directions(count, length, SEED + 1).float()
