"""What a device knows of classes, beside the network that never changes there: the mathematics, by numpy alone.

It is the same as `methods/parts/moments.py` does with torch, and what is stored is rounded in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

Arrays = Mapping[str, np.ndarray]
TYPES = ("float32", "float16", "int8")


def encoded(rows: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    """Rows as they are stored; int8 counts in steps of a row's largest entry / 127."""
    if dtype != "int8":
        return {"features": rows.astype(dtype)}
    steps = np.maximum(np.abs(rows).max(1) / 127, 2.0**-24).astype(np.float16)
    values = np.clip(np.rint(rows.astype(np.float32) / steps.astype(np.float32)[:, None]), -127, 127)
    return {"features": values.astype(np.int8), "steps": steps}


def decoded(stored: Arrays) -> np.ndarray:
    """float64 rows of what is stored."""
    rows = stored["features"].astype(np.float32)
    return (rows if "steps" not in stored else rows * stored["steps"].astype(np.float32)[:, None]).astype(np.float64)


def encoded_matrix(cov: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    """A symmetric matrix as its upper triangle over its mean variance, and that."""
    mean = cov.diagonal().mean()
    scale = np.float32(mean if mean > 0 else 1)
    return {"triangles": (cov[np.triu_indices(len(cov))] / np.float64(scale)).astype(dtype)[None],
            "scales": np.array([scale])}


def decoded_matrix(stored: Arrays, dim: int) -> np.ndarray:
    upper = np.zeros((dim, dim))
    upper[np.triu_indices(dim)] = stored["triangles"][0].astype(np.float64) * np.float64(stored["scales"][0])
    return upper + upper.T - np.diag(upper.diagonal())


def oracle_share(cov: np.ndarray, samples: float) -> float:
    """How much of the identity an estimated covariance asks for (Chen et al. 2010, eq. 23)."""
    mean, whole = cov.diagonal().mean() ** 2, np.square(cov).mean()
    below = (samples + 1) * (whole - mean / len(cov))
    return 1.0 if below <= 0 else min((whole + mean) / below, 1.0)


def shrunk(cov: np.ndarray, share: float) -> np.ndarray:
    """(1 - ε)Σ + ε·v·I, v the mean variance; the identity where nothing varies."""
    variance = cov.diagonal().mean()
    if variance <= 0:
        return np.eye(len(cov))
    return (1 - share) * cov + share * variance * np.eye(len(cov))


@dataclass(frozen=True)
class Discriminant:
    """Means of classes, with one covariance in common or none: a linear classifier follows from them."""

    stored: Arrays  # as in the file: features (C, d) with steps, counts, and with a covariance triangles and scales
    dtype: str  # how means are stored
    covariance_dtype: str
    shrinkage: float | None  # share of the identity; None: what the number of pictures asks for

    kind = "discriminant"

    @classmethod
    def of(cls, stored: Arrays, about: Mapping[str, Any], classes: int, dim: int) -> Self:
        """From a file; `ValueError` or `KeyError` where it is not of so many classes and numbers."""
        dtypes, shrinkage = (about["dtype"], about["covariance_dtype"]), about["shrinkage"]
        if any(dtype not in TYPES for dtype in dtypes) or not (shrinkage is None or 0 < shrinkage <= 1):
            raise ValueError("its settings are not known")
        shapes = {"features": (classes, dim), "steps": (classes,), "counts": (classes,),
                  "triangles": (1, dim * (dim + 1) // 2), "scales": (1,)}
        for name, array in stored.items():
            if array.shape != shapes[name] or not np.isfinite(array).all():
                raise ValueError(f"{name} has shape {array.shape} where {shapes[name]} was expected, or is not finite")
        if not classes or (stored["counts"] < 1).any():
            raise ValueError("a class has no pictures")
        if ("steps" in stored) != (dtypes[0] == "int8") or ("triangles" in stored) != ("scales" in stored):
            raise ValueError("steps or scales are missing")
        if stored["features"].dtype != np.dtype(dtypes[0]):
            raise ValueError(f"features are {stored['features'].dtype}")
        made = cls(dict(stored), *dtypes, shrinkage)
        if not all(np.isfinite(part).all() for part in made.classifier):  # or its matrix has no inverse
            raise ValueError("no classifier follows from it")
        return made

    def settings(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "covariance_dtype": self.covariance_dtype, "shrinkage": self.shrinkage}

    @cached_property
    def means(self) -> np.ndarray:
        return decoded(self.stored)

    @cached_property
    def counts(self) -> np.ndarray:
        return self.stored["counts"].astype(np.float64)

    @cached_property
    def cov(self) -> np.ndarray | None:
        return decoded_matrix(self.stored, self.means.shape[1]) if "triangles" in self.stored else None

    @cached_property
    def classifier(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (C, d) and biases: without a covariance the nearest mean in angle, seen from their centre."""
        centre = self.means.mean(0)
        weight = self.means - centre
        if self.cov is None:
            weight /= np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-12)
            return weight, -weight @ centre
        free = self.counts.sum() - len(self.counts)
        share = oracle_share(self.cov, free) if self.shrinkage is None else self.shrinkage
        weight = np.linalg.solve(shrunk(self.cov, share), weight.T).T
        return weight, -0.5 * ((self.means + centre) * weight).sum(1)

    def scores(self, z: np.ndarray) -> np.ndarray:
        """Scores (N, C) of features (N, d); with a covariance log p(z | c), up to what all classes share."""
        weight, bias = self.classifier
        return (z @ weight.T + bias).astype(np.float32)

    def learnt(self, z: np.ndarray, at: int) -> Self:
        """With these features (n, d) of class `at`, which is the next number for a new class.

        What is stored of the other classes stays as it is, to the byte; the covariance is that of all pictures.
        """
        z = z.astype(np.float64)
        mean, count = z.mean(0), len(z)
        scatter = (z - mean).T @ (z - mean) if self.cov is not None else None
        if at < len(self.counts):  # the class has pictures already: its mean moves
            before, away = self.counts[at], self.means[at] - mean
            if scatter is not None:
                scatter += before * count / (before + count) * np.outer(away, away)
            mean, count = mean + away * (before / (before + count)), int(before) + count
        rows = encoded(mean[None], self.dtype) | {"counts": np.array([count], np.int32)}
        stored = dict(self.stored)
        for name, row in rows.items():
            stored[name] = np.concatenate([stored[name][:at], row, stored[name][at + 1 :]])
        if self.cov is not None:
            whole = self.cov * self.counts.sum() + scatter
            stored |= encoded_matrix(whole / stored["counts"].sum(dtype=np.float64), self.covariance_dtype)
        return type(self)(stored, self.dtype, self.covariance_dtype, self.shrinkage)


STATISTICS = {Discriminant.kind: Discriminant}
