"""Folders of small pictures that are easily told apart, and learners that are small enough to learn them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocore.field.keeper import Keeper

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "yellow": (220, 210, 20),
           "white": (240, 240, 240)}
TINY = {"backbone": "mlp", "width": 16, "image_size": 8, "budget": "16KB", "steps": 40, "method": "er",
        "codec": "pixels", "threads": 1, "augment": "none", "lr": 0.01, "optimizer": "adam", "schedule": "constant"}

Paint = Callable[..., Path]


@pytest.fixture
def paint(tmp_path: Path) -> Paint:
    """A folder of class folders: noisy pictures of a colour; others with another `seed`."""

    def made(folder: str, *names: str, each: int = 8, seed: int = 0) -> Path:
        chance = np.random.default_rng([seed, *map(ord, folder)])
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(each):
                noisy = np.array(COLOURS[name]) + chance.normal(0, 12, (10, 12, 3))
                Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(tmp_path / folder / name / f"{number}.png")
        return tmp_path / folder

    return made


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    """A new learner that trains a small network."""
    return Keeper.new(tmp_path / "mine.learner", **TINY)
