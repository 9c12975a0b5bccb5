"""All records in one file, while nobody knows yet how many files there are to be, and where each begins."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rlds2reverb.destinations.growing_files import at_end, lost, put
from rlds2reverb.episodes import Array
from rlds2reverb.tfds_files.tfrecord import masked_checksum

RECORDS, LENGTHS = ".records", ".lengths"
"""Names of its files."""

FRAME_BYTES = 16
_HEAD = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")


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
        self._lost: OSError | None = None
        self._file = self._at_end(self.path, size)
        self._lengths = self._at_end(self._lengths_path, records * _LENGTH.size)

    def append(self, record: bytes) -> None:
        """Takes a record.

        Raises:
          OSError: records of the earlier run are missing, or the disk.
        """
        if self._lost is not None:
            raise self._lost
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
            put(file)

    def close(self) -> None:
        """Lets go of the files."""
        try:
            self._file.close()
        finally:
            self._lengths.close()

    def _at_end(self, path: Path, size: int) -> BinaryIO:
        """See `growing_files.at_end`; but one that is shorter may have been cut by `finish`: it stays, and takes nothing more."""
        there = path.stat().st_size if path.exists() else 0
        if there < size:
            self._lost = lost(path, size)
        file: BinaryIO = at_end(path, min(there, size))
        return file


def lengths_in(folder: Path, records: int) -> Array:
    """[records] uint64 bytes of every record, without frames.

    Raises:
      OSError: there are fewer.
    """
    found: Array = np.fromfile(folder / LENGTHS, "<u8", count=records)
    if len(found) < records:
        raise lost(folder / LENGTHS, records * _LENGTH.size)
    return found
