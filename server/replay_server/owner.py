"""The record of who uses a checkpoint folder, for people and for servers on other machines.

A record names a start of a server: `token` is never used twice. While the server lives it counts `beat` up; a reader
compares records with each other and never with its own clock, so that clocks need not agree, or even run.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path

import msgspec

from replay_server.errors import CheckpointError, CheckpointUnreadable
from replay_server.reading import read_small, stands_at

OWNER = "OWNER.json"

_MOST_BYTES = 1 << 16
_FIRST_BEAT = 10**9


class Owner(msgspec.Struct, frozen=True):
    """Who uses a folder.

    Attributes:
      host: the machine's name, or the container's.
      pid: of the process, as it sees itself: 1 in a container.
      started: time of the start, in UTC.
      boot: id of the run of the machine's kernel; "" where the system has none. Containers of one machine share it.
      lock: inode of the lock file that it holds.
      token: of this start alone.
      seen: when it last refreshed this, by its own clock, in UTC.
      beat: of the refreshments; it starts with ten digits, so that a record is always as long and can be overwritten.
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

    def is_of_this_boot(self) -> bool:
        """Whether it ran, or runs, under the kernel that runs now; False where that cannot be told."""
        return bool(self.boot) and self.boot == boot_id()

    def refreshed(self) -> Owner:
        """The same, seen now."""
        return msgspec.structs.replace(self, seen=_time(time.time()), beat=self.beat + 1)

    def encoded(self) -> bytes:
        """As it stands in the file."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def this_process(started_at: float, lock: int) -> Owner:
    """A new owner: this process, with a token of its own."""
    started, now = _time(started_at), _time(time.time())
    return Owner(socket.gethostname(), os.getpid(), started, boot_id(), lock, secrets.token_hex(16), now, _FIRST_BEAT)


def boot_id() -> str:
    """Id of the run of this machine's kernel; "" where the system does not tell. Source: random(4)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_record(folder: Path) -> bytes | None:
    """The record as it stands in the file, None when there is none.

    Raises:
      CheckpointUnreadable: it is there and cannot be read.
      CheckpointError: it is no regular file, or not of this size.
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


def decoded(record: bytes | None) -> Owner | None:
    """The owner in a record, None when it says none."""
    try:
        return None if record is None else msgspec.json.decode(record, type=Owner)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def in_use(folder: Path, other: Owner | None) -> str:
    """What to say to a server that finds another one in its folder; None for one that has not said who it is."""
    who = other or f"a process that has not said who it is in {OWNER}"
    return (
        f"checkpoint folder {folder}: another server uses it: {who}. Two would delete each other's checkpoints: "
        "stop that one, or set checkpoints.folder to a folder of this server's own"
    )


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
