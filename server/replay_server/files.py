"""Files of a checkpoint folder: those that make a checkpoint, their records, and how anything in the folder is read.

Only regular files are read, so that no read blocks on a pipe. A file that cannot be read (disk failure, lost mount,
permission) is distinguished from a broken one, which is missing or differs from what was written: nothing is known of the
former's content. So what reads raises `CheckpointUnreadable` for the one and any other `CheckpointError` for the other.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from replay_server.errors import CheckpointError, CheckpointUnreadable
from rlds2reverb.errors import StorageError
from rlds2reverb.stored.records import RecordError, deflate, inflate, records_of

RECORD_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
DONE = "DONE"
MANIFEST = "MANIFEST.json"

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}

_NOT_WHAT_WAS_WRITTEN = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV}
"""Something is missing, or of another kind. Every other error, a new one too, leaves open what the content is."""

_DONE_BYTES = 1 << 10  # a DONE is empty, or holds a number
_BLOCK_BYTES = 1 << 20

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileEntry(msgspec.Struct, frozen=True):
    """Size and xxh3-128 of a file."""

    bytes: int
    xxh3: str


def verify_record_files(folder: Path) -> None:
    """Reads the compressed streams of a checkpoint of Reverb's own to their ends, so that zlib verifies their checksums."""
    read_small(folder / DONE, _DONE_BYTES)
    for path in (folder / name for name in RECORD_FILES):
        with _name_errors(path):
            for _ in inflate(blocks(path)):
                pass


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a checkpoint's file; an absurdly long one counts as damage."""
    with _name_errors(path):
        yield from records_of(inflate(blocks(path)), _MOST_RECORD_BYTES)


def as_of(checkpoint: Path) -> int:
    """Time at which Reverb closed a checkpoint's file of tables, in ns since 1970; 0 without the file.

    The tables are as they were then. Links and renames keep the time.
    """
    try:
        return (checkpoint / RECORD_FILES[0]).stat().st_mtime_ns
    except OSError:
        return 0


def writing_times(checkpoint: Path) -> tuple[float, float]:
    """Unix times at which Reverb began and ended a checkpoint, from its name and its last file."""
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
    """Gives a checkpoint's files second names in a new folder; copies them where the file system cannot link."""
    target.mkdir(parents=True)
    for path in (source / name for name in (*RECORD_FILES, DONE, MANIFEST)):
        if not path.exists():
            continue
        try:
            os.link(path, target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)


def sync(path: Path) -> None:
    """Makes a file's content, or the names in a folder, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file in place of any of this name, and syncs it."""
    path.unlink(missing_ok=True)  # a pipe of this name would never open
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def entry_of(path: Path) -> FileEntry:
    return _entry(path, lambda read: read)


def verified_entry(path: Path) -> FileEntry:
    """Entry of a file that Reverb has just written: synced, and its compressed stream read to the checksum at its end.

    Raises:
      CheckpointError: the file is missing, empty or damaged.
    """
    if path.name == DONE:
        entry = entry_of(path)
    elif not (entry := _entry(path, inflate)).bytes:
        raise CheckpointError(
            f"{path}: empty, where Reverb writes 8 bytes for nothing; was the disk full for a moment?"
        )
    sync(path)
    return entry


def _entry(path: Path, through: Callable[[Iterator[bytes]], Iterator[bytes]]) -> FileEntry:
    """The file is read once: it is hashed while `through` checks it."""
    digest, size = xxhash.xxh3_128(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in blocks(path):
            digest.update(block)
            size += len(block)
            yield block

    with _name_errors(path):
        for _ in through(hashed()):
            pass
    return FileEntry(size, digest.hexdigest())


@contextmanager
def _name_errors(path: Path) -> Iterator[None]:
    """Adds the checkpoint's file name to the error of a damaged stream."""
    try:
        yield
    except RecordError as error:
        raise CheckpointError(f"{path}: {error}") from error


_MOST_RECORD_BYTES = 256 << 20  # more than any description of a table and any item has


def write_records(path: Path, records: Iterable[bytes]) -> None:
    """Writes records to a new file; its name must be free."""
    with path.open("xb") as file:
        file.writelines(deflate(records))


def cannot_read(path: Path, error: OSError) -> CheckpointError:
    """The error to raise for an OSError; see the module."""
    kind = CheckpointError if error.errno in _NOT_WHAT_WAS_WRITTEN else CheckpointUnreadable
    return kind(f"{path}: cannot be read ({error.strerror or error})")


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading; an OSError of the block becomes one of ours, too."""
    try:
        with open(path, "rb", opener=_open_regular) as file:  # Path.open has no opener
            yield file
    except OSError as error:
        raise cannot_read(path, error) from error


def blocks(path: Path) -> Iterator[bytes]:
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def must_be_regular(descriptor: int, path: Path) -> None:
    """Refuses an open file that is no regular one, and closes it."""
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise CheckpointError(f"{path}: {_KINDS.get(kind, 'something else')}, expected a file")


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe that nobody writes to would never open
    must_be_regular(descriptor, Path(path))
    return descriptor


def read_small(path: Path, most_bytes: int) -> bytes:
    """All bytes of a regular file; more than `most_bytes` are a `CheckpointError`."""
    with open_file(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise CheckpointError(f"{path}: more than {most_bytes} bytes, which is not what was written")
    return data


def list_folder(folder: Path) -> list[Path]:
    """The entries of a folder, which may be in a bucket; none when it is missing."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except StorageError as error:
        raise CheckpointUnreadable(str(error)) from error
    except OSError as error:
        raise cannot_read(folder, error) from error


def stands_at(path: Path) -> bool:
    """Whether a directory entry of this name exists, a dangling link included; or an object in a bucket."""
    try:
        path.lstat()
    except StorageError as error:
        raise CheckpointUnreadable(str(error)) from error
    except OSError as error:
        if error.errno in _NOT_WHAT_WAS_WRITTEN:
            return False
        raise cannot_read(path, error) from error
    return True
