"""Shared by all tests: one thread each unless told, so that parallel workers do not fight for the cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import pytest
import torch

THREADS = int(os.environ["OMP_NUM_THREADS"])


@pytest.fixture(autouse=True)
def threads() -> None:
    """The threads that were told, also after a test whose run has set others."""
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)
