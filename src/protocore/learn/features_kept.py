"""Features of a frozen network, kept on disk between runs: several runs on the same pictures pass them through it once.

Kept is what one pass gave for the pictures that went through it together, under a hash of the network, the machine and
those pictures. So a run that reads meets the very bits that it would have made.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from protocore.errors import DataError
from protocore.files import read_bytes, write_atomic

_SECONDS = struct.Struct("<d")


class KeptFeatures:
    """Rows of float32 features in a folder; `spared` are the seconds that those which were read once took."""

    def __init__(self, folder: Path, net: nn.Module, dim: int, device: torch.device) -> None:
        self.folder, self.dim, self.device, self.spared = folder, dim, device, 0.0
        begun = hashlib.sha256(f"1 {torch.__version__} {torch.backends.cpu.get_cpu_capability()} "
                               f"{torch.get_num_threads()} {device}".encode())
        for name, tensor in net.state_dict().items():
            begun.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            begun.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        self._begun = begun.digest()

    def of(self, images: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Features of these pictures (N, dim): read where they were made before, else made and kept."""
        key = hashlib.sha256(self._begun + f"{images.dtype} {tuple(images.shape)}".encode())
        key.update(images.cpu().contiguous().numpy().tobytes())
        path = self.folder / f"{key.hexdigest()}.features"
        found = self._read(path, len(images))
        if found is not None:
            return found.to(self.device)
        start = time.perf_counter()
        made = make(images)
        rows = made.cpu().contiguous().numpy().tobytes()
        body = _SECONDS.pack(time.perf_counter() - start) + rows
        write_atomic(path, hashlib.sha256(body).digest() + body)
        return made

    def _read(self, path: Path, rows: int) -> Tensor | None:
        """What is there, if it is whole; damaged files are written anew."""
        length = 4 * rows * self.dim
        try:
            data = read_bytes(path, 32 + _SECONDS.size + length)
        except DataError:
            return None
        if len(data) != 32 + _SECONDS.size + length or hashlib.sha256(data[32:]).digest() != data[:32]:
            return None
        self.spared += _SECONDS.unpack_from(data, 32)[0]
        return torch.from_numpy(np.frombuffer(data, "<f4", offset=32 + _SECONDS.size).reshape(rows, self.dim).copy())


class Remembered:
    """Features by picture, in memory: for learners of the same front that learn and are asked about the same pictures,
    one after the other. Whatever went through the network together, a picture is passed once."""

    spared = 0.0

    def __init__(self) -> None:
        self._rows: dict[bytes, Tensor] = {}

    def of(self, images: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Features of these pictures (N, dim)."""
        keys = [hashlib.sha256(image.numpy().tobytes()).digest() for image in images.cpu().contiguous()]
        new = {key: row for row, key in enumerate(keys) if key not in self._rows}
        if new:
            self._rows |= zip(new, make(images[list(new.values())]), strict=True)
        return torch.stack([self._rows[key] for key in keys])
