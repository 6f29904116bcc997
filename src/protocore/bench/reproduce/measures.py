"""What a column of the paper's tables measures, read off a stored result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from protocore.runs.result import Result


@dataclass(frozen=True)
class Measure:
    """`of` gives None where a run does not have it. `digits` None: three that count, whatever the size."""

    name: str  # as people read it
    tex: str
    of: Callable[[Result], float | None]
    digits: int | None = 1
    down: bool = False  # less is better

    def as_shown(self, value: float) -> float:
        """Rounded to what a table shows of it: what looks equal there is equal."""
        return float(f"{value:{shape(value, self.digits)}}")


def shape(value: float, digits: int | None) -> str:
    """A format of Python: so many decimals; with None as many as show two digits that count, two at least below 100."""
    if digits is not None:
        return f".{digits}f"
    size = abs(value)
    if size >= 100 or size == 0:
        return ".0f" if size >= 1000 else ".1f" if size else ".2f"
    return f".{min(max(2, 1 - math.floor(math.log10(size))), 9)}f"


def _hours(result: Result) -> float:
    return sum(result.seconds.values()) / 3600


def _condense(result: Result) -> float | None:
    """Seconds a task of choosing or making exemplars; None of a method that does neither."""
    known = [result.seconds[part] for part in ("select", "condense") if part in result.seconds]
    return sum(known) / result.tasks if known else None


def _peak(result: Result) -> float | None:
    """Of the device where one was measured, else of the process, in GB."""
    peak = getattr(result, "device_memory_bytes", None) or result.peak_memory_bytes
    return peak / 1e9 if peak else None


def most_kept(result: Result) -> int:
    """Bytes of the memory after the task that left most of them."""
    return max([*result.bytes_after_each_task, result.bytes_kept])


def seen_so_far(result: Result) -> list[float]:
    """Mean accuracy of the tasks seen so far, after each task."""
    return [statistics.fmean(row) for row in result.class_incremental.R]


MEASURES: dict[str, Measure] = {
    "A_T": Measure("A_T", "$A_T$", lambda r: r.class_incremental.A_T),
    "A_L": Measure("A_L", "$A_L$", lambda r: r.class_incremental.A_L),
    "forgetting": Measure("forgetting", "forgetting", lambda r: r.class_incremental.forgetting, down=True),
    "told_A_T": Measure("A_T", "$A_T$", lambda r: r.task_incremental.A_T),
    "told_A_mean": Measure("Ā", r"$\overline{A}$", lambda r: r.task_incremental.A_mean),
    "hours": Measure("hours", "hours", _hours, None, down=True),
    "peak_gb": Measure("peak (GB)", "peak (GB)", _peak, None, down=True),
    "kept_mb": Measure("kept (MB)", "kept (MB)", lambda r: most_kept(r) / 1e6, None, down=True),
    "kept_gb": Measure("kept (GB)", "kept (GB)", lambda r: most_kept(r) / 1e9, None, down=True),
    "condense_s": Measure("seconds a task", "seconds a task", _condense, None, down=True),
}
