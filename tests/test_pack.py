"""The pack: bit for bit there and back, no byte uncounted, no lie believed; merged and pruned by the rules."""

import copy
import hashlib
import json
import os
import random
import time
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from protocore.data.benchmarks import open_stream
from protocore.decoders.base import Decoder
from protocore.decoders.pixels import Pixels
from protocore.errors import BudgetError, DataError
from protocore.memory import pack as packs
from protocore.memory.fill import BalancedReservoir, Reservoir
from protocore.memory.pack import exemplars, merge, prune, read_pack, save_pack, summary, to_bytes, verify, write_pack
from protocore.memory.prototypes import PrototypeStore
from protocore.memory.store import ExemplarStore
from protocore.train.learner import Learner
from protocore.train.run import configure

SHAPE = (1, 4, 4)
NAMES = ["ant", "bee", "cat", "dog", "eel"]
quick = settings(deadline=None, derandomize=True, max_examples=60,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Coarse(Pixels):
    """Lossy, of fixed size: the upper four bits of each pixel, two pixels a byte."""

    name = "coarse"
    lossless = False
    shared_bytes = 1000
    exemplar_bytes = 8
    digest = hashlib.sha256(b"coarse").hexdigest()

    def to_bytes(self, z):
        nibbles = (torch.sigmoid(z) * 15).round().to(torch.uint8).flatten(1)
        return [bytes(row.tolist()) for row in nibbles[:, ::2] * 16 + nibbles[:, 1::2]]

    def from_bytes(self, stored):
        if any(len(row) != 8 for row in stored):
            raise DataError("8 bytes an exemplar")
        rows = torch.tensor([[half for byte in row for half in (byte // 16, byte % 16)] for row in stored])
        return self.encode(rows.view(-1, *self.image_shape).float() / 15)


class Squeezed(Coarse):
    """Lossy, of sizes that differ."""

    name = "squeezed"
    exemplar_bytes = None
    digest = hashlib.sha256(b"squeezed").hexdigest()

    def to_bytes(self, z):
        return [zlib.compress(row, 9) for row in super().to_bytes(z)]

    def from_bytes(self, stored):
        try:
            return super().from_bytes([zlib.decompress(row) for row in stored])
        except zlib.error as error:
            raise DataError(f"not zlib: {error}") from None


def pictures(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    images[::3, :, 1:] = 0  # some that a compressor makes short
    return images


def store_of(decoder: Decoder, labels, name: str = "exemplars", seed: int = 0, **columns) -> ExemplarStore:
    store = ExemplarStore(decoder, name)
    store.add(pictures(len(labels), seed), torch.tensor(labels, dtype=torch.int64), **columns)
    return store


def prototypes_of(labels, seed: int = 0, dtype: str = "float16") -> dict[str, torch.Tensor]:
    store = PrototypeStore(6, dtype)
    store.set(list(labels), torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed)))
    return store.tensors()


def condensed_with_real() -> dict[str, torch.Tensor]:
    """What protocore --real keeps."""
    torch.manual_seed(0)
    real = BalancedReservoir(ExemplarStore(Pixels(SHAPE), "real exemplars"), per_class=3)
    real.offer(pictures(40), torch.arange(40) % 4)
    made = store_of(Pixels(SHAPE), [0, 1, 2, 3], "coded exemplars", seed=1)
    return (real.tensors() | made.tensors() | prototypes_of(range(4))
            | {"statistics/sigma": torch.tensor([0.3])})


def put(path: Path, tensors, decoder: Decoder | None = None, names=NAMES, method: str = "er") -> packs.Pack:
    return write_pack(path, tensors, class_names=names, decoder=decoder or Pixels(SHAPE), method=method)


def memory_pack(tensors, decoder: Decoder | None = None, names=NAMES, method: str = "er") -> packs.Pack:
    """A pack that was never in a file of its own."""
    return put(Path(os.devnull).parent / "shm" / f"pack-{os.getpid()}", tensors, decoder, names, method)


def same(a: packs.Pack, b: packs.Pack) -> bool:
    return a.info == b.info and same_tensors(a.tensors, b.tensors)


def same_tensors(a, b) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].numpy().tobytes() == b[k].numpy().tobytes()
        for k in a)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "memory.pack"


@pytest.fixture
def make(tmp_path):
    """Packs of tensors, through a file."""
    def made(tensors, decoder=None, names=NAMES, method="er"):
        return put(tmp_path / "made.pack", tensors, decoder, names, method)
    return made
