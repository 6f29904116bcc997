"""Letters of every script in pictures: an installed font that has them, else a way to write them without it."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable

BASE = "DejaVu Sans"  # comes with matplotlib
# matplotlib's fonts for formulas, and one whose every letter is a box; emoji of fixed colours are bitmaps, which
# matplotlib cannot draw.
_NOT_FOR_TEXT = ("cm", "STIX", "Last Resort", "LastResort", "DejaVu Sans Display", "DejaVu Serif Display")
_WEIGHTS = (400, 500, 700, "normal", "regular", "book", "medium", "bold")  # of our texts and titles, or near them
_SILENT = frozenset({0x200C, 0x200D, *range(0xFE00, 0xFE10)})  # joiners and variation selectors draw nothing


def fonts_for(texts: Iterable[str]) -> list[str]:
    """Families for a figure with these texts: the usual one, then those that have what it lacks."""
    found = [_font_of(letter) for letter in sorted({letter for text in texts for letter in text})]
    return list(dict.fromkeys([BASE, *(family for family in found if family)]))


def drawable(text: str) -> str:
    """The text, with what no installed font can draw written out: `(cat face)`, `\\u732b`. No box is ever drawn."""
    return "".join(letter if _font_of(letter) else _written(letter) for letter in text)


def _written(letter: str) -> str:
    if ord(letter) in _SILENT:
        return ""
    if unicodedata.category(letter) == "So" and (name := unicodedata.name(letter, "")):
        return f"({name.lower()})"
    return letter.encode("unicode_escape").decode("ascii")


@functools.cache
def _font_of(letter: str) -> str | None:
    """The family that draws a letter; None where none does."""
    if letter == "\n" or ord(letter) in _letters_of(BASE):
        return BASE
    if ord(letter) in _SILENT:
        return None
    return next((family for family in _families() if ord(letter) in _letters_of(family)), None)


@functools.cache
def _families() -> dict[str, list[str]]:
    """Installed families but the usual one, with their files."""
    from matplotlib.font_manager import fontManager

    found: dict[str, list[str]] = {}
    for font in fontManager.ttflist:
        plain = font.style == "normal" and font.stretch in ("normal", 100) and font.weight in _WEIGHTS
        if plain and "Color" not in font.name and not font.name.startswith(_NOT_FOR_TEXT):
            found.setdefault(font.name, []).append(font.fname)
    return found


@functools.cache
def _letters_of(family: str) -> frozenset[int]:
    """The letters that all files of a family have: matplotlib takes one of them for each weight."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset.intersection(*(frozenset(FT2Font(path).get_charmap()) for path in _families()[family]))
    except (OSError, RuntimeError):  # a file that is gone or damaged, or of a kind that matplotlib cannot draw
        return frozenset()
