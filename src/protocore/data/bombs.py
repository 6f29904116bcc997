"""Picture files whose making, not their size, would cost minutes or gigabytes: refused before Pillow sees them.

Pillow looks at the number of pixels alone. Each limit here is far above what cameras and programs write.
"""

from __future__ import annotations

import re
import struct

_CHUNKS, _NOTES = 100_000, 100  # of a PNG: parts in all, and those with text or a profile, which are packed
_SEGMENTS, _SCANS = 500, 100  # of a JPEG: each scan goes over the whole picture once more
_TAGS, _VALUES = 1000, 200_000  # of a TIFF: entries, and numbers in one of them
_COMMENTS = 10_000  # of a GIF: each is joined to all before
_SLOW_BYTES = 4 << 20  # of numbers as text, or runs of a BMP: these are read by loops of Python
_HEAD = 4096  # bytes in which the header of a PPM must end
_TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")  # the others are data, or stand alone within a scan


def refuse_bombs(data: bytes) -> None:
    """ValueError for a picture file that is made to be costly."""
    if data.startswith(b"\x89PNG"):
        _png(data)
    elif data.startswith(b"\xff\xd8"):
        _jpeg(data)
    elif data[:4] in (b"II*\0", b"II\0*", b"MM\0*", b"MM*\0", b"II+\0", b"MM\0+"):
        _tiff(data)
    elif data.startswith(b"GIF8"):
        _least(data.count(b"!\xfe"), _COMMENTS, "comments")
    elif data.startswith(b"BM") and data[30:34] in (b"\1\0\0\0", b"\2\0\0\0"):
        _least(len(data), _SLOW_BYTES, "bytes of runs")
    elif data.startswith(b"P"):
        _ppm(data)


def _least(found: int, most: int, what: str) -> None:
    if found > most:
        raise ValueError(f"{found:,} {what}, where at most {most:,} are read; save it again with another program")


def _png(data: bytes) -> None:
    at = 8
    chunks = notes = 0
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks += 1
        notes += kind in (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf")
        _least(notes, _NOTES, "notes")
        _least(chunks, _CHUNKS, "chunks")
        at += 12 + length


def _jpeg(data: bytes) -> None:
    at, segments, scans = 2, 0, 0
    while (marker := _MARKER.search(data, at)) and (kind := data[marker.start() + 1]) != 0xD9:
        segments += 1
        scans += kind == 0xDA
        _least(scans, _SCANS, "scans")
        _least(segments, _SEGMENTS, "segments")
        at = marker.end() + int.from_bytes(data[marker.end():marker.end() + 2], "big")


def _tiff(data: bytes) -> None:
    """The first directory: what its entries claim, which is read and taken apart as it is claimed."""
    order, big = "<" if data[:2] == b"II" else ">", b"+" in data[:4]
    start, count_as, entry_as = (8, "Q", "HHQQ") if big else (4, "H", "HHII")
    try:
        (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, start)
        (tags,) = struct.unpack_from(order + count_as, data, at)
        _least(tags, _TAGS, "entries")
        at += struct.calcsize("=" + count_as)
        size, claimed = struct.calcsize("=" + entry_as), 0
        for number in range(tags):
            _, kind, values, _ = struct.unpack_from(order + entry_as, data, at + number * size)
            width = _TIFF_BYTES.get(kind, 0)
            claimed += values * width
            if width > 1:
                _least(values, _VALUES, "numbers in one entry")
    except struct.error:
        raise ValueError("image file is truncated") from None
    _least(claimed, len(data), "bytes in its entries")


def _ppm(data: bytes) -> None:
    words = re.sub(rb"#[^\n\r]*", b"", data[:_HEAD]).split(maxsplit=4)
    if len(words) < (3 if words[0] in (b"P1", b"P4", b"PyP") else 4):
        raise ValueError(f"no size of a picture within its first {_HEAD} bytes")
    if words[0] in (b"P1", b"P2", b"P3"):
        _least(len(data), _SLOW_BYTES, "bytes of text")
