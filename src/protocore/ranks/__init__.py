"""Several processes that learn as one, started by torchrun.

Each goes through the same program with the same draws, so that each has the same network and the same memory. What
takes long is split by rows (`split.py`). The first process is the one that writes and prints (`group.py`).
"""

from __future__ import annotations

import os


def started() -> tuple[int, int]:
    """Which process this is, of how many that torchrun has started (or Slurm, with the same variables)."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    meet = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return (rank, world) if meet and 0 <= rank < world else (0, 1)


def way_of(processes: int) -> str:
    """How so many are started, in words."""
    return "a single process" if processes == 1 else f"torchrun --nproc-per-node {processes}"
