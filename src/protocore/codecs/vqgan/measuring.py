"""How well a VQGAN codes pictures: PSNR, and the use of its codebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan.codec import VQGANCodec
from protocore.codecs.vqgan.network import VQGAN

Pictures = NDArray[np.uint8]


def psnr(images: Tensor, decoded: Tensor) -> Tensor:
    """10 log10(1 / mse) of each picture."""
    return -10 * torch.log10(mse_of(images, decoded).clamp_min(1e-10))


def mse_of(images: Tensor, decoded: Tensor) -> Tensor:
    return (images - decoded).square().flatten(1).mean(1)


@torch.no_grad()
def evaluate(model: VQGAN, pictures: Pictures, stages: int, sweeps: int = 0, batch: int = 256) -> dict[str, Any]:
    """PSNR of uint8 pictures after rounding to uint8 again, and how evenly each codebook is used."""
    was_training, was_learning = model.training, next(model.parameters()).requires_grad
    codec = VQGANCodec(model, shape_of(pictures), stages, sweeps)
    errors, used = [], []
    for part in torch.from_numpy(pictures).split(batch):
        images = part.float() / 255
        indices = codec.indices(codec.encode(images))
        decoded = (codec.decode(model.quantiser.lookup(indices)) * 255).round() / 255
        errors.append(mse_of(images, decoded))
        used.append(indices.transpose(0, 1).flatten(1))
    model.train(was_training).requires_grad_(was_learning)
    mse = torch.cat(errors).double().clamp_min(1e-10)
    shares = [torch.bincount(row, minlength=model.config.codes).double() for row in torch.cat(used, 1)]
    return {
        "stages": stages,
        "sweeps": sweeps,
        "exemplar_bytes": codec.exemplar_bytes,
        "psnr": float(-10 * torch.log10(mse).mean()),
        "psnr_of_mean_mse": float(-10 * torch.log10(mse.mean())),
        "pictures": len(pictures),
        "codes_used": [float((row > 0).double().mean()) for row in shares],
        "perplexity": [float(_entropy(row).exp()) for row in shares],
    }


def _entropy(counts: Tensor) -> Tensor:
    share = counts / counts.sum()
    return -torch.special.xlogy(share, share).sum()


@torch.no_grad()
def count_codes(model: VQGAN, arrays: Sequence[Pictures], pictures: int = 4000) -> None:
    """Let the model know how often each code occurs in (some of) these pictures, for entropy coding."""
    counts = torch.full((model.config.stages, model.config.codes), 0.5)  # no code is impossible
    total = sum(len(a) for a in arrays)
    for array in arrays:
        chosen = np.linspace(0, len(array) - 1, max(1, pictures * len(array) // total)).astype(int)
        for part in torch.from_numpy(array[chosen]).split(256):
            z = model.encoder(reflect_pad(part.float() / 255, model.config.factor))
            indices = model.quantiser.indices(z, model.config.stages).transpose(0, 1).flatten(1)
            counts += torch.stack([torch.bincount(row, minlength=model.config.codes) for row in indices])
    # float16 as it will be stored: 1 is an even share
    model.frequencies = (counts / counts.mean(1, keepdim=True)).half().float()


def shape_of(pictures: Pictures) -> tuple[int, int, int]:
    _, channels, height, width = pictures.shape
    return channels, height, width
