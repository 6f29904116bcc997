"""How all pictures look: colours, sizes and fonts, and a figure that is written whole."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocore.bench.fonts import drawable, fonts_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200  # twice what a README shows
# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow is too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "v", "P", "X")
INK, FAINT = "#333333", "#8A8A8A"  # FAINT is also the colour of bounds: no memory at all, all data at once
STYLE = {
    "font.size": 9, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": INK,
    "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "axes.axisbelow": True, "axes.titlelocation": "left",
    "axes.titlesize": 10, "axes.titleweight": "bold", "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "legend.frameon": False, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0,
    "xtick.major.pad": 6, "text.parse_math": False,
    "svg.hashsalt": "protocore",  # else its names change with every drawing
}


_AS_PNG: dict[str, Any] = {"format": "png", "dpi": DPI, "metadata": {"Software": None}}
_AS_SVG: dict[str, Any] = {"format": "svg", "metadata": {"Date": None, "Creator": None}}  # the same bytes each time


@contextmanager
def figure_at(path: Path, width: float, height: float, texts: Iterable[str] = (), *, svg: bool = False,
              **more: Any) -> Iterator[Figure]:
    """A figure in our style, whatever style the user has set, written whole at the end: as SVG where the path says so,
    else as PNG; `svg`: as both.

    `texts` are those that it will have and that may need more fonts (names of classes and folders).
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from protocore.files import write_atomic

    with _quiet_fonts(), style.context(["default", STYLE, {"font.family": fonts_for(texts)}]):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", **more)
        FigureCanvasAgg(figure)
        yield figure
        data = io.BytesIO()
        figure.savefig(data, **_AS_SVG if path.suffix == ".svg" else _AS_PNG)
        drawn = io.BytesIO()
        if svg:
            figure.set_layout_engine("none")  # it stays as it was laid out
            figure.savefig(drawn, **_AS_SVG)
    write_atomic(path, data.getvalue())
    if svg:
        write_atomic(path.with_suffix(".svg"), drawn.getvalue())


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """matplotlib warns where a font has no bold face, and takes the plain one: which is what we want."""
    logger = logging.getLogger("matplotlib.font_manager")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def short(name: str, most: int = 24) -> str:
    """A name that can be drawn, cut to so many characters."""
    name = drawable(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def first_of(shown: Sequence[int], held: Sequence[int], of: str) -> str:
    """`first 4 of 20 exemplars`, for counts of each class; nothing where all are shown."""
    if list(shown) == list(held):
        return ""
    return f"first {max(shown)} of {'' if len(set(held)) == 1 else 'up to '}{max(held)} {of}"
