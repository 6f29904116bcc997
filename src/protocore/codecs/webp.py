"""Lossy WebP files without the bytes that are the same for all pictures of one shape.

A file is RIFF, size, WEBP, "VP8 ", size, then a VP8 key frame: tag (3 bytes), start code (3), width (2),
height (2), first partition, coefficients; its size is even and its last byte zero, since VP8 ends with at least
nine zero bits. Of the first 30 bytes only the length of the first partition, 19 bits of the tag, is news: it is
stored in front, 7 bits a byte (one byte for small pictures). The last byte is left out.
"""

from __future__ import annotations

import io

from PIL import Image

from protocore.codecs.picture import PictureCodec
from protocore.errors import DataError
from protocore.pictures import ImageShape

_HEADER = 30  # bytes in front of the first partition
_START_CODE = b"\x9d\x01\x2a"
_KEY_FRAME_SHOWN = 0x10  # lowest 5 bits of the tag: a key frame, profile 0, to be shown
_TAG_BITS = 19  # of the first partition's length


class WebP(PictureCodec):
    """VP8 as Pillow writes it with the slowest search, which gives the best PSNR at equal bytes."""

    name = "webp"
    sides = 16383

    def __init__(self, image_shape: ImageShape, quality: int = 10) -> None:
        super().__init__(image_shape, quality)

    def file(self, picture: Image.Image) -> bytes:
        """The whole WebP file."""
        buffer = io.BytesIO()
        picture.save(buffer, "WEBP", quality=self.quality, method=6)
        return buffer.getvalue()

    def pack(self, picture: Image.Image) -> bytes:
        file = self.file(picture)
        tag = int.from_bytes(file[20:23], "little")
        stored = _number(tag >> 5) + file[_HEADER:-1]
        if self.restore(stored) != file:
            raise RuntimeError(f"this build of Pillow writes WebP files that differ: {file[:_HEADER].hex()}")
        return stored

    def restore(self, stored: bytes) -> bytes:
        partition, body = _split_number(stored)
        if not 0 < partition < len(body) or len(body) % 2 == 0:
            raise DataError(f"its {len(stored)} bytes cannot hold a whole file")
        return self._whole(partition, body + b"\0")

    def prolonged(self, file: bytes) -> bytes:
        return self._whole(int.from_bytes(file[20:23], "little") >> 5, file[_HEADER:-1] + b"\xff" * 9)

    def _whole(self, partition: int, body: bytes) -> bytes:
        _, height, width = self.image_shape
        tag = (partition << 5 | _KEY_FRAME_SHOWN).to_bytes(3, "little")
        frame = tag + _START_CODE + width.to_bytes(2, "little") + height.to_bytes(2, "little") + body
        chunk = b"WEBPVP8 " + len(frame).to_bytes(4, "little") + frame
        return b"RIFF" + len(chunk).to_bytes(4, "little") + chunk


def _number(value: int) -> bytes:
    """7 bits a byte, lowest first; the top bit says that another byte follows."""
    low = value & 0x7F
    return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + _number(value >> 7)


def _split_number(data: bytes) -> tuple[int, bytes]:
    value = 0
    for i, byte in enumerate(data[: -(-_TAG_BITS // 7)]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >= 1 << _TAG_BITS:
                break
            return value, data[i + 1 :]
    raise DataError(f"it begins with no length ({data[:3].hex() or 'empty'})")
