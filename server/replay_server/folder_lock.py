"""One server per checkpoint folder: a kernel lock that no crash leaves behind, and a record of its owner.

```
FOLDER/LOCK        locked (flock) while the server lives; the file stays
FOLDER/OWNER.json  a `FolderOwner`; refreshed every few seconds, removed at an orderly end
```

| what a new server finds | what it does |
| --- | --- |
| LOCK is locked | refuses to start, and names the owner |
| LOCK is free, no record | takes the folder |
| LOCK is free, a record of this machine that was made with this LOCK | takes the folder: its owner has crashed |
| LOCK is free, any other record | waits; a record that changes has a living owner, one that does not is replaced |

The last row is for volumes that several machines share without sharing locks, and for a LOCK that was removed. There an
owner may look dead, because its machine was suspended or cut off, and come back. So before each change of the folder the
owner checks that the record still has its token, and that LOCK is still the file it locked. It refreshes the record through
the file descriptor with which it wrote it, so it never overwrites a later owner's record.

A reader compares records with each other, never with its own clock: clocks need not agree.

Not covered: a server that is suspended between that check and the one rename or deletion that follows, and two machines that start at
the same moment in a new folder without locks (one finds out at its next beat).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from replay_server.errors import CheckpointError, CheckpointUnreadable, FolderLost
from replay_server.files import FULL_DISK, cannot_read, must_be_regular, read_small, stands_at
from replay_server.logs import logger

LOCK, OWNER = "LOCK", "OWNER.json"

BEAT_SECONDS = 5.0
SILENT_BEATS = 12
"""A record that does not change for so many beats has no living owner: a minute, in which a busy disk answers."""

_TRIES, _TRY_SECONDS = 20, 0.05  # another server may just be ending, or `holder` be trying the lock
_JOIN_SECONDS = 2.0
_MOST_BYTES = 1 << 16
_FIRST_BEAT = 10**9  # ten digits, so that a record keeps its length and can be overwritten in place
_SAFELY = os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW  # opening never blocks, and follows no link
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_GONE = (
    "; was the folder moved, deleted, or its volume unmounted? Nothing is written to it any more. Put back what was there,"
    " or restart the server, which costs what came after its last checkpoint"
)


class FolderOwner(msgspec.Struct, frozen=True):
    """A server that uses a folder, as its record tells.

    Attributes:
      host: name of the machine or the container.
      pid: as the process sees itself: 1 in a container.
      started: in UTC.
      boot: id of the kernel's run; "" where the system has none. Containers of one machine share it.
      lock: inode of the lock file that it holds.
      token: of this start alone.
      seen: time of the last refreshment, by its own clock, in UTC.
      beat: number of the last refreshment, from `_FIRST_BEAT` on.
    """

    host: str
    pid: int
    started: str
    boot: str
    lock: int
    token: str
    seen: str
    beat: int

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}, started {self.started}, last seen {self.seen}"

    def has_crashed(self, inode: int) -> bool:
        """Whether the owner is surely gone, given that the lock on the file with this inode is free."""
        return bool(self.boot) and self.boot == boot_id() and self.lock == inode

    def encoded(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


class FolderLock:
    """The claim of this process to a folder: `take`, `settle`, then `check` before each change, at the end `release`.

    Args:
      folder: made when missing.
      started_at: Unix time, for the record.
      beat_seconds: time between two refreshments of the record.

    Attributes:
      waiting: what `settle` waits for; "" when it does not wait.
    """

    def __init__(self, folder: Path, started_at: float, beat_seconds: float = BEAT_SECONDS) -> None:
        self.folder, self.waiting = folder, ""
        self._started_at, self._beat_seconds = started_at, beat_seconds
        self._lock = self._record = -1
        self._is_locked = False
        self._owner: FolderOwner | None = None
        self._problem, self._beaten_at = "", 0.0
        self._reporting, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._log = logger("folder")

    @property
    def problem(self) -> str:
        """Why nothing may be written to the folder, as last seen; "" when all is well, or the folder is not taken yet."""
        silent = time.monotonic() - self._beaten_at
        if self._problem or self._owner is None or self._is_locked or silent < SILENT_BEATS * self._beat_seconds:
            return self._problem  # an owner with the kernel's lock needs no record
        return (
            f"checkpoint folder {self.folder}: {OWNER} could not be refreshed for {silent:.0f} s; "
            "does its disk or file server answer?"
        )

    def take(self) -> None:
        """Locks LOCK, or only opens it where the file system has no locks.

        Raises:
          CheckpointError: another process has the lock; or the folder cannot be written to.
        """
        path = self.folder / LOCK
        for _ in range(_TRIES):
            self._lock = _open_lock(self.folder)
            got = _try_lock(self._lock, fcntl.LOCK_EX, path)
            if got != "taken" and _is_at(self._lock, path):
                self._is_locked = got == "ours"
                break
            self._close()
            time.sleep(_TRY_SECONDS)
        else:
            raise CheckpointError(_in_use(self.folder, decode_owner(read_record(self.folder))))
        if not self._is_locked:
            self._log.warning("the file system has no locks, owners are found by their records", path=str(self.folder))

    def settle(self, wait: Callable[[float], bool]) -> bool:
        """Writes this server's record, after waiting where an earlier owner may still live.

        Args:
          wait: waits for so many seconds; True when the server is to end.

        Returns:
          False when the server was to end meanwhile; then the folder is as it was.

        Raises:
          CheckpointError: another server lives there; or the record cannot be read or written.
        """
        before = read_record(self.folder)
        if before is None:
            has_to_wait = not self._is_locked
        else:
            owner = decode_owner(before)
            has_crashed = self._is_locked and owner is not None and owner.has_crashed(os.fstat(self._lock).st_ino)
            has_to_wait = not has_crashed
            if has_to_wait and not self._outlive(before, wait):
                self.release()
                return False
        self._claim(may_overwrite=before is not None and not has_to_wait)
        if has_to_wait and wait(self._beat_seconds):  # a second new server has written its record by then
            self.release()
            return False
        self.check()
        self.beat()
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)
        self._thread.start()
        return True

    def check(self) -> None:
        """Makes sure that the folder is still this server's.

        Raises:
          FolderLost: it is not, or that cannot be found out; says who has it, or what became of it.
        """
        try:
            problem = self._look()
        except (CheckpointError, OSError) as error:
            problem = f"checkpoint folder {self.folder}: nobody can tell whose it is ({error})"
        with self._reporting:
            before, self._problem = self._problem, problem
        if problem and not before:
            self._log.critical("the checkpoint folder is lost", problem=problem)
        elif before and not problem:
            self._log.warning("the checkpoint folder is this server's again", path=str(self.folder))
        if problem:
            raise FolderLost(problem)

    def beat(self) -> None:
        """Refreshes the record if the folder is still this server's."""
        owner = self._owner
        if owner is None:
            return
        with suppress(CheckpointError):  # logged by `check`
            self.check()
            self._owner = msgspec.structs.replace(owner, seen=utc(time.time()), beat=owner.beat + 1)
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
            if self._thread.is_alive():
                return  # it hangs in a write, and so would this: the end of the process closes all
        if self._owner is not None:
            with suppress(CheckpointError, OSError):
                # Only if it is still ours: another server's record must stay.
                if not self._look():
                    (self.folder / OWNER).unlink()
        self._owner = None
        self._close()

    def _outlive(self, before: bytes, wait: Callable[[float], bool]) -> bool:
        """Waits until a record has not changed for `SILENT_BEATS`; False when the server is to end.

        Raises:
          CheckpointError: the record changed: its owner lives.
        """
        seconds = SILENT_BEATS * self._beat_seconds
        self.waiting = f"{decode_owner(before) or 'an owner without a name'} may still use {self.folder}"
        self._log.warning("waiting for a sign of life of the folder's owner", owner=self.waiting, seconds=seconds)
        for _ in range(SILENT_BEATS):
            if wait(self._beat_seconds):
                return False
            now = read_record(self.folder)
            if now is None:
                break
            if now != before:
                raise CheckpointError(_in_use(self.folder, decode_owner(now)))
        self.waiting = ""
        self._log.warning(
            "folder taken over", path=str(self.folder), owner=str(decode_owner(before)), silent_seconds=seconds
        )
        return True

    def _claim(self, may_overwrite: bool) -> None:
        """Puts this server's record into place. A full disk takes no second file: then a crashed owner's is overwritten."""
        owner = this_process(self._started_at, os.fstat(self._lock).st_ino)
        partial = self.folder / f"{OWNER}.{owner.token}.partial"
        try:
            for left in self.folder.glob(f"{OWNER}.*.partial"):  # by a server that was killed here
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

    def _write_record(self, path: Path, flags: int, owner: FolderOwner) -> None:
        if self._record >= 0:
            os.close(self._record)
        self._record = os.open(path, os.O_RDWR | _SAFELY | flags, 0o644)
        data = owner.encoded()
        os.pwrite(self._record, data, 0)
        os.ftruncate(self._record, len(data))
        os.fsync(self._record)

    def _look(self) -> str:
        where = f"checkpoint folder {self.folder}"
        if self._owner is None:
            return f"{where}: not taken by this server"
        record = read_record(self.folder)
        owner = decode_owner(record)
        if owner is None:
            return f"{where}: the record in {OWNER} is {'gone' if record is None else 'damaged'}{_GONE}"
        if owner.token != self._owner.token:
            return f"{where}: another server has taken it, {owner}; nothing is written to it any more by this one"
        return "" if _is_at(self._lock, self.folder / LOCK) else f"{where}: {LOCK} is gone, or another file{_GONE}"

    def _run(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            self.beat()

    def _close(self) -> None:
        for descriptor in {self._lock, self._record} - {-1}:
            os.close(descriptor)
        self._lock = self._record = -1


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
    """The server that uses a folder now. Changes nothing.

    Raises:
      CheckpointError: the record or the lock cannot be read.
    """
    owner = decode_owner(read_record(folder))
    words = str(owner or "a process that has not said who it is")
    path, has_crashed = folder / LOCK, False
    if stands_at(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | _SAFELY)
        except OSError as error:
            raise cannot_read(path, error) from error
        try:
            got = _try_lock(descriptor, fcntl.LOCK_SH, path)
            has_crashed = got == "ours" and owner is not None and owner.has_crashed(os.fstat(descriptor).st_ino)
        finally:
            os.close(descriptor)
        if got == "taken":
            return Holder(words, _in_use(folder, owner))
    if owner is None or has_crashed:
        return Holder()
    seconds = SILENT_BEATS * BEAT_SECONDS
    return Holder(
        f"{words}, if it is alive, which cannot be seen from here: a start waits {seconds:.0f} s for a sign of life"
    )


def this_process(started_at: float, lock: int) -> FolderOwner:
    """An owner for this process, with a new token."""
    started, now = utc(started_at), utc(time.time())
    return FolderOwner(
        socket.gethostname(), os.getpid(), started, boot_id(), lock, secrets.token_hex(16), now, _FIRST_BEAT
    )


def boot_id() -> str:
    """Id of the run of this machine's kernel; "" where the system has none. Source: random(4)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_record(folder: Path) -> bytes | None:
    """The bytes of a folder's record; None without a record.

    Raises:
      CheckpointUnreadable: it is there and cannot be read.
      CheckpointError: it is no regular file, or too large.
    """
    path = folder / OWNER
    try:
        return read_small(path, _MOST_BYTES)
    except CheckpointUnreadable:
        raise
    except CheckpointError:
        if stands_at(path):
            raise
        return None


def decode_owner(record: bytes | None) -> FolderOwner | None:
    """The owner in a record; None without a record, or in a damaged one."""
    try:
        return None if record is None else msgspec.json.decode(record, type=FolderOwner)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _open_lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _SAFELY, 0o644)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint folder {folder}: cannot be written to ({LOCK}: {error.strerror}); "
            "set checkpoints.folder to one that this user may write to"
        ) from error
    must_be_regular(descriptor, folder / LOCK)
    return descriptor


def _try_lock(descriptor: int, how: int, path: Path) -> Literal["ours", "taken", "no locks"]:
    """Takes a lock without waiting; with `how` fcntl.LOCK_SH only to find out whether another process has it."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return "taken"
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        raise CheckpointError(f"{path}: cannot be locked ({error.strerror})") from error
    return "ours"


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, other: FolderOwner | None) -> str:
    who = other or f"a process that has not said who it is in {OWNER}"
    return (
        f"checkpoint folder {folder}: another server uses it: {who}. Two would delete each other's checkpoints: "
        "stop that one, or set checkpoints.folder to a folder of this server's own"
    )


def utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
