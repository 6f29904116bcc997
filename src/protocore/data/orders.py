"""Class orders by name."""

from __future__ import annotations

import re

import numpy as np

from protocore.errors import UserError


def class_order(name: str, classes: int) -> list[int]:
    """`natural`, or a number: numpy's legacy generator with that seed, as PyCIL orders classes (1993)."""
    if name == "natural":
        return list(range(classes))
    if not re.fullmatch("[0-9]{1,10}", name) or int(name) >= 2**32:
        raise UserError(f"--class-order {name!r}: give natural, 1993 or another whole number below 2^32")
    return np.random.RandomState(int(name)).permutation(classes).tolist()
