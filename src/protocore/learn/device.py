"""Device, precision, memory format and threads, by what the machine has."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protocore.config import Settings
from protocore.errors import UserError


@dataclass(frozen=True)
class Machine:
    """Where and how the network runs."""

    device: torch.device
    precision: str
    channels_last: bool

    def images(self, x: Tensor) -> Tensor:
        """Float images on the device, in the memory format in use."""
        x = x.to(self.device, non_blocking=True)
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    if device.type == "cpu":
        # Without such units bfloat16 is emulated, 15 times slower than float32.
        probe: Callable[[], bool] | None = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return bool(probe and probe())
    return False


def resident_bytes() -> int:
    """Memory that this process holds now; its peak where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine_for(settings: Settings) -> Machine:
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name!r} cannot be used here ({reason}); try --device cpu") from None
    precision = settings.precision
    if precision == "auto":
        precision = "bfloat16" if device.type != "cpu" and _has_bfloat16(device) else "float32"
    elif precision == "bfloat16" and not _has_bfloat16(device):
        raise UserError(f"--precision bfloat16: {device} has no units for it and would be far slower; use float32")
    layout = settings.memory_format
    # Faster for convolutions, but with fewer than 6 channels torch 2.13 crashes in its backward pass on a CPU.
    wide_enough = settings.width is None or settings.width >= 8
    channels_last = layout == "channels_last" or (layout == "auto" and settings.backbone != "mlp" and wide_enough)
    threads = settings.threads or int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or os.cpu_count() or 1
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return Machine(device, precision, channels_last)
