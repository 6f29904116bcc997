"""Small charts that stand side by side: bars of classes and of bytes, shares of a whole, a map of features."""

from __future__ import annotations

from collections.abc import Sequence

from protocore.bench.report.axes import Box, axes, counted, look, nice_top, size_word, svg, ticks
from protocore.bench.report.markup import Html, el

WIDTH = 350


def bars(title: str, description: str, values: Sequence[float], looks: Sequence[str], *, percent: bool = False,
         x_title: str = "", names: Sequence[str] = (), lines: Sequence[tuple[float, str]] = ()) -> Html:
    """A bar a value; `looks` are the classes of their colours, `lines` are levels across, named where one points."""
    box = Box(WIDTH, 170, left=50)
    top = nice_top(max([*values, 10.0 if percent else 1.0]))
    x, y = box.x(0, len(values)), box.y(0, top)
    step = (box.width - box.left - box.right) / max(len(values), 1)
    words = (lambda t: f"{t:g} %") if percent else size_word
    x_ticks = [(t - 0.5, word) for t, word in counted(1, len(values), 12 if len(values) <= 12 else 5)]
    parts = axes(box, x, y, x_ticks, [(t, words(t)) for t in ticks(0, top, 4)], x_title)
    wide = max(step * (0.8 if step > 4 else 1), 0.4)
    for i, (value, colour) in enumerate(zip(values, looks, strict=True)):
        name = names[i] if i < len(names) else str(i + 1)
        at, height = y(value), y(0) - y(value)
        parts.append(el("rect", el("title", f"{name}: {words(round(value, 1))}"), x=round(x(i) + (step - wide) / 2, 1),
                        y=at, width=round(wide, 1), height=max(round(height, 1), 0), class_=f"bar {colour}"))
    for value, word in lines:
        parts.append(el("line", el("title", word), x1=box.left, x2=box.width - box.right, y1=y(value), y2=y(value),
                        class_="ln dash level"))
    return svg(title, description, box, parts)


def shares(title: str, parts: Sequence[tuple[str, float]], words: Sequence[str], total: float | None = None) -> Html:
    """A bar cut into parts; `words` say how much each is."""
    box = Box(WIDTH, 18, left=0, right=0)
    whole = total or sum(value for _, value in parts) or 1.0
    x = box.x(0, whole)
    made, at = [], 0.0
    for k, ((name, value), word) in enumerate(zip(parts, words, strict=True)):
        wide = max(round(x(at + value) - x(at), 1), 0.5) if value else 0
        made.append(el("rect", el("title", f"{name}: {word}"), x=x(at), y=2, width=wide, height=14,
                       class_=f"bar {look(k)}"))
        at += value
    said = "; ".join(f"{name} {word}" for (name, _), word in zip(parts, words, strict=True))
    return svg(title, said, box, made, class_="shares")
