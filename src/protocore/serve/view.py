"""The learner's file as the page sees it: read when it has changed, asked by one at a time."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from protocore.errors import DataError
from protocore.field.asking import Prediction
from protocore.field.keeper import Keeper
from protocore.field.photos import decoded
from protocore.field.shown import Shown
from protocore.learn.learner import Learner

MOST_REMEMBERED = 200  # pictures of a class that are shown


class View:
    """Reads, and never writes."""

    def __init__(self, path: Path) -> None:
        self.keeper = Keeper(path)
        self._lock = threading.Lock()
        self._seen: tuple[str, Shown, dict[str, Sequence[torch.Tensor]]] | None = None

    def state(self) -> tuple[str, Shown, dict[str, int]]:
        """The version of the file, what is in it, and how many pictures of each class can be shown."""
        version, shown, pictures = self._look()
        return version, shown, {name: len(few) for name, few in pictures.items()}

    def picture(self, name: str, number: int) -> bytes | None:
        """An exemplar as PNG."""
        few = self._look()[2].get(name, ())
        return png(few[number].numpy()) if number < len(few) else None

    def predict(self, path: Path, top: int, unknown: float | None) -> Prediction:
        with self._lock:
            (found,) = self.keeper.predict([path], top=top, unknown=unknown)
        return found

    def _look(self) -> tuple[str, Shown, dict[str, Sequence[torch.Tensor]]]:
        with self._lock:
            version = self._version()
            if self._seen is None or self._seen[0] != version:
                shown = self.keeper.show()
                pictures = {} if shown.method is None else remembered(self.keeper.learner)
                self._seen = version, shown, pictures
            return self._seen

    def _version(self) -> str:
        try:
            found = self.keeper.path.stat()
        except FileNotFoundError:
            raise DataError(f"{self.keeper.path}: the file is gone; put it back") from None
        return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def remembered(learner: Learner) -> dict[str, Sequence[torch.Tensor]]:
    """Exemplars of each class that are pictures; those of a frozen network are numbers."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in learner.class_names}
    for store in learner.method.stores():
        if len(store) and store.images.shape[2] > 1:
            for label, name in enumerate(learner.class_names):
                rows = (store.labels == label).nonzero()[:, 0][: MOST_REMEMBERED - len(found[name])]
                found[name] += list(store.images[rows])
    return dict(found)


def png(picture: np.ndarray) -> bytes:
    """A picture (C, H, W) of 8 bits as a file."""
    data = io.BytesIO()
    rows = np.ascontiguousarray(picture.transpose(1, 2, 0))
    Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows).save(data, "PNG")
    return data.getvalue()


def flaw(path: Path) -> str | None:
    """Why a picture could not be learned; it is read as a learner reads it."""
    return decoded([path], None, (3, 32, 32), lambda done, of: None)[1].get(0)
