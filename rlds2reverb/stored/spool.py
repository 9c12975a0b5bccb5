"""Bytes laid aside on disk, to be read again in any order: a checkpoint's chunks come in none, and its files cannot be jumped in."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlds2reverb.errors import SourceError

_AT_ONCE_BYTES = 1 << 20
_PREAD: Any = getattr(os, "pread", None)
"""Windows has none."""


class Spool:
    """A file without a name in the folder of temporary files; gone with the process, however that ends.

    Write everything first, then `close_writing`. Reading is thread-safe.
    """

    def __init__(self) -> None:
        with _told():
            self._file = tempfile.TemporaryFile(prefix="rlds2reverb-")  # noqa: SIM115 - lives as long as this object
        weakref.finalize(self, self._file.close)
        self.size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> int:
        """Where it lies from now on.

        Raises:
          SourceError: the disk is full.
        """
        at, size = self.size, len(data)
        self._waiting.append(data)
        self._waiting_bytes += size
        self.size = at + size
        if self._waiting_bytes > _AT_ONCE_BYTES:
            self._write_waiting()
        return at

    def close_writing(self) -> None:
        """All that was written can be read now.

        Raises:
          SourceError: the disk is full.
        """
        self._write_waiting()

    def _write_waiting(self) -> None:
        with _told():
            self._file.write(b"".join(self._waiting))
            self._file.flush()
        self._waiting.clear()
        self._waiting_bytes = 0

    def read(self, at: int, size: int) -> bytes:
        """What was written there.

        Raises:
          SourceError: the disk fails.
        """
        with _told():
            if _PREAD is not None:
                return bytes(_PREAD(self._file.fileno(), size, at))
            with self._lock:
                self._file.seek(at)
                return self._file.read(size)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"temporary file in {tempfile.gettempdir()}: {error.strerror}; it takes what the chunks take without zlib. Have TMPDIR "
            "name a folder with more room"
        ) from error
