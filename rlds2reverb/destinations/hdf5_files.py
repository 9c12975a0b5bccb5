"""HDF5 files that are written: an error of the disk is raised here, and not within HDF5.

HDF5 writes most of a file while it is closed. A write that fails there leaves objects that cannot be closed: h5py prints a traceback for each
of them, and the process crashes when they are collected (observed with HDF5 1.14.6). So HDF5 writes to an object of Python, which keeps an
error of the disk to itself, and in memory what the disk does not take, until `Output.check` raises.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Output:
    """A new file for HDF5 to write: `h5py.File(output, "w")`. Use as a context manager around that of `h5py.File`.

    Args:
      path: of the file; one that is there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._path = path
        self._error: OSError | KeyboardInterrupt | None = None
        self._in_memory: list[tuple[int, bytes]] = []
        self._end = self._at = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.check()

    def check(self) -> None:
        """Call it often: what HDF5 writes behind an error is kept in memory.

        Raises:
          OSError: the disk does not take the file.
        """
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, os.strerror(self._error.errno or 0), str(self._path)) from self._error
        if self._error is not None:
            raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of a file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def write(self, data: Any) -> int:
        """Writes all of it, to memory if need be."""
        view = memoryview(data).cast("B")
        start, stop = self._at, self._at + len(view)
        try:
            while self._error is None and self._at < stop:
                self._file.seek(self._at)
                self._at += self._file.write(view[self._at - start :])
        except (OSError, KeyboardInterrupt) as error:
            self._error = error
        if self._at < stop:
            self._in_memory.append((self._at, bytes(view[self._at - start :])))
        self._at = stop
        self._end = max(self._end, stop)
        return len(view)

    def read(self, size: int) -> bytes:
        """As of a file. HDF5 calls `readinto`; h5py knows an object for a file by this one."""
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(buffer)])

    def readinto(self, buffer: Any) -> int:
        """Reads what was written; zeros elsewhere."""
        view = memoryview(buffer).cast("B")
        start, stop = self._at, min(self._at + len(view), max(self._at, self._end))
        self._file.seek(start)
        count = self._file.readinto(view[: stop - start]) or 0
        view[count : stop - start] = bytes(stop - start - count)
        for at, data in self._in_memory:
            first, last = max(at, start), min(at + len(data), stop)
            if first < last:
                view[first - start : last - start] = data[first - at : last - at]
        self._at = stop
        return stop - start

    def truncate(self, size: int) -> int:
        """As of a file."""
        self._end = size
        if self._error is None:
            try:
                self._file.truncate(size)
            except OSError as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Nothing waits here."""
