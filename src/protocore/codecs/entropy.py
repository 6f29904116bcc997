"""Indices as bytes by an entropy coder: frequent codes take fewer bits than rare ones.

The coder (asymmetric numeral systems, 32-bit words) is that of the library `constriction`. Behind its last word the
zero bytes are left out, so what is stored is as long as its information, to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocore.errors import DataError, UserError

_MOST_BITS = 24  # of one index: the coder's probabilities are multiples of 2^-24


class EntropyCoder:
    """One table of frequencies a stage; they need not add up to anything."""

    def __init__(self, frequencies: NDArray[np.floating]) -> None:
        try:
            stream: Any = import_module("constriction").stream
        except ImportError:
            raise UserError("a codec with ',entropy' needs the extra: pip install 'protocore[entropy]'") from None
        self._coder = stream.stack.AnsCoder
        shares = np.asarray(frequencies, dtype=np.float64)
        self._models = [stream.model.Categorical(row / row.sum(), perfect=False) for row in shares]
        self.codes = shares.shape[1]
        rarest = np.log2(shares.sum(1) / shares.min(1).clip(1e-9)) + 0.1  # a little more, since shares are rounded
        self._bits = float(rarest.clip(0, _MOST_BITS).sum())

    def largest(self, positions: int) -> int:
        """Bytes that no indices exceed, even if all of them are the rarest."""
        return math.ceil(positions * self._bits / 8) + 8

    def pack(self, indices: NDArray[np.integer]) -> list[bytes]:
        """Indices (N, stages, positions) to N byte strings."""
        if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= self.codes):
            raise DataError(f"indices reach from {indices.min()} to {indices.max()}: not within 0..{self.codes - 1}")
        return [self._pack(row) for row in indices.astype(np.int32)]

    def _pack(self, stages: NDArray[np.int32]) -> bytes:
        coder = self._coder()
        for model, row in zip(reversed(self._models), stages[::-1], strict=True):  # a stack: the last in is first out
            coder.encode_reverse(np.ascontiguousarray(row), model)
        return coder.get_compressed().astype("<u4").tobytes().rstrip(b"\0")

    def unpack(self, stored: Sequence[bytes], positions: int) -> NDArray[np.int64]:
        """The indices (N, stages, positions) that `pack` stored; bytes that it would not have written are an error."""
        most = positions * len(self._models) * _MOST_BITS // 8 + 8
        found = np.empty((len(stored), len(self._models), positions), dtype=np.int64)
        for i, data in enumerate(stored):
            if len(data) > most:
                raise DataError(f"exemplar {i} holds {len(data)} bytes, more than its codes can take ({most})")
            words = np.frombuffer(data + b"\0" * (-len(data) % 4), dtype="<u4").astype(np.uint32)
            try:
                coder = self._coder(words)
                found[i] = [coder.decode(model, positions) for model in self._models]
            except (ValueError, AssertionError) as error:
                raise DataError(f"exemplar {i} is damaged ({error})") from None
            if self._pack(found[i].astype(np.int32)) != data:
                raise DataError(f"exemplar {i} is damaged: its bytes are not what these codes take")
        return found
