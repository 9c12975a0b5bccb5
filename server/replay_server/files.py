"""Files of a checkpoint folder: those that make a checkpoint, their records, and how anything in the folder is read."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from replay_server.errors import CheckpointError, CheckpointUnreadable
from rlds2reverb.errors import Rlds2ReverbError

RECORD_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
DONE = "DONE"
MANIFEST = "MANIFEST.json"

_DONE_BYTES = 1 << 10
"""Most of a DONE: it is empty, or holds a number."""


class FileEntry(msgspec.Struct, frozen=True):
    """Size and xxh3-128 of a file."""

    bytes: int
    xxh3: str


def verify_record_files(folder: Path) -> None:
    """Reads the compressed streams of a checkpoint of Reverb's own to their ends.

    Raises:
      CheckpointUnreadable: one is there and cannot be read.
      CheckpointError: one is missing or damaged.
    """
    read_small(folder / DONE, _DONE_BYTES)
    for name in RECORD_FILES:
        _read_to_its_end(folder / name, blocks(folder / name))


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a checkpoint's file.

    Raises:
      CheckpointUnreadable: it cannot be read.
      CheckpointError: it is missing or damaged, ends in the middle, or has an absurdly long record.
    """
    with _named(path):
        yield from records_of(blocks(path))


def as_of(checkpoint: Path) -> int:
    """When the tables were as a checkpoint has them, in ns since 1970: Reverb closed their file then. 0 without such a file.

    Links and renames keep it.
    """
    try:
        return (checkpoint / RECORD_FILES[0]).stat().st_mtime_ns
    except OSError:
        return 0


def written_at(checkpoint: Path) -> tuple[float, float]:
    """Unix times at which Reverb began and ended a checkpoint, from its name and its last file.

    Raises:
      CheckpointUnreadable: the file cannot be asked.
      CheckpointError: it is missing.
    """
    last = checkpoint / RECORD_FILES[-1]
    try:
        ended = last.stat().st_mtime
    except OSError as error:
        raise cannot_read(last, error) from error
    try:
        began = datetime.fromisoformat(checkpoint.name[:19] + checkpoint.name[-6:]).timestamp()
    except ValueError:
        began = ended
    return min(began, ended), ended


def link_files(source: Path, target: Path) -> None:
    """The record files of a checkpoint under a second name; copied where the file system cannot link."""
    target.mkdir(parents=True)
    for path in (source / name for name in (*RECORD_FILES, DONE, MANIFEST)):
        if not path.exists():
            continue
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)


def sync_folder(path: Path) -> None:
    """Makes renames inside the folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entry_of(path: Path) -> FileEntry:
    """Size and hash of a file as it is.

    Raises:
      CheckpointUnreadable: it cannot be read.
      CheckpointError: it is missing, or no regular file.
    """
    hashing = _Hashing(path)
    for _ in hashing.blocks():
        pass
    return hashing.found()


class _Hashing:
    """Computes size and hash of a file while it is read."""

    def __init__(self, path: Path) -> None:
        self._path, self._digest, self.size = path, xxhash.xxh3_128(), 0

    def blocks(self) -> Iterator[bytes]:
        for block in blocks(self._path):
            self._digest.update(block)
            self.size += len(block)
            yield block

    def found(self) -> FileEntry:
        return FileEntry(self.size, self._digest.hexdigest())


def verified_entry(path: Path) -> FileEntry:
    """Entry of a file just written: synced, and its compressed stream read to the checksum at its end.

    Raises:
      CheckpointUnreadable: it cannot be read.
      CheckpointError: it is missing, empty or damaged.
    """
    if path.name == DONE:
        entry = entry_of(path)
        _sync_file(path)
        return entry
    hashing = _Hashing(path)
    _read_to_its_end(path, hashing.blocks())
    if not hashing.size:
        raise CheckpointError(
            f"{path}: empty, where Reverb writes 8 bytes for nothing; was the disk full for a moment?"
        )
    _sync_file(path)
    return hashing.found()


def _read_to_its_end(path: Path, compressed: Iterator[bytes]) -> None:
    """Reads the stream to its end, so that zlib verifies the checksum."""
    with _named(path):
        for _ in inflate(compressed):
            pass


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds the checkpoint's file name to the error of a damaged stream."""
    try:
        yield
    except RecordError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file, replaces any of this name, and syncs it to the disk."""
    path.unlink(missing_ok=True)  # a pipe of this name would never open
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


# Reverb's checkpoints are TFRecords in one zlib stream. A record is its length (8 bytes, little-endian), a checksum of
# that (4), the data, and a checksum of it (4). The stream ends in a checksum of everything, which zlib verifies, so the
# checksums of the records are not checked when reading.
# Source: record_writer.cc of TensorFlow 2.15; observed in dm-reverb 0.14.

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 12
_TAIL_BYTES = 4
_MOST_BYTES = 256 << 20
"""More than any description of a table and any item has."""


class RecordError(Rlds2ReverbError):
    """A stream is not one of TFRecords: damaged, or it ends in the middle."""


def inflate(compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a compressed stream, in blocks; none for an empty stream.

    Raises:
      RecordError: the stream is damaged, or ends in the middle.
    """
    stream, size = zlib.decompressobj(), 0
    try:
        for block in compressed:
            size += len(block)
            while block and not stream.eof:
                yield stream.decompress(block, _BLOCK_BYTES)
                block = stream.unconsumed_tail
    except zlib.error as error:
        raise RecordError(f"not readable as it was written ({error})") from error
    if size and not stream.eof:
        raise RecordError(f"ends in the middle, after {size} bytes")


