"""A file's bytes on their way to libhdf5, which trusts them more than it should.

libhdf5 walks the objects of a global heap (it holds texts of free length) by the sizes that stand there, and one of 0 keeps it walking
for ever. So what it reads passes through here, and a heap that would do that is refused.

Source of the layout: HDF5 File Format Specification 3.0, III.E "Disk Format: Level 1E - Global Heap".
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

from rlds2reverb.episodes import Array, byte_view
from rlds2reverb.readers.reading_at import read_at

_HEAP = b"GCOL\1\0\0\0"
_SEARCHED_BYTES = 1 << 20
"""Metadata comes in reads of at most as much (H5F_ACCUM_MAX_SIZE in H5Faccum.c); longer ones are values."""
_OBJECT = struct.Struct("<HHIQ")
_HEADER_BYTES = 16


class CheckedFile:
    """What h5py takes for an open file of Python's: read only, and checked as the module says.

    Args:
      path: of a regular file.
      name: what `h5py.File.filename` is to say; ASCII.

    Raises:
      OSError: it cannot be opened, or is no regular file.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        self._name, self._at = name, 0
        self._sound_heaps: set[int] = set()
        self.failure = ""
        """What was last refused."""
        found = os.fstat(self._descriptor)
        self.size = found.st_size
        self.stamp = (found.st_size, found.st_mtime_ns)
        """Differs once the file is written anew."""
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError("not a regular file")

    def __repr__(self) -> str:
        return self._name

    def close(self) -> None:
        """Lets go of the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def is_unchanged(self) -> bool:
        """Whether it is as it was when it was opened."""
        now = os.fstat(self._descriptor)
        return self.stamp == (now.st_size, now.st_mtime_ns)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As of any file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer from here on.

        Raises:
          OSError: it cannot be read or ends before, or a heap in it has no end.
        """
        view = memoryview(buffer).cast("B")
        done = self._fill(view, self._at)
        if done < len(view):
            raise self._failed(f"the file ends at byte {self._at + done:,}; expected {len(view) - done:,} more")
        if done <= _SEARCHED_BYTES:
            self._check_heaps(bytes(view), self._at)
        self._at += done
        return done

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data = self.bytes_at(self._at, max(0, self.size - self._at) if size < 0 else size)
        self._at += len(data)
        return data

    def bytes_at(self, offset: int, size: int) -> bytes:
        """So many bytes from there on, fewer at the end of the file."""
        size = max(0, min(size, self.size - offset)) if offset >= 0 else 0
        buffer = bytearray(size)
        return bytes(buffer[: self._fill(memoryview(buffer), offset)]) if size else b""

    def fill(self, values: Array, offset: int) -> None:
        """Fills an array, C order, with the bytes from there on.

        Raises:
          OSError: they cannot be read, or the file ends before.
        """
        if not values.nbytes:
            return
        done = self._fill(memoryview(byte_view(values)), offset)
        if done < values.nbytes:
            raise self._failed(f"the file ends at byte {offset + done:,}; expected {values.nbytes - done:,} more")

    def _fill(self, view: memoryview, offset: int) -> int:
        done = 0
        while done < len(view):
            got = read_at(self._descriptor, view[done:], offset + done)
            if not got:
                break
            done += got
        return done

    def _check_heaps(self, data: bytes, start: int) -> None:
        at = data.find(_HEAP)
        while at >= 0:
            if start + at not in self._sound_heaps:
                self._check_heap(start + at)
                self._sound_heaps.add(start + at)
            at = data.find(_HEAP, at + 1)

    def _check_heap(self, start: int) -> None:
        """Raises `OSError` when walking over its objects does not come to an end."""
        size = int.from_bytes(self.bytes_at(start + 8, 8), "little")
        data = self.bytes_at(start, size)
        at = _HEADER_BYTES
        while at + _OBJECT.size <= len(data):
            index, _, _, length = _OBJECT.unpack_from(data, at)
            step = _HEADER_BYTES + (length + 7) // 8 * 8 if index else length
            if step < _HEADER_BYTES or step > size - at:
                raise self._failed(f"the heap of texts at byte {start:,} is damaged at byte {start + at:,}")
            at += step

    def _failed(self, why: str) -> OSError:
        """The error, which libhdf5 may put one of its own in the place of."""
        self.failure = why
        return OSError(why)
