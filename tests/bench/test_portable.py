"""The sweep over instruction sets: what is run, what is skipped, and that a failure anywhere is told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("portable", ROOT / "benchmarks" / "portable.py")
assert SPEC is not None
assert SPEC.loader is not None
portable = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(portable)


@pytest.mark.parametrize(("found", "runs"), [("DEFAULT", 2), ("AVX2", 4), ("AVX512", 6), ("SVE256", 2)])
def test_what_the_processor_can_do_is_run_and_the_rest_is_named(found, runs, monkeypatch, capsys):
    told = []

    def run(words, env, **_):
        told.append((env["ATEN_CPU_CAPABILITY"], env["ONEDNN_MAX_CPU_ISA"], env["OMP_NUM_THREADS"]))
        assert words[-1] == "tests/test_losses.py"
        return SimpleNamespace(returncode=int(told[-1] == ("default", "SSE41", "2")))

    monkeypatch.setattr(subprocess, "run", run)
    failed = portable.sweep(["tests/test_losses.py"], found)
    assert failed == ["ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=2"]
    assert len(set(told)) == len(told) == runs
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert sum(line.startswith("skipped: ") and found in line for line in lines) == 6 - runs


def test_the_capability_is_the_processors_and_not_what_was_told(monkeypatch):
    native = portable.capability()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert portable.capability() == native


@pytest.mark.parametrize("other", [3, 4])
def test_every_test_has_the_threads_that_were_told(other):
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
    torch.set_num_threads(other)  # the next test must not meet these
