"""What a device has learned of classes, made by hand: reading it must take no torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.mutate import dumped
from fuzz.stored import damaged_document
from fuzz.tensors import laid_out, together
from protocore.device.classifier import known
from protocore.device.container import CLASSES, packed
from protocore.device.statistics import encoded, encoded_matrix

DIM = 4


def classes() -> list[bytes]:
    rows, made = np.random.default_rng(0).normal(size=(3, DIM)), []
    for dtype, matrix in (("int8", {}), ("float16", encoded_matrix(np.cov(rows.T) + np.eye(DIM), "float16"))):
        about = {"format": CLASSES, "version": "0", "graph": "0" * 64, "kind": "discriminant",
                 "classes": ["a", 1, None], "dtype": dtype, "covariance_dtype": "float16", "shrinkage": None}
        made.append(packed(encoded(rows, dtype) | {"counts": np.array([1, 2, 3], np.int32)} | matrix, about))
    return made


def read_classes(path: Path) -> None:
    _, names, statistics = known(path.read_bytes(), path, DIM)
    assert statistics.scores(np.ones((2, DIM))).shape == (2, len(names))
    statistics.learnt(np.ones((2, DIM)), 0)


def damaged_classes(data: bytes, draw: Random) -> bytes:
    return damaged_document(data, draw, "protocore", sealed_classes)


def sealed_classes(header: dict[str, Any], tensors: dict[str, bytes], document: Any, changed: bool) -> bytes:
    rows = laid_out({k: v for k, v in header.items() if k != "__metadata__"}, tensors)
    text = dumped(document)
    total = hashlib.sha256(json.dumps([rows, text], sort_keys=True).encode())
    total.update(b"".join(tensors[name] for name in rows))
    return together({**rows, "__metadata__": {"protocore": text, "sha256": total.hexdigest()}}, tensors)
