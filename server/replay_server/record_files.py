"""The files that make a checkpoint: named, dated, hashed, read to their ends, synced, given second names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
import xxhash

from replay_server.errors import CheckpointError
from replay_server.reading import blocks, cannot_read, read_small
from replay_server.records import RecordError, inflate, records_of

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
    """Size and hash of a file while somebody reads it."""

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
    """Looks at the checksum there."""
    with _named(path):
        for _ in inflate(compressed):
            pass


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Says of a damaged stream which file of a checkpoint it is."""
    try:
        yield
    except RecordError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_synced(path: Path, data: bytes) -> None:
    """A new file in place of whatever has this name; on the disk when it returns."""
    path.unlink(missing_ok=True)  # a pipe of this name would never open
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
