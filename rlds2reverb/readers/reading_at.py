"""Reads a place of a file, on every system."""

from __future__ import annotations

import os

_preadv = getattr(os, "preadv", None)  # Windows has none


def read_at(descriptor: int, view: memoryview, offset: int) -> int:
    """Reads bytes from a place into a buffer; how many came, which may be fewer.

    On Windows one thread at a time may read of a descriptor, as its position moves.

    Raises:
      OSError: it cannot be read.
    """
    if _preadv is not None:
        return int(_preadv(descriptor, [view], offset))
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)


def bytes_at(descriptor: int, size: int, offset: int) -> bytes:
    """At most so many bytes of a place, as `os.pread`."""
    data = bytearray(size)
    return bytes(memoryview(data)[: read_at(descriptor, memoryview(data), offset)])
