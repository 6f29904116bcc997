"""Large blocks of memory that stay with the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LEFT = """
import sys
import torch
from protocore.config import Settings
from protocore.learn.device import keep_pages, machine_for, resident_bytes

if sys.argv[1] == "kept":
    if not keep_pages():
        sys.exit("no mallopt")
    machine_for(Settings(), (3, 32, 32))
torch.zeros(1 << 20).add_(1)
before = resident_bytes()
map = torch.empty(48 << 20, dtype=torch.uint8).fill_(1)
del map
print(resident_bytes() - before)
"""


def left(how: str) -> int:
    """Bytes that stay with a process when a map of 48 MB is let go."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", LEFT, how], env=env, capture_output=True, text=True, check=False)
    if done.stderr.strip() == "no mallopt":
        pytest.skip("this C library does not say what it does with free blocks")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_map_takes_the_pages_of_the_one_before() -> None:
    assert left("given back") < 24 << 20 < left("kept")
