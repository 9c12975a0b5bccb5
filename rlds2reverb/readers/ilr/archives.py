"""Tar archives, compressed by zstd or not, read from front to end without unpacking: member by member, each in memory for itself.

Source of the layout: POSIX pax and ustar. What a header says is checked by its checksum, and no size is believed beyond a bound.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import check_regular
from rlds2reverb.wording import shortened

MOST_MEMBER_BYTES = 1 << 30
"""Most bytes of one member. One holds a value of one step."""

_MOST_HEADER_BYTES = 1 << 20
"""Of what tells the next member's name and size."""
_BLOCK = 512
_AHEAD = 1 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a zstd frame that is to be passed over."""

_FILES = (b"0", b"\0", b"7")
_LONG_NAME, _PAX = b"L", b"x"


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """What a file holds, unpacked as it is read if it is compressed by zstd.

    Raises:
      SourceError: missing, no regular file, or pyarrow is needed to unpack it.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == _ZSTD or start[1:] == _SKIPPED:
                yield _unpacked(file)
            else:
                yield file
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error


def _unpacked(file: BinaryIO) -> BinaryIO:
    """All frames of a file, one after the other. Windows of up to 128 MiB are unpacked; larger ones are an error."""
    with needing("reading archives compressed by zstd", "parquet", SourceError):
        import pyarrow
    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
    return io.BufferedReader(stream, _AHEAD)


class Member:
    """A regular file in an archive.

    Attributes:
      name: with its folders.
      size: in bytes.
    """

    __slots__ = ("_file", "_where", "name", "size", "was_read")

    def __init__(self, name: str, size: int, file: BinaryIO, where: str) -> None:
        self.name, self.size, self._file, self._where = name, size, file, where
        self.was_read = False

    def read(self) -> bytes:
        """Its contents. To be called at most once, and before the next member is asked for."""
        self.was_read = True
        return _taken(self._file, self.size, f"{self._where}: {self.name}")


def members(file: BinaryIO, where: str) -> Iterator[Member]:
    """The regular files of an archive, in its order; what is not read of them is passed over.

    Args:
      file: the archive.
      where: what messages call it.

    Raises:
      SourceError: a header is damaged, a member is larger than `MOST_MEMBER_BYTES`, or the archive ends within one.
      OSError: of the file, or of what unpacks it.
    """
    longer: dict[str, str] = {}
    while len(header := file.read(_BLOCK)) == _BLOCK and header.strip(b"\0"):
        _check(header, where)
        name, size, kind = _name(header), _size(header, where), header[156:157]
        if kind in (_LONG_NAME, _PAX):
            if size > _MOST_HEADER_BYTES:
                raise SourceError(f"{where}: a header of {size:,} bytes; expected at most {_MOST_HEADER_BYTES:,}")
            longer |= _longer(kind, _taken(file, size, where))
            continue
        name, size = longer.get("path", name), _bounded(longer.get("size", size), where, name)
        longer = {}
        member = Member(name, size, file, where)
        if kind in _FILES:
            yield member
        if not member.was_read:
            _passed_over(file, size, where)
    if header and len(header) < _BLOCK:
        raise SourceError(f"{where}: ends within a header; the file was cut off")


def _check(header: bytes, where: str) -> None:
    told = header[148:156].strip(b" \0")
    if not told.isdigit() or int(told, 8) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise SourceError(f"{where}: no tar archive, or damaged: the checksum of a header is wrong")


def _name(header: bytes) -> str:
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    whole = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return whole.decode("utf-8", "backslashreplace")


def _size(header: bytes, where: str) -> int:
    told = header[124:136]
    try:
        size = int.from_bytes(told[1:], "big") if told[0] & 0x80 else int(told.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise SourceError(f"{where}: damaged: a member's size is {told!r}") from error
    return _bounded(size, where, _name(header))


def _bounded(size: int | str, where: str, name: str) -> int:
    try:
        number = int(size)
    except ValueError as error:
        raise SourceError(f"{where}: damaged: the size of {shortened(name)} is no number") from error
    if not 0 <= number <= MOST_MEMBER_BYTES:
        raise SourceError(
            f"{where}: {shortened(name)} has {number:,} bytes; expected at most {MOST_MEMBER_BYTES:,} for a value of one step"
        )
    return number


def _longer(kind: bytes, data: bytes) -> dict[str, str]:
    """Name and size of the next member, as a header before its own tells them."""
    if kind == _LONG_NAME:
        return {"path": data.partition(b"\0")[0].decode("utf-8", "backslashreplace")}
    found: dict[str, str] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")[2].partition(b"=")
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode("utf-8", "backslashreplace")
    return found


def _taken(file: BinaryIO, size: int, where: str) -> bytes:
    """The contents of a member, and the file behind its last block."""
    data = file.read(size)
    if len(data) < size or len(file.read(-size % _BLOCK)) < -size % _BLOCK:
        raise SourceError(f"{where}: ends after {len(data):,} of {size:,} bytes; the file was cut off")
    return data


def _passed_over(file: BinaryIO, size: int, where: str) -> None:
    left = size + -size % _BLOCK
    while left:
        data = file.read(min(left, _AHEAD))
        if not data:
            raise SourceError(f"{where}: ends within a member; the file was cut off")
        left -= len(data)
