"""Large blocks of memory that stay with the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from protocore.config import Settings
from protocore.learn.device import keep_pages, machine_for

if sys.argv[1] == "kept":
    if not keep_pages():
        sys.exit("no mallopt")
    machine_for(Settings(), (3, 32, 32))
torch.zeros(1 << 20).add_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    map = torch.empty(48 << 20, dtype=torch.uint8).fill_(1)
    del map
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", FAULTS, how], env=env, capture_output=True, text=True, check=False)
    if done.stderr.strip() == "no mallopt":
        pytest.skip("this C library does not say what it does with free blocks")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_map_takes_the_pages_of_the_one_before() -> None:
    given_back = faults("given back")  # ten times all pages of a map, of 4 KB, or 2 MB where the system has larger ones
    assert faults("kept") < given_back / 4
