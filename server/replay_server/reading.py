"""Reading what stands in a checkpoint folder: regular files only, never waiting for anybody.

What cannot be read says nothing about its content: a disk that fails, a mount that is gone, a permission. That is told
apart from what is broken: it can be read, or is not there at all, and is not what was written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from replay_server.errors import CheckpointError, CheckpointUnreadable

_BLOCK_BYTES = 1 << 20

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
    """The error to raise for one of the system's: `CheckpointUnreadable`, or that something is missing or no file."""
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
    """What a folder holds; nothing when it is missing.

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
    """Whether anything has this name, also a link that leads nowhere.

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
