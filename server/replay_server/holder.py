"""Who uses a checkpoint folder now, as far as it can be told from here; looked at as a start would, nothing taken."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from replay_server.folder_lock import BEAT_SECONDS, SILENT_BEATS
from replay_server.kernel_lock import LOCK, SAFELY, try_lock
from replay_server.owner import Owner, decoded, in_use, read_record
from replay_server.reading import cannot_read, stands_at


@dataclass(frozen=True)
class Holder:
    """The server in a folder.

    Attributes:
      words: who it is; "" when there is none.
      refusal: why a start would be refused at once; "" where it would not, or would first wait for a sign of life.
    """

    words: str = ""
    refusal: str = ""


def holder(folder: Path) -> Holder:
    """Who uses a folder. Changes nothing.

    Raises:
      CheckpointError: that cannot be told.
    """
    owner = decoded(read_record(folder))
    words = str(owner or "a process that has not said who it is")
    got, inode = _tried(folder / LOCK)
    if got == "taken":
        return Holder(words, in_use(folder, owner))
    if owner is None or (got == "ours" and _is_of(owner, inode)):
        return Holder()
    seconds = SILENT_BEATS * BEAT_SECONDS
    return Holder(
        f"{words}, if it is alive, which cannot be told from here: a start waits {seconds:.0f} s for a sign of life"
    )


def _is_of(owner: Owner, inode: int) -> bool:
    """Whether an owner has crashed, if the lock with this inode is free."""
    return owner.is_of_this_boot() and owner.lock == inode


def _tried(path: Path) -> tuple[str, int]:
    """What became of trying the lock, "" where there is none; and its inode."""
    if not stands_at(path):
        return "", 0
    try:
        descriptor = os.open(path, os.O_RDONLY | SAFELY)
    except OSError as error:
        raise cannot_read(path, error) from error
    try:
        return try_lock(descriptor, fcntl.LOCK_SH, path), os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)
