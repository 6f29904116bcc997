"""How well a VQGAN codes pictures: PSNR, use of its codebooks, a picture of reconstructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from protocore.decoders.padding import reflect_pad
from protocore.decoders.vqgan.codec import VQGANDecoder
from protocore.decoders.vqgan.network import VQGAN

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
    decoder = VQGANDecoder(model, shape_of(pictures), stages, sweeps)
    errors, used = [], []
    for part in torch.from_numpy(pictures).split(batch):
        images = part.float() / 255
        indices = decoder.indices(decoder.encode(images))
        decoded = (decoder.decode(model.quantiser.lookup(indices)) * 255).round() / 255
        errors.append(mse_of(images, decoded))
        used.append(indices.transpose(0, 1).flatten(1))
    model.train(was_training).requires_grad_(was_learning)
    mse = torch.cat(errors).double().clamp_min(1e-10)
    shares = [torch.bincount(row, minlength=model.config.codes).double() for row in torch.cat(used, 1)]
    return {
        "stages": stages,
        "sweeps": sweeps,
        "exemplar_bytes": decoder.exemplar_bytes,
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


def picture_of(model: VQGAN, pictures: Pictures, stages: int) -> Image.Image:
    """Up to 16 pictures in a row, each original above its reconstruction."""
    shown = pictures[:16]
    decoder = VQGANDecoder(model, shape_of(shown), stages)
    images = torch.from_numpy(shown).float() / 255
    with torch.no_grad():
        decoded = decoder.decode(decoder.quantise(decoder.encode(images)))
    bytes_ = (torch.stack([images, decoded]) * 255).round().to(torch.uint8)
    grid = bytes_.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()  # (2 H, N W, C)
    return Image.fromarray(grid[:, :, 0] if grid.shape[2] == 1 else grid)


def shape_of(pictures: Pictures) -> tuple[int, int, int]:
    _, channels, height, width = pictures.shape
    return channels, height, width
