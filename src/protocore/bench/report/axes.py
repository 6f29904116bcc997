"""The ground that a chart stands on: scales, round numbers for their ticks, markers, and the SVG around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocore.bench.report.markup import Child, Html, el
from protocore.config import format_bytes

COLOURS = 8  # of the style sheet
SHAPES = 6
WIDE, NARROW = 1000, 350  # the two widths in which a large chart is drawn, so that its text stays legible on a phone


@dataclass(frozen=True)
class Scale:
    """From a value to a place."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(max(v, 1e-9)) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Box:
    """A chart's size and the room around its axes."""

    width: float
    height: float
    left: float = 44
    right: float = 12
    top: float = 10
    bottom: float = 40

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.height - self.bottom, self.top)


def nice_top(value: float) -> float:
    """The first round number from `value` on."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((d * power for d in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if d * power >= value * 0.999), 10 * power)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between the two."""
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(d * power for d in (1, 2, 5, 10) if d * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers on a log axis: 1, 2, 5 of each power of ten where there is room, else the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def size_word(size: float) -> str:
    return format_bytes(size).replace(".0 ", " ")


def axes(box: Box, x: Scale, y: Scale, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]],
         x_title: str = "") -> list[Html]:
    """Lines across at the y ticks, words at both, and what the x axis is."""
    made = []
    for value, word in y_ticks:
        made.append(el("line", x1=box.left, x2=box.width - box.right, y1=y(value), y2=y(value), class_="grid"))
        made.append(el("text", word, x=box.left - 6, y=y(value) + 4, class_="end"))
    bottom = box.height - box.bottom
    made.append(el("line", x1=box.left, x2=box.width - box.right, y1=bottom, y2=bottom, class_="axis"))
    made += [el("text", word, x=x(value), y=bottom + 16, class_="mid") for value, word in x_ticks]
    if x_title:
        made.append(el("text", x_title, x=(box.left + box.width - box.right) / 2, y=box.height - 6, class_="mid dim"))
    return made


def svg(title: str, description: str, box: Box, *children: Child, class_: str = "") -> Html:
    width, height = f"{box.width:g}", f"{box.height:g}"
    return el("svg", el("title", title), el("desc", description), *children, viewBox=f"0 0 {width} {height}",
              width=width, height=height, role="img", aria_label=title, class_=class_ or None)


def both(draw: Callable[[float], Html]) -> Html:
    """A chart drawn twice: for wide windows and paper, and for phones. The style sheet shows one of them."""
    return el("div", el("div", draw(WIDE), class_="wide"), el("div", draw(NARROW), class_="narrow"), class_="chart")


def look(k: int) -> str:
    """The class of the k-th series: its colour."""
    return f"s{k % COLOURS}"


def marker(k: int, x: float, y: float, title: str = "", r: float = 4.5, *, hollow: bool = False) -> Html:
    """The sign of the k-th series: shapes change with the colours, for readers who see no colours."""
    a, b = round(r * 1.15, 1), round(r * 0.9, 1)
    paths = (f"M{x - r:g} {y:g}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
             f"M{x - b:g} {y - b:g}h{2 * b}v{2 * b}h{-2 * b}z",
             f"M{x:g} {y - a:g}l{a} {2 * b}h{-2 * a}z",
             f"M{x:g} {y - a:g}l{a} {a}l{-a} {a}l{-a} {-a}z",
             f"M{x:g} {y + a:g}l{a} {-2 * b}h{-2 * a}z",
             f"M{x - r / 3:.1f} {y - r:g}h{r * .67:.1f}v{r * .67:.1f}h{r * .67:.1f}v{r * .67:.1f}h{-r * .67:.1f}"
             f"v{r * .67:.1f}h{-r * .67:.1f}v{-r * .67:.1f}h{-r * .67:.1f}v{-r * .67:.1f}h{r * .67:.1f}z")
    look_of = "mk hollow" if hollow else "mk"
    return el("path", *([el("title", title)] if title else []), d=paths[k % SHAPES], class_=look_of)


def sign(k: int | None, *, line: bool = True, dashed: bool = False, colour: str | None = None) -> Html:
    """A small picture of the k-th series, for a legend; None: a line without markers."""
    parts = [el("line", x1=0, x2=26, y1=7, y2=7, class_="ln dash" if dashed else "ln")] if line else []
    if k is not None:
        parts.append(marker(k, 13, 7))
    return el("svg", parts, viewBox="0 0 26 14", width="26", height="14", aria_hidden="true",
              class_=f"sign {colour or ('level' if k is None else look(k))}")


def counted(low: int, high: int, most: int) -> list[tuple[float, str]]:
    """Ticks of things that are counted: the first, then round numbers that do not touch its word."""
    found = [t for t in ticks(low, high, most) if t == round(t)]
    step = found[1] - found[0] if len(found) > 1 else 1.0
    kept = [float(low), *(t for t in found if t - low >= 0.75 * step)]
    return [(t, f"{t:g}") for t in kept]


def legend(entries: Sequence[tuple[Html, Child]]) -> Html:
    return el("ul", (el("li", picture, " ", words) for picture, words in entries), class_="legend")
