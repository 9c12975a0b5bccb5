"""The kernel's lock on a file of a folder (flock): released by any end of the process, however it comes."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Literal

from replay_server.errors import CheckpointError
from replay_server.reading import must_be_regular

LOCK = "LOCK"

SAFELY = os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
"""Opening never waits for anybody, and follows no link."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def open_lock(folder: Path) -> int:
    """The folder's lock file, made when missing; a descriptor to lock.

    Raises:
      CheckpointError: the folder cannot be made or written to, or something else stands there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | SAFELY, 0o644)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint folder {folder}: cannot be written to ({LOCK}: {error.strerror}); "
            "set checkpoints.folder to one that this user may write to"
        ) from error
    must_be_regular(descriptor, folder / LOCK)
    return descriptor


def try_lock(descriptor: int, how: int, path: Path) -> Literal["ours", "taken", "no locks"]:
    """Takes the lock without waiting.

    Args:
      descriptor: of the file at `path`.
      how: fcntl.LOCK_EX, or LOCK_SH to look whether somebody has it.
      path: for messages.

    Raises:
      CheckpointError: it cannot be told.
    """
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return "taken"
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        raise CheckpointError(f"{path}: cannot be locked ({error.strerror})") from error
    return "ours"


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
