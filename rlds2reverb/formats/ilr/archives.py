"""Tar archives of il-representations, compressed by zstd or not: read from front to end, member by member, and written.

Members of one prefix, `frame_012`, are a step. tarfile takes four times as long for a member, of which a step has several, so headers are
read here. A header is verified by its checksum, and sizes are bounded.

An archive is written as webdataset's writer makes it, in independent frames of zstd. Each frame is on disk before the next begins, so an
archive can be cut off after any of them, and continued.
Sources of the layout: POSIX pax and ustar; RFC 8878 for the frames and skippable frames.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import cramjam

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import at_end, check_regular, put
from rlds2reverb.text import shortened

MOST_MEMBER_BYTES = 1 << 30  # most bytes of one member, which holds a value of one step
_MOST_HEADER_BYTES = 1 << 20  # of a header that has the next member's name and size
_BLOCK = 512
_AHEAD = 1 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"  # bytes 1 to 3 of a skippable frame of zstd

_FILES = (b"0", b"\0", b"7")
_LONG_NAME, _PAX = b"L", b"x"


@contextmanager
def open_archive(path: Path) -> Iterator[BinaryIO]:
    """The contents of a file, decompressed on the fly if it is compressed by zstd, with windows of up to 128 MiB."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == _ZSTD or start[1:] == _SKIPPED:
                with needing("reading archives compressed by zstd", "parquet", SourceError):
                    import pyarrow
                stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
                yield io.BufferedReader(stream, _AHEAD)
            else:
                yield file
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read: {shortened(str(error))}") from error


class Member:
    """A regular file in an archive: its name with folders, and its size in bytes."""

    __slots__ = ("_file", "_where", "name", "size", "was_read")

    def __init__(self, name: str, size: int, file: BinaryIO, where: str) -> None:
        self.name, self.size, self._file, self._where = name, size, file, where
        self.was_read = False

    def read(self) -> bytes:
        """Its contents. Call it at most once, and before the next member is read."""
        self.was_read = True
        return _take_contents(self._file, self.size, f"{self._where}: {self.name}")


def members(file: BinaryIO, where: str) -> Iterator[Member]:
    """The regular files of an archive, in its order; contents that are not read are skipped.

    Raises:
      SourceError: a header is damaged, a member is larger than `MOST_MEMBER_BYTES`, or the archive ends within one.
    """
    longer: dict[str, str] = {}
    while len(header := file.read(_BLOCK)) == _BLOCK and header.strip(b"\0"):
        checksum = header[148:156].strip(b" \0")
        # The checksum counts its own eight bytes as spaces.
        if not checksum.isdigit() or int(checksum, 8) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise SourceError(f"{where}: no tar archive, or damaged: the checksum of a header is wrong")
        name, size, kind = _name(header), _size(header, where), header[156:157]
        if kind in (_LONG_NAME, _PAX):
            if size > _MOST_HEADER_BYTES:
                raise SourceError(f"{where}: a header of {size:,} bytes; expected at most {_MOST_HEADER_BYTES:,}")
            longer |= _read_extended(kind, _take_contents(file, size, where))
            continue
        name, size = longer.get("path", name), _check_member_size(longer.get("size", size), where, name)
        longer = {}
        member = Member(name, size, file, where)
        if kind in _FILES:
            yield member
        left = 0 if member.was_read else size + -size % _BLOCK
        while left:
            skipped = len(file.read(min(left, _AHEAD)))
            if not skipped:
                raise SourceError(f"{where}: ends within a member; the file was cut off")
            left -= skipped
    if header and len(header) < _BLOCK:
        raise SourceError(f"{where}: ends within a header; the file was cut off")


def _name(header: bytes) -> str:
    name, prefix = header[:100].partition(b"\0")[0], header[345:500].partition(b"\0")[0]
    whole = prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name
    return whole.decode("utf-8", "backslashreplace")


def _size(header: bytes, where: str) -> int:
    field = header[124:136]
    try:
        size = int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise SourceError(f"{where}: damaged: a member's size is {field!r}") from error
    return _check_member_size(size, where, _name(header))


def _check_member_size(size: int | str, where: str, name: str) -> int:
    try:
        number = int(size)
    except ValueError as error:
        raise SourceError(f"{where}: damaged: the size of {shortened(name)} is no number") from error
    if not 0 <= number <= MOST_MEMBER_BYTES:
        raise SourceError(
            f"{where}: {shortened(name)} has {number:,} bytes; expected at most {MOST_MEMBER_BYTES:,} for a value of one step"
        )
    return number


def _read_extended(kind: bytes, data: bytes) -> dict[str, str]:
    """Name and size of the next member, from an extended header."""
    if kind == _LONG_NAME:
        return {"path": data.partition(b"\0")[0].decode("utf-8", "backslashreplace")}
    about: dict[str, str] = {}
    for line in data.split(b"\n"):
        key, _, value = line.partition(b" ")[2].partition(b"=")
        if key in (b"path", b"size"):
            about[key.decode()] = value.decode("utf-8", "backslashreplace")
    return about


def _take_contents(file: BinaryIO, size: int, where: str) -> bytes:
    """The contents of a member; leaves the file after its last block."""
    data = file.read(size)
    if len(data) < size or len(file.read(-size % _BLOCK)) < -size % _BLOCK:
        raise SourceError(f"{where}: ends after {len(data):,} of {size:,} bytes; the file was cut off")
    return data


METADATA = "_metadata.meta.pickle"
_MOST_STEP_BYTES = 256 << 20  # of all values of one step together
_MOST_KEYS = 1_000
_MOST_METADATA_BYTES = 64 << 20
_NUMBER = re.compile(r"(\d{1,15})$", re.ASCII)


