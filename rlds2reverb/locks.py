"""A lock on a file: one process at a time, however that ends.

The system releases the lock with the process, which forked children do not hold. It cannot separate two threads of one process; a set in this
module does.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlds2reverb.errors import WriteError
from rlds2reverb.files import writing

if sys.platform == "win32":
    import msvcrt
else:
    with suppress(ImportError):  # Windows lacks it, which tests play elsewhere
        import fcntl

_HELD: set[tuple[int, int, int]] = set()
"""(process, device, inode) of each locked file. Nothing else here may open such a file: closing it drops the lock."""

_CHANGING = threading.Lock()
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Locks a file, which is created if absent; yields False if it is already locked. Its contents are ignored.

    Raises:
      WriteError: the file cannot be created, or its file system does not support locks.
    """
    with _CHANGING:
        descriptor = None if path.exists() and _key(path.stat()) in _HELD else _open_locked(path)
        if descriptor is not None:
            key = _key(os.fstat(descriptor))
            _HELD.add(key)
    if descriptor is None:
        yield False
        return
    try:
        try:  # the previous holder of the lock may have removed the file
            is_still_there = os.path.samestat(os.fstat(descriptor), path.stat())
        except FileNotFoundError:
            is_still_there = False
        yield is_still_there
    finally:
        with _CHANGING:
            os.close(descriptor)
            _HELD.discard(key)


def _open_locked(path: Path) -> int | None:
    """The descriptor of the locked file; None if another process holds the lock."""
    with writing(path, "make room there, remove what is in its place, or take another folder"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _HELD_BY_ANOTHER:
            return None
        raise WriteError(
            f"{path}: cannot be locked: {error.strerror}. A lock keeps two processes out of one folder, and this file system gives none; "
            "write into a folder of another file system, such as a local disk, and copy the dataset from there",
            error.errno,
        ) from error
    return descriptor


def _key(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino
