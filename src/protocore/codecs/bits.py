"""Integer codes as bytes: exactly ceil(log2(codes)) bits an index, most significant bit first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocore.errors import DataError


def bits_per_code(codes: int) -> int:
    """ceil(log2(codes)), without floating point."""
    if codes < 2:
        raise DataError(f"a codebook of {codes} codes cannot tell anything apart: give 2 or more")
    return (codes - 1).bit_length()


def packed_bytes(count: int, codes: int) -> int:
    """Bytes that `count` indices take; only the last byte may hold padding."""
    return (count * bits_per_code(codes) + 7) // 8


def pack(indices: NDArray[np.integer], codes: int) -> list[bytes]:
    """Indices (N, count) to N byte strings of `packed_bytes(count, codes)` bytes each."""
    if indices.ndim != 2:
        raise DataError(f"indices must have the shape (exemplars, count), not {indices.shape}")
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= codes):
        raise DataError(f"indices reach from {indices.min()} to {indices.max()}: not within 0..{codes - 1}")
    width = bits_per_code(codes)
    shifts = np.arange(width - 1, -1, -1, dtype=np.int64)
    flags = (indices.astype(np.int64)[:, :, None] >> shifts & 1).astype(np.uint8)
    rows = np.packbits(flags.reshape(len(indices), indices.shape[1] * width), axis=1)
    return [row.tobytes() for row in rows]


def unpack(stored: Sequence[bytes], count: int, codes: int) -> NDArray[np.int64]:
    """The indices (N, count) that `pack` stored; a wrong length, padding or index raises `DataError`."""
    size, width = packed_bytes(count, codes), bits_per_code(codes)
    for i, row in enumerate(stored):
        if len(row) != size:
            raise DataError(f"exemplar {i} holds {len(row)} bytes, but {count} indices of {width} bits need {size}")
    rows = np.frombuffer(b"".join(stored), dtype=np.uint8).reshape(len(stored), size)
    flags = np.unpackbits(rows, axis=1)
    if flags[:, count * width :].any():
        raise DataError(f"the padding after {count} indices of {width} bits is not zero: damaged exemplars")
    weights = 1 << np.arange(width - 1, -1, -1, dtype=np.int64)
    indices = flags[:, : count * width].reshape(len(stored), count, width) @ weights
    if indices.size and int(indices.max()) >= codes:
        raise DataError(f"an exemplar holds the index {indices.max()}, but the codebook ends at {codes - 1}")
    return indices
