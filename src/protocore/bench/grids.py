"""Pictures of exemplars: rows of images with a name each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protocore.bench.fonts import drawable
from protocore.bench.style import DPI, figure_at, first_of, short
from protocore.errors import UserError

COLUMNS, PICTURES = 20, 4000  # of an exemplar grid, at most
LEAST_WIDTH = 600  # pixels of a grid: room for a few words in a line of its title


def exemplar_grid(images: Any, labels: Any, class_names: Sequence[str], path: Path, title: str) -> None:
    """A row a class, pixels as squares. Many classes of few exemplars stand in several blocks side by side."""
    pictures, of = np.asarray(images), np.asarray(labels)
    if pictures.ndim != 4 or pictures.dtype != np.uint8 or len(pictures) != len(of):
        raise UserError(f"exemplars must be uint8 images (N, C, H, W) with N labels, met {pictures.dtype} "
                        f"{pictures.shape} with {len(of)} labels")
    if not len(pictures):
        raise UserError("there are no exemplars to draw: this memory is empty")
    classes, counts = np.unique(of, return_counts=True)
    columns = min(COLUMNS, max(PICTURES // len(classes), 1))
    rows_of = [np.flatnonzero(of == c)[:columns] for c in classes]
    chosen = _enlarged(pictures[np.concatenate(rows_of)], 112 if len(pictures) <= 40 else 72)
    pictures_of = np.split(chosen, np.cumsum([len(r) for r in rows_of])[:-1])
    names = [short(str(class_names[int(c)])) for c in classes]
    part = first_of([len(r) for r in rows_of], counts.tolist(), "exemplars of each class")
    _grid([(name, [[picture] for picture in row]) for name, row in zip(names, pictures_of, strict=True)], path, title,
          part, size=9.0)


def pairs_grid(rows: Sequence[tuple[str, Sequence[tuple[Any, Any]]]], path: Path, title: str, note: str = "") -> None:
    """A row a name: pairs of uint8 pictures (C, H, W) side by side, a space between two pairs."""
    if not rows:
        raise UserError("there are no pictures to draw")
    flat = [np.asarray(picture) for _, pairs in rows for pair in pairs for picture in pair]
    big = iter(_enlarged(np.stack(flat), 112 if len(flat) <= 40 else 64))
    _grid([(short(name, 40), [[next(big), next(big)] for _ in pairs]) for name, pairs in rows], path, title, note,
          size=8.0, between=12)


def _grid(rows: Sequence[tuple[str, Sequence[Sequence[np.ndarray]]]], path: Path, title: str, note: str, *,
          size: float, between: int = 0) -> None:
    """Rows of groups of pictures (H, W, 3) with a name each, in blocks side by side; title and note in lines above.

    `size` is that of the names, in points, `between` the room between two groups of a row, in pixels.
    """
    gap, inner, space, edge = 6, 3, 36, 28
    side, wide = next(picture.shape[:2] for _, groups in rows for group in groups for picture in group)
    together = max(len(group) for _, groups in rows for group in groups)
    group_width = together * wide + (together - 1) * inner + gap + between
    name_width = int(0.62 * size / 72 * DPI * max(len(name) for name, _ in rows)) + 14
    block_width = name_width + max(len(groups) for _, groups in rows) * group_width
    blocks = _blocks(len(rows), block_width, side + gap)
    deep = -(-len(rows) // blocks)
    width = max(2 * edge + blocks * block_width + (blocks - 1) * space, LEAST_WIDTH)
    lines = _lines(drawable(title), note, width - 2 * edge)
    top = edge + sum(line.height for line in lines) + (24 if lines else 0)
    height = top + deep * (side + gap) + edge
    canvas = np.full((height, width, 3), 255, np.uint8)
    # Half a pixel more, or rounding would sometimes cut a row or column off.
    with figure_at(path, (width + 0.5) / DPI, (height + 0.5) / DPI, [title, *(name for name, _ in rows)]) as figure:
        for k, (name, groups) in enumerate(rows):
            left = edge + (k // deep) * (block_width + space) + name_width
            y = top + (k % deep) * (side + gap)
            for j, group in enumerate(groups):
                for i, picture in enumerate(group):
                    x = left + j * group_width + i * (wide + inner)
                    canvas[y : y + side, x : x + wide] = picture
            figure.text((left - 14) / width, 1 - (y + side / 2) / height, name, ha="right", va="center", fontsize=size)
        figure.figimage(canvas, zorder=-1)
        y = edge
        for line in lines:
            figure.text(edge / width, 1 - y / height, line.text, va="top", fontsize=line.size, fontweight=line.weight)
            y += line.height


@dataclass(frozen=True)
class _Line:
    text: str
    size: float  # points
    weight: str
    height: int  # pixels


def _lines(title: str, note: str, width: int) -> list[_Line]:
    """Title (bold) and note in lines that fit so many pixels."""
    return [*(_Line(text, 10, "bold", 36) for text in textwrap.wrap(title, max(width // 18, 12))),
            *(_Line(text, 8.5, "normal", 32) for text in textwrap.wrap(note, max(width // 14, 12)))]


def _enlarged(images: np.ndarray, least: int, most: int = 128) -> np.ndarray:
    """(N, H, W, 3) at a whole multiple of the size, so that pixels stay square; large pictures are averaged down."""
    x = np.moveaxis(images, 1, 3)
    x = np.broadcast_to(x, (*x.shape[:3], 3)) if x.shape[3] == 1 else x[..., :3]
    shrink = -(-max(x.shape[1:3]) // most)
    if shrink > 1:
        h, w = (n // shrink for n in x.shape[1:3])
        squares = x[:, : h * shrink, : w * shrink].reshape(len(x), h, shrink, w, shrink, 3)
        x = squares.mean((2, 4)).round().astype(np.uint8)
    grow = max(-(-least // max(x.shape[1:3])), 1)
    return x.repeat(grow, 1).repeat(grow, 2)


def _blocks(rows: int, width: int, height: int) -> int:
    """Blocks side by side, of five rows or more: as many as bring the width nearest to 1.4 times the height."""
    def off(n: int) -> float:
        return abs(np.log(n * width / (-(-rows // n) * height) / 1.4))

    return min(range(1, max(rows // 5, 1) + 1), key=off)
