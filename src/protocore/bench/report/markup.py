"""Markup that cannot be broken out of: whatever is not markup already is escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable

from protocore.errors import printable

LONGEST = 4000  # characters of a text on the page
TALL = 20  # rows, from which a table scrolls in its own box
VOID = frozenset({"meta", "img", "input", "br", "hr", "path", "line", "rect", "circle", "polyline", "link"})


class Html(str):
    """A text that is markup, made by `el`."""

    __slots__ = ()


Child = str | float | None | Iterable["Child"]


def text(value: object, longest: int = LONGEST) -> Html:
    """Any text as it may stand on a page: printable, cut short, escaped."""
    return Html(html.escape(printable(str(value), longest), quote=True))


def el(tag: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. `class_` and `for_` lose their last sign, `data_v` becomes data-v; None and False are left out."""
    words = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            # A link to data is made here and may be long; every other value is a text like any other.
            words.append(f'{name}="{value if isinstance(value, Html) else text(value)}"')
    opened = " ".join(words)
    return Html(f"<{opened}/>") if tag in VOID and not children else Html(f"<{opened}>{join(children)}</{tag}>")


def join(children: Iterable[Child], between: str = "") -> Html:
    """Children one after the other, escaped where they are no markup."""
    made = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            made.append(child)
        elif isinstance(child, str | int | float):
            made.append(text(child))
        else:
            made.append(join(child))
    return Html(between.join(made))


def data_uri(kind: str, data: bytes) -> Html:
    return Html(f"data:{kind};base64,{base64.b64encode(data).decode()}")


def details(summary: Child, *children: Child, opened: bool = False, **attributes: str | None) -> Html:
    return el("details", el("summary", summary), *children, open=opened, **attributes)


def number(head: Child) -> Html:
    """The heading of a column of numbers."""
    return el("th", head, scope="col", class_="n")


def table(caption: str, heads: Iterable[Child], rows: Iterable[Html], *, class_: str = "", fit: bool = False,
          **more: str) -> Html:
    """A table in a box of its own, which scrolls where the window is narrower than the table.

    Headings are words, or made by `number` for numbers. `fit`: no wider than it must be.
    """
    rows = list(rows)
    head = el("thead", el("tr", (h if isinstance(h, Html) and h.startswith("<th") else el("th", h, scope="col")
                                 for h in heads)))
    inner = el("table", el("caption", caption), head, el("tbody", rows), class_=class_ or None, **more)
    look = "scroll" + " fit" * fit + " tall" * (len(rows) > TALL)
    return el("div", inner, class_=look, tabindex="0", role="region", aria_label=caption)


def numbers(cells: Iterable[Child]) -> Html:
    """Cells of numbers, to the right."""
    return join(el("td", cell, class_="n") for cell in cells)
