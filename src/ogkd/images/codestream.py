"""What a compressed frame says of its own size, read before any decoder is trusted with it."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["check_size"]

_NOT_FRAMES = (0xC4, 0xC8, 0xCC)  # markers among the SOFs that are something else


def check_size(stream: bytes, syntax: Any, rows: int, columns: int, samples: int) -> None:
    """ValueError unless a JPEG, JPEG-LS or JPEG 2000 stream has the size the file declares.

    A stream that declares more would be unpacked to its own size, however large.
    """
    if "RLE" in syntax.name:
        return  # unpacked into the declared size
    found = _jpeg_2000(stream) if b"\xff\x4f\xff\x51" in stream[:512] else _jpeg(stream)
    if found != (rows, columns, samples):
        raise ValueError(
            f"the compressed image says rows, columns, samples {found}, the file says "
            f"{(rows, columns, samples)}"
        )


def _jpeg_2000(stream: bytes) -> tuple[int, int, int]:
    start = stream.index(b"\xff\x4f\xff\x51")
    _, _, right, bottom, left, top = struct.unpack_from(">HHIIII", stream, start + 4)
    (samples,) = struct.unpack_from(">H", stream, start + 40)
    return bottom - top, right - left, samples


def _jpeg(stream: bytes) -> tuple[int, int, int]:
    place = 2
    while place + 9 < len(stream):
        if stream[place] != 0xFF:
            break
        marker = stream[place + 1]
        if marker == 0xFF:  # a filling byte
            place += 1
            continue
        (length,) = struct.unpack_from(">H", stream, place + 2)
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in _NOT_FRAMES):
            rows, columns, samples = struct.unpack_from(">HHB", stream, place + 5)
            return rows, columns, samples
        place += 2 + length
    raise ValueError("no JPEG frame header in the compressed image")
