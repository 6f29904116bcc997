"""What a run takes beside seconds by part: wall time, peak memory, energy, FLOPs; over every process that worked on
it, interrupted ones too."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from protocore.learn.device import forget_peak, peak_bytes
from protocore.learn.flops import StepFlops, prediction_flops
from protocore.learn.learner import Learner
from protocore.ranks.group import world
from protocore.runs.energy import POWERCAP, Energy, counters_for
from protocore.schema import Fields


@dataclass(frozen=True)
class Costs:
    """What is known; None or empty where nobody told."""

    wall_seconds: float | None = None
    peak_memory_bytes: int = 0  # resident, of this process alone
    device_memory_bytes: int | None = None  # allocated on a GPU
    energy_joules: dict[str, float] | None = None
    steps: int | None = None
    flops: dict[str, float] = field(default_factory=dict)  # step, learn, predict


class Meter:
    """Measures a run from now on; `take_up` adds what was measured before it was interrupted."""

    def __init__(self, learner: Learner, powercap: Path = POWERCAP) -> None:
        self.learner, self.device = learner, learner.machine.device
        learner.flops = StepFlops()
        self.earlier = Costs(wall_seconds=0.0)
        self.whole = True  # whether all of the run was measured
        # Of several processes each would see the counters of its own machine or GPU only.
        self.energy = Energy(counters_for(self.device, powercap) if world() == 1 else {})
        forget_peak()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.begun = time.perf_counter()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.energy.stop()

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        now = self.costs()
        return {"wall_seconds": now.wall_seconds, "peak_memory_bytes": now.peak_memory_bytes,
                "device_memory_bytes": now.device_memory_bytes, "energy_joules": now.energy_joules,
                "flops": self.learner.flops.state(), "whole": self.whole}

    def take_up(self, f: Fields | None) -> None:
        """Go on from what `state` gave; None: an older version measured nothing of this."""
        if f is None:
            self.whole = False
            return
        energy = f.maybe(f.number_table, "energy_joules", None)
        self.earlier = Costs(f.maybe(f.number, "wall_seconds", 0.0), f.whole("peak_memory_bytes"),
                             f.maybe(f.whole, "device_memory_bytes", None), energy)
        self.learner.flops.load(f.fields("flops"))
        self.whole = f.truth("whole")
        if energy is None:  # this machine may tell, the one before did not
            self.energy.stop()
            self.energy = Energy({})

    def costs(self, *, predict: bool = False) -> Costs:
        """So far; `predict` counts what a prediction takes, too."""
        peak = max(self.earlier.peak_memory_bytes, peak_bytes())
        device = None
        if self.device.type == "cuda":
            device = max(self.earlier.device_memory_bytes or 0, torch.cuda.max_memory_allocated(self.device))
        if not self.whole:
            return Costs(None, peak, device)
        before, now = self.earlier.energy_joules, self.energy.joules()
        energy = {part: joules + (before or {}).get(part, 0.0) for part, joules in now.items()
                  if before is None or part in before}
        done = self.learner.flops
        flops = {"step": float(done.step), "learn": float(done.total)} if done.steps else {}
        if predict:
            flops["predict"] = float(prediction_flops(self.learner))
        wall = (self.earlier.wall_seconds or 0.0) + time.perf_counter() - self.begun
        return Costs(wall, peak, device, energy or None, done.steps, flops)
