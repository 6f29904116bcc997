"""Lists of seeds as people write them."""

from __future__ import annotations

import re

from protocore.errors import UserError, shown

MOST_SEEDS = 1000  # in one command


def parse_seeds(text: str) -> list[int]:
    """`0,1,2`, `0..2` or both: the seeds, each once.

    >>> parse_seeds("0..2,7")
    [0, 1, 2, 7]
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,19})(?:\.\.([0-9]{1,19}))?\s*", part)
        if not match:
            raise UserError(f"{shown(text)} is no list of seeds; write for example 0,1,2 or 0..2")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UserError(f"{shown(part)} runs backwards; write {last}..{first}")
        if last - first >= MOST_SEEDS or len(found) > MOST_SEEDS:
            raise UserError(f"{shown(text)} are more than {MOST_SEEDS:,} seeds; give fewer at a time")
        found |= dict.fromkeys(range(first, last + 1))
    return list(found)
