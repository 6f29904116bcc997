"""Baseline JPEG without its header: tables, shape and markers are the same for every picture.

What is stored is the Huffman-coded scan. Where tables made for the picture save more than they take (large
pictures), they go in front: they start with FF C4, which no scan can, since a scan follows each FF by 00.
The quantisation tables are ours: for PSNR at equal bytes the customary ones are too coarse at high frequencies
and in colour. They were chosen on CIFAR-10's training pictures.
"""

from __future__ import annotations

import hashlib
import io
import re
from functools import cached_property

import numpy as np
from PIL import Image

from protocore.codecs.picture import PictureCodec
from protocore.errors import DataError
from protocore.pictures import ImageShape

_SOF, _DHT, _SOS = 0xC0, 0xC4, 0xDA
_TABLES = bytes([0xFF, _DHT])
_END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff(?!\x00)")
_FILLER = b"\xfe" * 64  # ones, where libjpeg fills in zeros


def quantisation_table(quality: int, step: float) -> list[int]:
    """step (1 + 2 (u + v) / 14) at quality 50, scaled with the quality as libjpeg scales its tables."""
    scale = 50 / quality if quality < 50 else 2 - quality / 50
    u, v = np.meshgrid(np.arange(8), np.arange(8))
    table = np.round(step * scale * (1 + (u + v) / 7)).clip(1, 255).astype(int)
    return table.flatten().tolist()


class JPEG(PictureCodec):
    """Colour at half the resolution; the default quality takes about the bytes of WebP's default."""

    name = "jpeg"
    sides = 65500

    def __init__(self, image_shape: ImageShape, quality: int = 25) -> None:
        super().__init__(image_shape, quality)
        self._qtables = [quantisation_table(quality, step) for step in (16.0, 11.2)[: min(image_shape[0], 2)]]

    def file(self, picture: Image.Image, optimise: bool = False) -> bytes:
        """The whole JPEG file, with Huffman tables of its own if `optimise`."""
        buffer = io.BytesIO()
        colour = {} if picture.mode == "L" else {"subsampling": "4:2:0"}
        picture.save(buffer, "JPEG", qtables=self._qtables, optimize=optimise, **colour)
        return buffer.getvalue()

    @cached_property
    def _header(self) -> tuple[bytes, bytes, bytes]:
        """The parts of every file: before the Huffman tables, the common tables, the start of the scan.

        They are those of a small blank, with the sides put into its frame segment: the shape may be a file's word, and
        a blank of that size would take all the memory that it asks for.
        """
        channels, height, width = self.image_shape
        before, common, start, _ = _parts(self.file(Image.new("L" if channels == 1 else "RGB", (16, 16))))
        at = 2
        while before[at + 1] != _SOF:
            at += 2 + _length(before, at)
        at += 5  # behind marker, length and bits a sample
        return before[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + before[at + 4 :], common, start

    def pack(self, picture: Image.Image) -> bytes:
        common, found = self._header[1], []
        for optimise in (False, True):
            file = self.file(picture, optimise)
            _, tables, _, scan = _parts(file)
            stored = scan if tables == common else tables + scan
            if self.restore(stored) != file:
                raise RuntimeError(f"this build of Pillow writes a JPEG header that varies: {file[:20].hex()}")
            found.append(stored)
        return min(found, key=len)

    def restore(self, stored: bytes) -> bytes:
        before, common, start = self._header
        at = 0
        while stored[at : at + 2] == _TABLES:
            at += 2 + _length(stored, at)
        if at >= len(stored):
            raise DataError(f"no scan in its {len(stored)} bytes")
        if _MARKER.search(stored, at):
            raise DataError("a marker within its scan")
        return before + (stored[:at] or common) + start + stored[at:] + _END

    def prolonged(self, file: bytes) -> bytes:
        return file[: -len(_END)] + _FILLER + _END

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"jpeg " + b"".join(self._header)).hexdigest()


def _length(data: bytes, at: int) -> int:
    """Length of the segment whose marker is at `at`, its own two bytes included."""
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    if length < 2 or at + 2 + length > len(data):
        raise DataError(f"a table of {length} bytes does not fit")
    return length


def _parts(file: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Everything before the Huffman tables, these, the header of the scan, and the scan without its end."""
    at, first = 2, 0
    while file[at + 1] != _SOS:
        if file[at + 1] == _DHT:
            first = first or at
        elif first:
            raise RuntimeError("this build of Pillow writes other segments after the Huffman tables")
        at += 2 + _length(file, at)
    scan = at + 2 + _length(file, at)
    return file[:first], file[first:at], file[at:scan], file[scan : -len(_END)]
