"""One server per checkpoint folder: a kernel lock that no crash leaves behind, and a record of who holds it.

```
FOLDER/LOCK        locked (flock) while the server lives; the file stays
FOLDER/OWNER.json  who (see owner.py); refreshed every few seconds, removed at an orderly end
```

| what a newcomer finds | what it does |
| --- | --- |
| LOCK is locked | refuses, and names the owner |
| LOCK is free, no record | takes the folder |
| LOCK is free, a record of this machine that was made with this LOCK | takes the folder: that owner has crashed |
| LOCK is free, any other record | waits; a record that changes has a living owner, one that does not is replaced |

The last row is for volumes that several machines share and that carry no locks between them, and for a LOCK that someone
removed. There an owner may be thought dead, because its machine was suspended or cut off, and come back. So before each
change of the folder the owner looks whether the record still has its token and LOCK is still the file that it locked. It
refreshes the record through the file that it opened when it wrote it, so that it never overwrites a later owner's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from replay_server.errors import CheckpointError, FolderLost
from replay_server.kernel_lock import LOCK, SAFELY, is_at, open_lock, try_lock
from replay_server.logs import logger
from replay_server.owner import OWNER, Owner, decoded, in_use, read_record, this_process

BEAT_SECONDS = 5.0
SILENT_BEATS = 12
"""A record that does not change for so many beats has no living owner: a minute, in which a busy disk answers."""

_TRIES, _TRY_SECONDS = 20, 0.05
"""How often the lock is tried, and the pause between. An owner may just be ending, or `holder` trying it for a moment."""

_JOIN_SECONDS = 2.0

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}


class FolderLock:
    """The claim of this process to a folder: `take`, `settle`, then `check` before each change, at the end `release`.

    Args:
      folder: made when missing.
      started_at: Unix time, for the record.
      beat_seconds: between two refreshments of the record.

    Attributes:
      waiting: what `settle` waits for, "" when it does not.
    """

    def __init__(self, folder: Path, started_at: float, beat_seconds: float = BEAT_SECONDS) -> None:
        self.folder, self.waiting = folder, ""
        self._started_at, self._beat_seconds = started_at, beat_seconds
        self._lock = self._record = -1
        self._is_locked = False
        self._owner: Owner | None = None
        self._problem, self._beaten_at = "", 0.0
        self._telling, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._log = logger("folder")

    @property
    def problem(self) -> str:
        """Why nothing may be written to the folder, as last seen; "" when all is well, or the folder is not taken yet."""
        silent = time.monotonic() - self._beaten_at
        if self._problem or self._owner is None or self._is_locked or silent < SILENT_BEATS * self._beat_seconds:
            return self._problem  # who holds the kernel's lock need not be heard
        return (
            f"checkpoint folder {self.folder}: {OWNER} could not be refreshed for {silent:.0f} s; "
            "does its disk or file server answer?"
        )

    def take(self) -> None:
        """Locks LOCK.

        Raises:
          CheckpointError: another process has it, who; or the folder cannot be written to.
        """
        for _ in range(_TRIES):
            self._lock = open_lock(self.folder)
            got = try_lock(self._lock, fcntl.LOCK_EX, self.folder / LOCK)
            if got != "taken" and is_at(self._lock, self.folder / LOCK):
                self._is_locked = got == "ours"
                break
            self._close()
            time.sleep(_TRY_SECONDS)
        else:
            raise CheckpointError(in_use(self.folder, decoded(read_record(self.folder))))
        if not self._is_locked:
            self._log.warning("the file system has no locks, owners are told by their records", path=str(self.folder))

    def settle(self, wait: Callable[[float], bool]) -> bool:
        """Makes the folder this server's, after waiting where a living owner cannot be told otherwise.

        Args:
          wait: for so many seconds; True when the server is to end.

        Returns:
          False when it was to end meanwhile; then the folder is as it was.

        Raises:
          CheckpointError: another server lives there, who; or the record cannot be read or written.
        """
        before = read_record(self.folder)
        has_to_wait = not self._has_crashed(decoded(before)) if before is not None else not self._is_locked
        if before is not None and has_to_wait and not self._outlive(before, wait):
            self.release()
            return False
        self._claim(may_overwrite=before is not None and not has_to_wait)
        if has_to_wait and wait(self._beat_seconds):  # a second newcomer has written its record by then
            self.release()
            return False
        self.check()
        self.beat()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)
        self._thread.start()
        return True

    def check(self) -> None:
        """Looks whether the folder is still this server's.

        Raises:
          FolderLost: it is not: who has it, or what became of it; or that cannot be told.
        """
        try:
            problem = self._look()
        except (CheckpointError, OSError) as error:
            problem = f"checkpoint folder {self.folder}: nobody can tell whose it is ({error})"
        self._tell(problem)
        if problem:
            raise FolderLost(problem)

    def beat(self) -> None:
        """Looks, and refreshes the record when it is this server's."""
        owner = self._owner
        if owner is None:
            return
        with suppress(CheckpointError):  # told
            self.check()
            self._owner = owner.refreshed()
            try:
                os.pwrite(self._record, self._owner.encoded(), 0)
                os.fsync(self._record)
            except OSError as error:
                self._log.warning("the owner's record cannot be refreshed", path=str(self.folder), error=str(error))
                return
            self._beaten_at = time.monotonic()

    def release(self) -> None:
        """Gives the folder up; does nothing when it was not taken."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._thread is not None and self._thread.is_alive():
            return  # it hangs in a write, and so would this: the end of the process closes all
        if self._owner is not None:
            with suppress(CheckpointError, OSError):
                if not self._look():
                    (self.folder / OWNER).unlink()
        self._owner = None
        self._close()

    def _has_crashed(self, before: Owner | None) -> bool:
        """Whether a kernel lock that is free says that its last owner is gone."""
        if before is None or not self._is_locked:
            return False
        return before.is_of_this_boot() and before.lock == os.fstat(self._lock).st_ino

    def _outlive(self, before: bytes, wait: Callable[[float], bool]) -> bool:
        """Waits until a record has not changed for long; False when the server is to end."""
        seconds = SILENT_BEATS * self._beat_seconds
        self.waiting = f"{decoded(before) or 'an owner without a name'} may still use {self.folder}"
        self._log.warning("waiting for a sign of life of the folder's owner", owner=self.waiting, seconds=seconds)
        for _ in range(SILENT_BEATS):
            if wait(self._beat_seconds):
                return False
            now = read_record(self.folder)
            if now is None:
                break
            if now != before:
                raise CheckpointError(in_use(self.folder, decoded(now)))
        self.waiting = ""
        self._log.warning(
            "folder taken over", path=str(self.folder), owner=str(decoded(before)), silent_seconds=seconds
        )
        return True

    def _claim(self, may_overwrite: bool) -> None:
        """Puts this server's record into place; over that of an owner that has crashed, where the disk is full."""
        owner = this_process(self._started_at, os.fstat(self._lock).st_ino)
        partial = self.folder / f"{OWNER}.{owner.token}.partial"
        try:
            for left in self.folder.glob(f"{OWNER}.*.partial"):  # of one that was killed here
                left.unlink(missing_ok=True)
            try:
                self._write_record(partial, os.O_CREAT | os.O_EXCL, owner)
                partial.replace(self.folder / OWNER)
            except OSError as error:
                if not may_overwrite or error.errno not in FULL_DISK:
                    raise
                partial.unlink(missing_ok=True)
                self._write_record(self.folder / OWNER, 0, owner)
        except OSError as error:
            self.release()
            hint = "; free some space" if error.errno in FULL_DISK else ""
            raise CheckpointError(f"{partial}: cannot be written ({error.strerror}){hint}") from error
        self._owner, self._beaten_at = owner, time.monotonic()

    def _write_record(self, path: Path, flags: int, owner: Owner) -> None:
        if self._record >= 0:
            os.close(self._record)
        self._record = os.open(path, os.O_RDWR | SAFELY | flags, 0o644)
        data = owner.encoded()
        os.pwrite(self._record, data, 0)
        os.ftruncate(self._record, len(data))
        os.fsync(self._record)

    def _look(self) -> str:
        """What is wrong with the claim, "" when nothing is."""
        where = f"checkpoint folder {self.folder}"
        owner = self._owner
        if owner is None:
            return f"{where}: not taken by this server"
        record = read_record(self.folder)
        found = decoded(record)
        if found is not None and found.token != owner.token:
            return f"{where}: another server has taken it, {found}; nothing is written to it any more by this one"
        if found is None:
            return f"{where}: the record in {OWNER} is {'gone' if record is None else 'damaged'}{_GONE}"
        return "" if is_at(self._lock, self.folder / LOCK) else f"{where}: {LOCK} is gone, or another file{_GONE}"

    def _tell(self, problem: str) -> None:
        with self._telling:
            before, self._problem = self._problem, problem
        if problem and not before:
            self._log.critical("the checkpoint folder is lost", problem=problem)
        elif before and not problem:
            self._log.warning("the checkpoint folder is this server's again", path=str(self.folder))

    def _run(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            self.beat()

    def _close(self) -> None:
        for descriptor in {self._lock, self._record} - {-1}:
            os.close(descriptor)
        self._lock = self._record = -1


_GONE = (
    "; was the folder moved, deleted, or its volume unmounted? Nothing is written to it any more. Put back what was there,"
    " or restart the server, which costs what came after its last checkpoint"
)
