"""Device, precision, memory format and threads, by what the machine has."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protocore.config import Settings
from protocore.data.augment import to_float
from protocore.errors import UserError


@dataclass(frozen=True)
class Machine:
    """Where and how the network runs."""

    device: torch.device
    precision: str
    channels_last: bool
    rank: int = 0  # which of several processes this is
    world: int = 1  # how many of them train one network

    def images(self, x: Tensor) -> Tensor:
        """Float images on the device, in the memory format in use. uint8 ones travel as they are: a quarter as far."""
        x = to_float(x.to(self.device, non_blocking=True))
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

    @contextmanager
    def for_itself(self, *numbers: int) -> Iterator[None]:
        """What each process draws for itself: its views, its replay. All else is drawn alike in all of them.

        Alone, a process has one generator for both. Among several, its own is a pure function of the numbers (seed,
        task, step) and its rank, so that nothing of it has to be stored.
        """
        if self.world == 1:
            yield
            return
        alike = torch.get_rng_state()
        torch.manual_seed(mix(*numbers, self.rank))
        try:
            yield
        finally:
            torch.set_rng_state(alike)

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def mix(*numbers: int) -> int:
    """One seed of several numbers, so that neighbouring runs, tasks and epochs share nothing."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = ((mixed ^ number) * 0xBF58476D1CE4E5B9) % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


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
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if several else (0, 1)
    return Machine(device, precision, channels_last, rank, world)
