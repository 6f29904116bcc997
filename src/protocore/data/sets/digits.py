"""scikit-learn's 8x8 handwritten digits."""

from __future__ import annotations

import numpy as np

from protocore.data.base import Benchmark, Pair, Source
from protocore.data.images import ArrayImages, array_set

NAMES = tuple("0123456789")


def read_digits() -> Pair:
    """The test set is every 5th image of each class, in file order."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    pixels, target = load_digits(return_X_y=True)
    grey = ((pixels.astype(np.int64) * 255 + 8) // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = target.astype(np.int64)
    in_test = np.zeros(len(labels), bool)
    for label in range(10):
        in_test[np.flatnonzero(labels == label)[4::5]] = True
    train, test = (array_set(ArrayImages(grey[rows]), labels[rows], NAMES) for rows in (~in_test, in_test))
    return train, test


SOURCE = Source("digits", lambda root: read_digits(), (1442, 355), None,
                by_hand="digits comes with scikit-learn: there is nothing to download")

BENCHMARKS = {
    "digits": Benchmark(
        "scikit-learn's 8x8 digits, embedded: 5 tasks of 2 classes", lambda root, size: read_digits(), 2,
        mean=(0.3,), std=(0.37,), source=SOURCE),
}
