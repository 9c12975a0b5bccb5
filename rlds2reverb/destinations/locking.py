"""One writer per place: a lock on a file, which the system drops when the process ends, however it ends.

Such a lock belongs to the process, so nothing that the process forks keeps it. It cannot tell two conversions of one process apart: a set of
this module does.
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
"""Process, device and number of each file that is locked here. Nothing else in the process may open one: closing it would drop the lock."""

_CHANGING = threading.Lock()
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Locks a file, which is made where it is absent; whether nobody else has it locked. What is in the file does not matter.

    Raises:
      WriteError: the file cannot be made; or its file system refuses to lock it, which does not mean that it is locked.
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
        yield _is_still(os.fstat(descriptor), path)
    finally:
        with _CHANGING:
            os.close(descriptor)
            _HELD.discard(key)


def _open_locked(path: Path) -> int | None:
    """The file's descriptor, locked; None where another process has it locked."""
    with writing(path, "make room there, remove what is in its place, or convert into another folder"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _HELD_BY_ANOTHER:
            return None
        raise WriteError(
            f"{path}: cannot be locked: {error.strerror}. A lock keeps two conversions out of one folder, and this file system gives none; "
            "convert into a folder of another file system, such as a local disk, and copy the dataset from there",
            error.errno,
        ) from error
    return descriptor


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _key(found: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), found.st_dev, found.st_ino


def _is_still(before: os.stat_result, path: Path) -> bool:
    """Whether the file is still there: whoever had it locked may have removed it."""
    try:
        return os.path.samestat(before, path.stat())
    except FileNotFoundError:
        return False
