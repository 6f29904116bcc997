"""Joules where the machine tells: RAPL counters of the processor, NVML's of a GPU. Nothing is estimated.

They count the whole device, whatever else runs on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
PERIOD = 30.0  # seconds: a RAPL counter of a busy server begins anew after some minutes
Counter = Callable[[], float]  # joules since some moment, never less than before


class Rapl:
    """One zone's counter of microjoules, which begins anew at its range."""

    def __init__(self, zone: Path) -> None:
        self.file = zone / "energy_uj"
        self.range = _whole(zone / "max_energy_range_uj")
        self.last, self.passed = _whole(self.file), 0

    def __call__(self) -> float:
        now = _whole(self.file)
        self.passed += now - self.last if now >= self.last else now - self.last + self.range
        self.last = now
        return self.passed / 1e6


def rapl_counters(root: Path = POWERCAP) -> dict[str, list[Counter]]:
    """Those of processor packages and of their memory that may be read; cores are part of their package.

    Most systems let only root read them. Where one of a kind cannot be read, the kind is left out: a part of the
    packages would be taken for all of them.
    """
    found: dict[str, list[Counter]] = {}
    closed = set()
    for zone in sorted(root.glob("intel-rapl:*")):  # AMD's too; intel-rapl-mmio:* are the same ones again
        try:
            part = (zone / "name").read_text().strip().partition("-")[0]
        except OSError:
            continue
        if part not in ("package", "dram"):
            continue
        try:
            found.setdefault(part, []).append(Rapl(zone))
        except (OSError, ValueError):
            closed.add(part)
    return {part: counters for part, counters in found.items() if part not in closed}


def gpu_counter(device: torch.device) -> Counter | None:
    """NVML's counter of this GPU, where its library is installed and the GPU has one."""
    if device.type != "cuda":
        return None
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        begun = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:  # an older GPU, or a driver that does not answer
        return None
    return lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - begun) / 1000


def counters_for(device: torch.device, root: Path = POWERCAP) -> dict[str, list[Counter]]:
    gpu = gpu_counter(device)
    return rapl_counters(root) | ({"gpu": [gpu]} if gpu else {})


class Energy:
    """Joules by part since it was made. A thread looks at the counters often enough to see each new beginning."""

    def __init__(self, counters: dict[str, list[Counter]], period: float = PERIOD) -> None:
        self.counters = counters
        self._joules: dict[str, float] = dict.fromkeys(counters, 0.0)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._period = period
        if counters:
            threading.Thread(target=self._watch, daemon=True).start()

    def joules(self) -> dict[str, float]:
        """So far; a part whose counter has failed in between is not there any more."""
        with self._lock:
            for part in list(self._joules):
                total = _sum(self.counters[part])
                if total is None:
                    del self._joules[part]
                else:
                    self._joules[part] = total
            return dict(self._joules)

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._period):
            self.joules()


def _sum(counters: Sequence[Counter]) -> float | None:
    try:
        return sum(counter() for counter in counters)
    except Exception:  # a file of the system, a driver: whatever it is, its joules are not known any more
        return None


def _whole(path: Path) -> int:
    return int(path.read_text())
