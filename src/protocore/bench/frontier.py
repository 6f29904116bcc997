"""Accuracy against bytes: the curve of each memory, who wins in which room, and the area as one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from protocore.bench.compared import Group, Protocol
from protocore.errors import DataError
from protocore.files import tensor_sizes
from protocore.runs.folder import RunFolder


@dataclass(frozen=True)
class Line:
    """A memory in several sizes, the smallest first."""

    name: str
    groups: tuple[Group, ...]

    def points(self, *, decoder: bool) -> list[tuple[float, float]]:
        """Bytes and mean accuracy of each size."""
        return sorted((max(g.bytes(decoder=decoder), 1.0), g.accuracy.mean) for g in self.groups)


@dataclass(frozen=True)
class Step:
    """In rooms of `low` to `high` bytes this group is the best that fits."""

    low: float
    high: float
    winner: Group
    rival: Group | None  # the best of another memory that fits the first of these rooms
    lead: float | None  # points of accuracy over the rival
    clear: bool | None  # more than twice the standard error of the difference; None: too few seeds to say


@dataclass(frozen=True)
class Mark:
    """A figure that the paper prints."""

    name: str
    bytes: float
    accuracy: float


# CIFAR-100 in ten tasks: "Max HDD Mem." of its table of costs with A_T of its main table. ProtoCore's 0.26 MB is
# printed without a number of exemplars; the accuracy beside it is that of one a class. Its 20 + 1 keep the
# pictures of the others beside that. FeCAM's 0 has no place on a log axis.
PAPER = {"cifar100-10": (
    *(Mark(name, 6.20e6, accuracy) for name, accuracy in (
        ("CSReL", 22.71), ("BCSR", 31.52), ("OCS", 29.94), ("PBCS", 35.95), ("OnPro", 29.38), ("iCaRL", 25.92),
        ("DER", 20.44), ("DER++", 23.35), ("C-Flat", 26.81))),
    Mark("LDC", 46e6, 17.54), Mark("ADC", 44e6, 18.68), Mark("ProtoCore, 1 a class", 0.26e6, 18.26),
    Mark("ProtoCore, 20 + 1 a class", 6.46e6, 37.51))}


def paper_marks(protocol: Protocol) -> tuple[Mark, ...]:
    first = protocol.first
    whole = first.tasks == 10 and first.classes == 100 and not first.settings["online"]
    return PAPER.get(first.benchmark, ()) if whole else ()


def area(points: Sequence[tuple[float, float]], low: float, high: float, floor: float = 0.0) -> float:
    """Mean height of a curve of (bytes, accuracy) over the logarithm of the bytes between `low` and `high`.

    Between two points the curve is straight on the log axis; more room never hurts, for it may stay empty: a point
    below an earlier one counts as that. Left of its first point a curve is at `floor`, right of its last it is flat.
    """
    if not 0 < low < high:
        raise ValueError(f"an area needs 0 < low < high, met {low} and {high}")
    curve: list[tuple[float, float]] = []
    for size, accuracy in sorted(points):
        best = max(accuracy, curve[-1][1] if curve else floor)
        if curve and size == curve[-1][0]:
            curve[-1] = (size, best)
        else:
            curve.append((size, best))

    def height(size: float) -> float:
        if not curve or size < curve[0][0]:
            return floor
        for (a, left), (b, right) in pairwise(curve):
            if a <= size < b:
                return left + (right - left) * math.log(size / a) / math.log(b / a)
        return curve[-1][1]

    inner = [size for size, _ in curve if low < size < high]
    total = 0.0
    for a, b in zip([low, *inner], [*inner, high], strict=True):
        # Just before b: at the first point of the curve the floor ends in a step.
        end = floor if curve and b <= curve[0][0] else height(b)
        start = end if curve and b <= curve[0][0] else height(a)
        total += (start + end) / 2 * math.log(b / a)
    return total / math.log(high / low)


def lines_of(protocol: Protocol) -> list[Line]:
    """The memories that are compared; what keeps nothing or saw everything is none."""
    found: dict[str, list[Group]] = {}
    for group in protocol.rivals:
        found.setdefault(group.line, []).append(group)
    return [Line(name, tuple(sorted(groups, key=Group.bytes))) for name, groups in found.items()]


def room(lines: Sequence[Line], *, decoder: bool) -> tuple[float, float]:
    """The bytes between which areas are taken: the smallest memory of all and twice the largest.

    Twice, so that one that was measured in its largest size alone has an area.
    """
    sizes = [max(size, 1.0) for line in lines for size, _ in line.points(decoder=decoder)]
    return min(sizes), 2 * max(sizes)


def floor_of(protocol: Protocol) -> float:
    """The accuracy without any memory: that of fine-tuning where it was run, else that of chance."""
    nothing = [g.accuracy.mean for g in protocol.levels if g.first.keeps_nothing and not g.first.saw_everything]
    return max(nothing) if nothing else 100 / protocol.first.classes


def areas(protocol: Protocol, *, decoder: bool) -> dict[str, float]:
    """The area of each memory, the largest first."""
    lines = lines_of(protocol)
    if not lines:
        return {}
    low, high = room(lines, decoder=decoder)
    found = {line.name: area(line.points(decoder=decoder), low, high, floor_of(protocol)) for line in lines}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def in_colour(protocol: Protocol, most: int) -> list[str]:
    """The memories by area, those first that are drawn in a colour of their own: at most so many, and of these every
    one that is best in some room, however small its area is."""
    names = list(areas(protocol, decoder=False))
    won = {step.winner.line for decoder in (False, True) for step in winners(protocol.rivals, decoder=decoder)}
    own = sorted(names, key=lambda name: name not in won)[:most]
    return sorted(names, key=lambda name: name not in own)


def rooms(low: float, high: float) -> list[float]:
    """Round numbers of bytes (1, 2, 5, 10...) from the first that holds `low` to the first that holds `high`."""
    made: list[float] = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in (1, 2, 5):
            if digit * 10.0**power >= low and (not made or made[-1] < high):
                made.append(digit * 10.0**power)
    return made


def winners(groups: Sequence[Group], *, decoder: bool = False) -> list[Step]:
    """Who is best in which room, the smallest room first; neighbouring rooms of one winner are one step."""
    sizes = [max(g.bytes(decoder=decoder), 1.0) for g in groups]
    steps: list[Step] = []
    for room in rooms(min(sizes), max(sizes)) if sizes else ():
        fit = [g for g, size in zip(groups, sizes, strict=True) if size <= room]
        winner = max(fit, key=lambda g: (g.accuracy.mean, -g.bytes(decoder=decoder)))
        if steps and steps[-1].winner is winner:
            steps[-1] = replace(steps[-1], high=room)
            continue
        rival = max((g for g in fit if g.line != winner.line), key=lambda g: g.accuracy.mean, default=None)
        lead = winner.accuracy.mean - rival.accuracy.mean if rival else None
        steps.append(Step(room, room, winner, rival, lead, _clear(winner, rival)))
    return steps


def _clear(winner: Group, rival: Group | None) -> bool | None:
    if rival is None:
        return None
    a, b = winner.accuracy, rival.accuracy
    if a.deviation is None or b.deviation is None:
        return None
    error = math.sqrt(a.deviation**2 / a.count + b.deviation**2 / b.count)
    return a.mean - b.mean > 2 * error


def frontier_rows(protocols: Sequence[Protocol]) -> list[dict[str, Any]]:
    """A row a kind of run, with the areas of its memory; then the paper's figures."""
    rows: list[dict[str, Any]] = []
    for protocol in protocols:
        plain, counted = (areas(protocol, decoder=decoder) for decoder in (False, True))
        for g in protocol.groups:
            score = g.accuracy
            rows.append({
                "protocol": protocol.name, "memory": g.line, "run": g.label, "seeds": score.count,
                "bytes": None if g.is_level else round(g.bytes()),
                "bytes_with_decoder": None if g.is_level else round(g.bytes(decoder=True)),
                "network_bytes": network_bytes(g), "A_T": round(score.mean, 3),
                "deviation": None if score.deviation is None else round(score.deviation, 3),
                "area": _rounded(plain.get(g.line)) if not g.is_level else None,
                "area_with_decoder": _rounded(counted.get(g.line)) if not g.is_level else None, "source": "run"})
        rows += [{"protocol": protocol.name, "memory": m.name, "run": f"paper: {m.name}", "bytes": round(m.bytes),
                  "bytes_with_decoder": None, "A_T": m.accuracy, "source": "paper"} for m in paper_marks(protocol)]
    return rows


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def network_bytes(group: Group) -> int | None:
    """Bytes of the network itself, which no memory counts; None where no run folder tells."""
    for run in group.runs:
        if run.folder and (path := RunFolder(run.folder).learner).is_file():
            try:
                return sum(size for name, size in tensor_sizes(path).items() if name.startswith("net/"))
            except DataError:
                return None
    return None
