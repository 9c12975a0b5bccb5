"""All records in one file, while nobody knows yet how many files there are to be, and where each begins."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.tfds_files.tfrecord import masked_checksum

RECORDS, LENGTHS = ".records", ".lengths"
"""Names of its files."""

FRAME_BYTES = 16
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")
_BUFFER_BYTES = 1 << 20


class Spool:
    """TFRecords, and their lengths beside them.

    Args:
      folder: where.
      records: how many there are of an earlier run; what came after them is cut off.
      size: their bytes, frames included.
    """

    def __init__(self, folder: Path, records: int = 0, size: int = 0) -> None:
        self.path, self._lengths_path = folder / RECORDS, folder / LENGTHS
        self.records, self.size = records, size
        self._file = _at_end(self.path, size)
        self._lengths = _at_end(self._lengths_path, records * _LENGTH.size)

    def append(self, record: bytes) -> None:
        """Takes a record."""
        length = _LENGTH.pack(len(record))
        self._file.write(_HEAD.pack(len(record), masked_checksum(length)))
        self._file.write(record)
        self._file.write(_SUM.pack(masked_checksum(record)))
        self._lengths.write(length)
        self.records += 1
        self.size += len(record) + FRAME_BYTES

    def sync(self) -> None:
        """Puts all on disk."""
        for file in (self._file, self._lengths):
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Lets go of the files."""
        try:
            self._file.close()
        finally:
            self._lengths.close()


def lengths_in(folder: Path, records: int) -> Array:
    """[records] uint64 bytes of every record, without frames."""
    found: Array = np.fromfile(folder / LENGTHS, "<u8", count=records)
    return found


def _at_end(path: Path, size: int) -> Any:
    """A file to append to, cut to its first `size` bytes. One that is shorter has been cut by `finish`, and stays."""
    file = path.open("r+b" if path.exists() else "w+b", buffering=_BUFFER_BYTES)
    if file.seek(0, os.SEEK_END) > size:
        file.truncate(size)
    file.seek(0, os.SEEK_END)
    return file
