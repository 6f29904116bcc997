"""How well a VQGAN codes pictures: PSNR, use of its codebooks, a picture of reconstructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from protocore.codecs.padding import reflect_pad
from protocore.codecs.vqgan.codec import VQGANCodec
from protocore.codecs.vqgan.network import VQGAN

Pictures = NDArray[np.uint8]
_SIDE = 64  # pixels that a picture of reconstructions gives the longer side of each at least
_PAGE = 1200  # its width, about; fewer pictures are shown where they are large
_GAP = 4


def psnr(images: Tensor, decoded: Tensor) -> Tensor:
    """10 log10(1 / mse) of each picture."""
    return -10 * torch.log10(mse_of(images, decoded).clamp_min(1e-10))


def mse_of(images: Tensor, decoded: Tensor) -> Tensor:
    return (images - decoded).square().flatten(1).mean(1)


@torch.no_grad()
def evaluate(model: VQGAN, pictures: Pictures, stages: int, sweeps: int = 0, batch: int = 256) -> dict[str, Any]:
    """PSNR of uint8 pictures after rounding to uint8 again, and how evenly each codebook is used."""
    was_training, was_learning = model.training, next(model.parameters()).requires_grad
    decoder = VQGANCodec(model, shape_of(pictures), stages, sweeps)
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
    """Up to 16 pictures in a row above their reconstructions, enlarged where they are small, each row with its name."""
    _, channels, height, width = pictures.shape
    scale = -(-_SIDE // max(height, width))
    shown = pictures[: min(16, max(4, _PAGE // (width * scale)))]
    decoder = VQGANCodec(model, shape_of(shown), stages)
    images = torch.from_numpy(shown).float() / 255
    with torch.no_grad():
        decoded = decoder.decode(decoder.quantise(decoder.encode(images)))
    rows = {"original": shown, f"decoded, {decoder.exemplar_bytes} bytes": (decoded * 255).round().byte().numpy()}
    font = ImageFont.load_default()
    left = 4 * _GAP + max(int(font.getbbox(text)[2]) for text in rows)
    across, down = width * scale + _GAP, height * scale + _GAP
    mode, paper, ink = ("L", 255, 0) if channels == 1 else ("RGB", (255,) * 3, (0,) * 3)
    page = Image.new(mode, (left + len(shown) * across, _GAP + len(rows) * down), paper)
    draw = ImageDraw.Draw(page)
    for i, (text, row) in enumerate(rows.items()):
        top = _GAP + i * down
        _, above, _, below = font.getbbox(text)
        draw.text((2 * _GAP, top + (height * scale - above - below) // 2), text, ink, font)
        for j, picture in enumerate(row.repeat(scale, 2).repeat(scale, 3)):
            pixels = picture[0] if channels == 1 else np.ascontiguousarray(picture.transpose(1, 2, 0))
            page.paste(Image.fromarray(pixels), (left + j * across, top))
    return page


def shape_of(pictures: Pictures) -> tuple[int, int, int]:
    _, channels, height, width = pictures.shape
    return channels, height, width
