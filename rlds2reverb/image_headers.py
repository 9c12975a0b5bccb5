"""The size of an image from the first bytes of its JPEG or PNG file; nothing is decoded.

Sources: ITU T.81 B.1.1.3 (markers), B.2.2 (frame header); PNG specification 5.2 (signature), 11.2.2 (IHDR).
"""

from __future__ import annotations

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"

_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of frame headers, which hold the size; the three are tables and reserved."""

_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))
_END = frozenset((0xD9, 0xDA))
"""End of the image, and start of its data: no frame header came."""


def image_size(data: bytes) -> tuple[int, int] | None:
    """Height and width that a file's header tells; None when it is neither JPEG nor PNG, or has no whole header."""
    if data.startswith(JPEG_START):
        return _jpeg_size(data)
    if data.startswith(PNG_START):
        return _png_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            return data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
        if marker in _END:
            return None
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
    return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 33 or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")