@dataclass(frozen=True)
class Metadata:
    """The contents of a description."""

    data: bytes
    where: str


@dataclass(frozen=True)
class Frame:
    """A step: its name, `frame_012`, and key -> (contents, how they are written, where)."""

    name: str
    values: dict[str, tuple[bytes, str, str]] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        match = _NUMBER.search(self.name)
        return int(match[1]) if match else None


def frames(members: Iterator[Member], where: str, is_read: Callable[[str], bool]) -> Iterator[Frame | Metadata]:
    """The steps and the descriptions of a shard. `wanted` says whether to read the values of a key; it is called for every step, after the
    previous step has been yielded. Raises `SourceError` if a step has a key twice, or its values are too many or too large together.
    """
    frame: Frame | None = None
    held = 0
    for member in members:
        folder, _, base = member.name.rpartition("/")
        stem, _, extension = base.partition(".")
        if base == METADATA:
            if frame is not None:
                yield frame
            frame = None
            _check_size(member, where, member.size, _MOST_METADATA_BYTES)
            yield Metadata(member.read(), f"{where}: {member.name}")
            continue
        key, _, kind = extension.partition(".")
        if not key:
            continue
        name = f"{folder}/{stem}" if folder else stem
        if frame is None or frame.name != name:
            if frame is not None:
                yield frame
            frame, held = Frame(name), 0
        if not is_read(key):
            continue
        held += member.size
        if key in frame.values:
            raise SourceError(f"{where}: {member.name}: stands twice in one step")
        _check_size(member, where, held, _MOST_STEP_BYTES)
        if len(frame.values) == _MOST_KEYS:
            raise SourceError(f"{where}: {shortened(frame.name)}: a step of more than {_MOST_KEYS:,} keys")
        frame.values[key] = (member.read(), kind, f"{where}: {member.name}")
    if frame is not None:
        yield frame


def _check_size(member: Member, where: str, size: int, most: int) -> None:
    if size > most:
        raise SourceError(
            f"{where}: {shortened(member.name)}: {size:,} bytes up to its end; expected at most {most:,} of one step"
        )


_RECORD = 10_240
_MOST_PENDING = 32 << 20  # bytes of a frame before it is compressed, which are in memory
_SKIPPABLE = b"\x50\x2a\x4d\x18"
_SPARE = 64


def _make_header() -> bytearray:
    """A member's header, without name, size and checksum; the same bytes in every version of Python, unlike tarfile's."""
    header = bytearray(_BLOCK)
    fields = {
        100: b"0000444\0", 108: b"0000000\0", 116: b"0000000\0", 136: b"00000000000\0", 148: b"        ", 156: b"0",
        257: b"ustar\x0000", 265: b"bigdata", 297: b"bigdata", 329: b"0000000\0", 337: b"0000000\0",
    }  # fmt: skip
    for start, text in fields.items():
        header[start : start + len(text)] = text
    return header


_HEADER = bytes(_make_header())
_SUM = sum(_HEADER)


def make_member(name: str, data: bytes) -> bytes:
    """A file in an archive: header, contents, and zeros to the end of the block."""
    path, size = name.encode(), b"%011o\0" % len(data)
    if len(path) > 100:
        raise ValueError(f"{name}: a name of more than 100 bytes")
    checksum = b"%06o\0 " % (_SUM + sum(path) + sum(size))
    header = path + _HEADER[len(path) : 124] + size + _HEADER[136:148] + checksum + _HEADER[156:]
    return header + data + bytes(-len(data) % _BLOCK)


class ArchiveWriter:
    """Writes one archive, from the byte `start` on, where the file is cut off; not compressed if `level` (of zstd) is None."""

    def __init__(self, path: Path, level: int | None, start: int) -> None:
        self._level = level
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._file: BinaryIO = at_end(path, start)

    def add(self, members: Iterable[bytes]) -> None:
        """Adds files, each made by `make_member`."""
        for member in members:
            self._pending.append(member)
            self._pending_bytes += len(member)
        if self._pending_bytes >= _MOST_PENDING:
            self._write()

    def sync(self) -> int:
        """Puts everything on disk; returns the file's size in bytes."""
        self._write()
        put(self._file)
        return self._file.tell()

    def begin(self, first: bytes) -> int:
        """Writes the first file with spare bytes after it, so that it can be replaced; returns the size of both in bytes."""
        data = first if self._level is None else _pad_frame(_compress(first, self._level), None)
        self._file.write(data)
        return len(data)

    def begin_anew(self, first: bytes, size: int) -> None:
        """Replaces the first file, which takes `size` bytes."""
        if self._level is not None:
            first = _pad_frame(_compress(first, self._level), size)
        if len(first) != size:
            raise ValueError(f"{len(first):,} bytes do not fit into {size:,}")
        at = self._file.tell()
        self._file.seek(0)
        self._file.write(first)
        self._file.seek(at)

    def end(self, archived: int) -> None:
        """Ends the archive, which has `archived` bytes before compression."""
        self.add([bytes(2 * _BLOCK + -(archived + 2 * _BLOCK) % _RECORD)])
        self.sync()

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        data = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        if data:
            self._file.write(data if self._level is None else _compress(data, self._level))


def _compress(data: bytes, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=level))


def _pad_frame(frame: bytes, size: int | None) -> bytes:
    """A frame and a skippable frame after it, together `size` bytes."""
    spare = _SPARE if size is None else size - len(frame) - 8
    if spare < 0:
        raise ValueError(f"{len(frame):,} bytes do not fit into {size or 0:,}")
    return frame + _SKIPPABLE + spare.to_bytes(4, "little") + bytes(spare)