def records_of(compressed: Iterable[bytes]) -> Iterator[bytes]:
    """The records of a compressed stream.

    Raises:
      RecordError: the stream is damaged or ends in the middle, or a record is absurdly long.
    """
    held = bytearray()
    for block in inflate(compressed):
        held += block
        start = 0
        while len(held) - start >= _HEAD_BYTES:
            end = start + _HEAD_BYTES + _length(held[start : start + 8])
            if len(held) < end + _TAIL_BYTES:
                break
            yield bytes(held[start + _HEAD_BYTES : end])
            start = end + _TAIL_BYTES
        del held[:start]
    if held:
        raise RecordError("its last record ends in the middle")


def _length(head: bytes | bytearray) -> int:
    length = int.from_bytes(head, "little")
    if length > _MOST_BYTES:
        raise RecordError(f"a record says that it has {length:,} bytes; expected at most {_MOST_BYTES:,}")
    return length


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """A new file of these records; its name must be free."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), "ZLIB") as writer:
        for record in records:
            writer.write(record)


# Only regular files of a checkpoint folder are read, so that no read blocks on a pipe.
#
# A file that cannot be read (disk failure, lost mount, permission) is distinguished from a broken one, which is missing
# or differs from what was written: nothing is known of the former's content.

_NOT_WHAT_WAS_WRITTEN = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
"""Something is missing, or of another kind. Every other error, a new one too, leaves open what the content is."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def cannot_read(path: Path, error: OSError) -> CheckpointError:
    """The error to raise for an OSError: `CheckpointUnreadable`, or `CheckpointError` (missing, not regular)."""
    kind = CheckpointError if error.errno in _NOT_WHAT_WAS_WRITTEN else CheckpointUnreadable
    return kind(f"{path}: cannot be read ({error.strerror or error})")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading.

    Raises:
      CheckpointUnreadable: it cannot be opened, or a read within the block fails.
      CheckpointError: it is missing, or no regular file.
    """
    try:
        with open(path, "rb", opener=_open_regular) as file:  # Path.open has no opener
            yield file
    except OSError as error:
        raise cannot_read(path, error) from error


def blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file, in blocks.

    Raises:
      CheckpointUnreadable: it cannot be read.
      CheckpointError: it is missing, or no regular file.
    """
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def must_be_regular(descriptor: int, path: Path) -> None:
    """Refuses, and closes, an open file that is no regular one.

    Raises:
      CheckpointError: it is not; says what it is.
    """
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise CheckpointError(f"{path}: {_KINDS.get(kind, 'something else')}, expected a file")


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe that nobody writes to would never open
    must_be_regular(descriptor, Path(path))
    return descriptor


def read_small(path: Path, most_bytes: int) -> bytes:
    """All bytes of a regular file.

    Raises:
      CheckpointUnreadable: it cannot be read.
      CheckpointError: it is missing, no regular file, or has more than `most_bytes`.
    """
    with opened(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise CheckpointError(f"{path}: more than {most_bytes} bytes, which is not what was written")
    return data


def listed(folder: Path) -> list[Path]:
    """The entries of a folder; none when it is missing.

    Raises:
      CheckpointUnreadable: it cannot be listed.
      CheckpointError: it is no folder.
    """
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(folder, error) from error


def stands_at(path: Path) -> bool:
    """Whether a directory entry of this name exists, a dangling link included.

    Raises:
      CheckpointUnreadable: its folder cannot be looked into.
    """
    try:
        path.lstat()
    except OSError as error:
        if error.errno in _NOT_WHAT_WAS_WRITTEN:
            return False
        raise cannot_read(path, error) from error
    return True
