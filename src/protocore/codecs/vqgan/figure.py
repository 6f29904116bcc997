"""The picture of a trained decoder: held-out pictures, and below them what comes back at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from protocore.codecs.vqgan.codec import VQGANCodec
from protocore.codecs.vqgan.measuring import Pictures, psnr, shape_of
from protocore.codecs.vqgan.network import VQGAN
from protocore.config import plural

_LEAST, _MOST = 96, 256  # pixels of a tile's longer side: small pictures are enlarged, large ones reduced
_PAGE = 1100  # pixels that a row of tiles may take
_EDGE, _GAP = 24, 10
_INK, _PALE = (20, 20, 20), (110, 110, 110)
_WORDS, _SMALL, _TINY = 22, 17, 15  # sizes of type


def reconstructions(model: VQGAN, pictures: Pictures, measured: Sequence[Mapping[str, Any]]) -> Image.Image:
    """Some pictures, spread over all of them, above one row for each of `measured` (the dictionaries of `evaluate`).

    A row says its bytes and its mean PSNR over all pictures; below each decoded picture stands its own.
    """
    tile = _tile_size(*pictures.shape[2:])
    columns = min(len(pictures), max(3, min(10, (_PAGE + _GAP) // (tile[0] + _GAP))))
    shown = pictures[np.linspace(0, len(pictures) - 1, columns).round().astype(int)]
    images = torch.from_numpy(shown).float() / 255
    rows = [(images, "original", f"{shown[0].size:,} bytes", False)]
    for point in measured:
        rows.append((_decoded(model, images, point["stages"]), plural(point["stages"], "stage"),
                     f"{point['exemplar_bytes']:,} bytes,  {point['psnr']:.1f} dB", True))
    words, small, tiny = (ImageFont.load_default(size) for size in (_WORDS, _SMALL, _TINY))
    left = _EDGE + 2 * _GAP + int(max(max(words.getlength(name), small.getlength(told)) for _, name, told, _ in rows))
    under = _TINY + 2 * _GAP  # of a decoded row, for its numbers
    high = max(tile[1], 2 * _WORDS)  # there is room for two lines beside a flat picture too
    width, height = left + columns * (tile[0] + _GAP) - _GAP + _EDGE, len(rows) * high + len(measured) * under
    page = Image.new("RGB", (width, 2 * _EDGE + height), "white")
    draw = ImageDraw.Draw(page)
    top = _EDGE
    for row, name, told, decoded in rows:
        middle = top + high // 2
        draw.text((_EDGE, middle - 3), name, _INK, words, anchor="ls")
        draw.text((_EDGE, middle + 6), told, _PALE, small, anchor="lt")
        for column, (picture, gain) in enumerate(zip(row, psnr(images, row).tolist(), strict=True)):
            x = left + column * (tile[0] + _GAP)
            page.paste(_tile(picture, tile), (x, middle - tile[1] // 2))
            if decoded:
                draw.text((x + tile[0] // 2, middle + tile[1] // 2 + 5), f"{gain:.1f} dB", _PALE, tiny, anchor="mt")
        top += high + (under if decoded else _GAP)
    return page


def _decoded(model: VQGAN, images: Tensor, stages: int) -> Tensor:
    """As replay sees them: rounded to uint8."""
    codec = VQGANCodec(model, shape_of(images.numpy()), stages)
    with torch.no_grad():
        return (codec.decode(codec.quantise(codec.encode(images))) * 255).round() / 255


def _tile_size(height: int, width: int) -> tuple[int, int]:
    """Width and height: a whole multiple of a small picture, so that its pixels stay squares."""
    side = max(height, width)
    if side > _MOST:
        return max(1, round(width * _MOST / side)), max(1, round(height * _MOST / side))
    scale = -(-_LEAST // side)
    return width * scale, height * scale


def _tile(picture: Tensor, size: tuple[int, int]) -> Image.Image:
    pixels = (picture * 255).round().byte().expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    enlarged = size[0] >= picture.shape[2]
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS)
