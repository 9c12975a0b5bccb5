"""A tar archive as webdataset's writer makes it, compressed by zstd in frames that stand for themselves.

Each frame is on disk before the next begins, so an archive can be cut off behind any of them, and written on. Source of the layout:
POSIX ustar; RFC 8878 for the frames, those to be skipped among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import cramjam

from rlds2reverb.destinations.growing_files import at_end, put

_BLOCK = 512
_RECORD = 10_240
_MOST_PENDING = 32 << 20
"""Bytes of a frame before it is compressed; so many are in memory."""

_CHECKSUM = slice(148, 156)
_SKIPPED = b"\x50\x2a\x4d\x18"
_SPARE = 64


def _header() -> bytearray:
    """A member's header, without name, size and checksum."""
    made = bytearray(_BLOCK)
    for start, text in (
        (100, b"0000444\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (136, b"00000000000\0"),
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
        (265, b"bigdata"),
        (297, b"bigdata"),
        (329, b"0000000\0"),
        (337, b"0000000\0"),
    ):
        made[start : start + len(text)] = text
    return made


_HEADER = bytes(_header())
_SUM = sum(_HEADER)


def member(name: str, data: bytes) -> bytes:
    """A file in an archive: header, contents, and zeros to the end of the block."""
    path, size = name.encode(), b"%011o\0" % len(data)
    if len(path) > 100:
        raise ValueError(f"{name}: a name of more than 100 bytes")
    checksum = b"%06o\0 " % (_SUM + sum(path) + sum(size))
    header = path + _HEADER[len(path) : 124] + size + _HEADER[136:148] + checksum + _HEADER[156:]
    return header + data + bytes(-len(data) % _BLOCK)


class ArchiveWriter:
    """Writes one archive.

    Args:
      path: of it.
      level: of zstd; None for an archive that is not compressed.
      start: where to go on: what stands behind is cut off. 0 for a new archive.
    """

    def __init__(self, path: Path, level: int | None, start: int) -> None:
        self._level = level
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._file: BinaryIO = at_end(path, start)

    def add(self, members: Iterable[bytes]) -> None:
        """Takes files, each as `member` makes it."""
        for one in members:
            self._pending.append(one)
            self._pending_bytes += len(one)
        if self._pending_bytes >= _MOST_PENDING:
            self._write()

    def sync(self) -> int:
        """Puts all on disk; how many bytes there are."""
        self._write()
        put(self._file)
        return self._file.tell()

    def begin(self, first: bytes) -> int:
        """Writes the first file, with some room behind it, so that it can be replaced; how many bytes that takes."""
        data = first if self._level is None else _padded(_compressed(first, self._level), None)
        self._file.write(data)
        return len(data)

    def begin_anew(self, first: bytes, size: int) -> None:
        """Replaces the first file, which takes so many bytes."""
        if self._level is not None:
            first = _padded(_compressed(first, self._level), size)
        if len(first) != size:
            raise ValueError(f"{len(first):,} bytes do not fit into {size:,}")
        at = self._file.tell()
        self._file.seek(0)
        self._file.write(first)
        self._file.seek(at)

    def end(self, archived: int) -> None:
        """Ends the archive, which has so many bytes before compression."""
        self.add([bytes(2 * _BLOCK + -(archived + 2 * _BLOCK) % _RECORD)])
        self.sync()

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def _write(self) -> None:
        data = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        if data:
            self._file.write(data if self._level is None else _compressed(data, self._level))


def _compressed(data: bytes, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def _padded(frame: bytes, size: int | None) -> bytes:
    """A frame, and one behind it that readers skip, of so many bytes together."""
    spare = _SPARE if size is None else size - len(frame) - 8
    if spare < 0:
        raise ValueError(f"{len(frame):,} bytes do not fit into {size or 0:,}")
    return frame + _SKIPPED + spare.to_bytes(4, "little") + bytes(spare)
