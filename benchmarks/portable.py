"""The tests under every instruction set that this processor can be told to use, with 1 and 2 threads.

    python benchmarks/portable.py [words for pytest, such as tests/test_losses.py]

PyTorch's own kernels and those of oneDNN, either of which can change the order of a sum, are told the same step. What
the processor cannot do is named and skipped. Ends with 1 when the tests failed anywhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
ATEN = ("default", "avx2", "avx512")
ONEDNN = ("SSE41", "AVX2", "AVX512_CORE")  # the same three steps, as oneDNN names them
THREADS = (1, 2)


def within(capability: str) -> int:
    """How many of the three steps a processor of this capability has, as PyTorch names it."""
    return ATEN.index(capability.lower()) + 1 if capability.lower() in ATEN else 1


def capability() -> str:
    """What PyTorch finds when nobody tells it what to use; a process of its own, since it looks only once."""
    untold = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
    ask = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    return subprocess.run([sys.executable, "-c", ask], env=untold, check=True, capture_output=True, text=True
                          ).stdout.strip()


def sweep(words: list[str], found: str) -> list[str]:
    """Runs the tests in each combination; returns those in which they failed."""
    steps, failed = within(found), []
    for (i, (aten, onednn)), threads in product(enumerate(zip(ATEN, ONEDNN, strict=True)), THREADS):
        name = f"ATEN_CPU_CAPABILITY={aten} ONEDNN_MAX_CPU_ISA={onednn} OMP_NUM_THREADS={threads}"
        if i >= steps:
            print(f"skipped: {name} (this processor is {found})", flush=True)
            continue
        print(f"running: {name}", flush=True)
        told = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn, "OMP_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "PASSIVE"}
        workers = max(1, (os.cpu_count() or 1) // threads)
        if subprocess.run([sys.executable, "-m", "pytest", "-n", str(workers), *words], cwd=ROOT,
                          env={**os.environ, **told}).returncode:
            failed.append(name)
    return failed


def main(words: list[str]) -> int:
    failed = sweep(words, capability())
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
