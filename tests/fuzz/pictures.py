"""Pictures of every format that is read, and exemplars of every codec."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz.mutate import damaged_bytes

CODECS = ("pixels", "webp:30", "jpeg:30", "vqgan:2", "vqgan:2,entropy")


@cache
def _pixels() -> np.ndarray:
    x, y = np.meshgrid(np.arange(24), np.arange(20))
    return np.stack([x * 9, y * 11, (x * y) % 256], -1).astype(np.uint8)


def picture_files() -> list[bytes]:
    from PIL import Image

    colour = Image.fromarray(_pixels())
    indexed, grey = colour.convert("P"), colour.convert("L")
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("PNG", colour, {}), ("PNG", indexed, {"transparency": 3}), ("PNG", colour.convert("1"), {}),
        ("PNG", colour.convert("RGBA"), {"dpi": (72, 72)}), ("JPEG", colour, {}), ("JPEG", grey, {"progressive": True}),
        ("JPEG", colour.convert("CMYK"), {}), ("WEBP", colour, {}), ("WEBP", colour.convert("RGBA"),
                                                                     {"lossless": True}),
        ("GIF", indexed, {}), ("GIF", indexed, {"save_all": True, "append_images": [indexed.rotate(90)]}),
        *(("TIFF", colour, {"compression": how}) for how in (None, "tiff_lzw", "jpeg", "packbits", "tiff_deflate")),
        ("TIFF", colour.convert("1"), {"compression": "group4"}), ("BMP", colour, {}), ("BMP", indexed, {}),
        ("PPM", colour, {}), ("PPM", grey, {}), ("PPM", colour.convert("1"), {}),
    ]
    made = []
    for kind, picture, options in kinds:
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        made.append(buffer.getvalue())
    made.append(b"P3 2 2 255 " + b" ".join(str(i * 20).encode() for i in range(12)))  # PPM as text
    return made


def read_picture(path: Path) -> None:
    from protocore.data.images import FileImages

    for channels in (3, 1):
        FileImages([path], 8, channels).take(np.array([0]))


def damaged_picture(data: bytes, draw: Random) -> bytes:
    """Damage with PNG's sums put right; PPM's numbers; anything else as bytes."""
    if data.startswith(b"\x89PNG") and draw.random() < 0.7:
        return _damaged_png(data, draw)
    if data[:1] == b"P" and draw.random() < 0.5:
        size = draw.choice((b"0", b"-1", b"1", b"65535", b"99999", b"7071", b"9" * 20, b"1" * 5000, b"\x1b", b"#\n",
                            b"3.5", b""))
        numbers = [draw.choice((number, size)) for number in (b"24", b"20", b"255")]
        return b" ".join([data[:2], *numbers]) + b"\n" + data[13:]
    return damaged_bytes(data, draw)


def _damaged_png(data: bytes, draw: Random) -> bytes:
    chunks, at = [], 8
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return damaged_bytes(data, draw)
    where = draw.randrange(len(chunks))
    kind, body = chunks[where]
    if kind == b"IHDR" and len(body) == 13 and draw.random() < 0.7:
        sides = [draw.choice((0, 1, 24, 4000, 7071, 13_300, 65_535, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
        body = struct.pack(">II", *sides) + draw.choice((body[8:], bytes(draw.choice((0, 1, 2, 3, 4, 6, 8, 16))
                                                                         for _ in range(5))))
    elif kind == b"IDAT" and draw.random() < 0.5:
        body = zlib.compress(draw.choice((b"\0" * 5_000_000, b"\xff" * 5000, b"", damaged_bytes(body, draw))))
    else:
        body = damaged_bytes(body, draw)
    chunks[where] = (draw.choice((kind, kind, kind, b"iTXt", b"zTXt", b"tRNS", b"PLTE", b"fdAT", b"acTL", b"eXIf",
                                  b"iCCP")), body)
    if draw.random() < 0.1:
        chunks.insert(where, (b"zTXt", b"k\0\0" + zlib.compress(b"a" * 20_000_000)))
    return data[:8] + b"".join(len(b).to_bytes(4, "big") + k + b + zlib.crc32(k + b).to_bytes(4, "big") for k,
                               b in chunks)


@cache
def _codec(name: str) -> Any:
    from protocore.codecs import codec_named

    return codec_named(name, (1, 8, 8) if name.startswith("pixels") else (3, 16, 24))


def exemplars() -> list[bytes]:
    """The number of the codec, then what it stored."""
    import torch

    colour = torch.from_numpy(_pixels()[:16].copy()).permute(2, 0, 1)[None].float() / 255
    made = []
    for number, name in enumerate(CODECS):
        codec = _codec(name)
        picture = colour if codec.image_shape[0] == 3 else colour[:, :1, :8, :8]
        made.append(bytes([number]) + codec.to_bytes(codec.quantise(codec.encode(picture)))[0])
    return made


def read_exemplar(path: Path) -> None:
    data = path.read_bytes()
    codec = _codec(CODECS[data[0] % len(CODECS)] if data else "pixels")
    stored = data[1:]
    pictures = codec.decode(codec.from_bytes([stored, stored]))
    assert tuple(pictures.shape) == (2, *codec.image_shape)
