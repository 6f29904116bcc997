"""Device, precision, memory format and threads, by what the machine has."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protocore.config import Settings, plural
from protocore.data.augment import to_float
from protocore.errors import UserError
from protocore.pictures import ImageShape
from protocore.ranks.group import here

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
KEPT_BLOCK = 256 << 20  # bytes: maps up to this size take pages that are there
KEPT_ROOM = 1 << 30  # bytes that stay with the process when maps are let go
GAINS_FROM = 28  # pixels: convolutions of smaller pictures take no longer in float32, units for bfloat16 or not


@dataclass(frozen=True)
class Machine:
    """Where and how the network runs."""

    device: torch.device
    precision: str
    channels_last: bool

    def images(self, x: Tensor) -> Tensor:
        """Float images on the device, in the memory format in use. uint8 ones travel as they are: a quarter as far."""
        x = to_float(x.to(self.device, non_blocking=True))
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last else x

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
    """The most memory that this process has held, children apart, since `forget_peak` where the system knows that.

    Linux tells by VmHWM. What getrusage tells there begins with the size of the process that started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others kilobytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_pages() -> bool:
    """Let the maps of one step lie where those of the step before lay; False where the system has no such choice.

    glibc gives large blocks back to the system as soon as they are free, which then clears every page of the next ones:
    a third of the time of a training step of small pictures.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(MMAP_THRESHOLD, KEPT_BLOCK) and mallopt(TRIM_THRESHOLD, KEPT_ROOM))


def forget_peak() -> None:
    """Count the peak from now on, where the system can: of several runs in one process each has its own."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def machine_for(settings: Settings, image_shape: ImageShape) -> Machine:
    """Where a learner of such pictures runs, and how."""
    name = settings.device
    if name == "auto":
        mps = torch.backends.mps.is_available() and here.world == 1
        name = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        device = _of_rank(torch.device(name)) if here.world > 1 else torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name!r} cannot be used here ({reason}); try --device cpu") from None
    precision = settings.precision
    if precision == "auto":
        worth = device.type != "cpu" or (settings.backbone != "mlp" and max(image_shape[1:]) >= GAINS_FROM)
        precision = "bfloat16" if worth and _has_bfloat16(device) else "float32"
    elif precision == "bfloat16" and not _has_bfloat16(device):
        raise UserError(f"--precision bfloat16: {device} has no units for it and would be far slower; use float32")
    layout = settings.memory_format
    # Faster for convolutions, but with fewer than 6 channels torch 2.13 crashes in its backward pass on a CPU.
    wide_enough = settings.width is None or settings.width >= 8
    channels_last = layout == "channels_last" or (layout == "auto" and settings.backbone != "mlp" and wide_enough)
    threads = settings.threads or int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or os.cpu_count() or 1
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if device.type == "cpu":
        keep_pages()
    return Machine(device, precision, channels_last)


def _of_rank(device: torch.device) -> torch.device:
    """The device of this process among several: a GPU each."""
    if device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise UserError(f"--device {device} cannot be had by each of {here.world} processes; give --device cuda, a GPU "
                        "for each, or --device cpu")
    if here.local >= torch.cuda.device_count():
        gpus = plural(torch.cuda.device_count(), "GPU")
        raise UserError(f"--device cuda: {gpus} here for {here.local + 1} processes or more: start one for each "
                        "(torchrun --nproc-per-node), or give --device cpu")
    torch.cuda.set_device(here.local)
    return torch.device("cuda", here.local)
