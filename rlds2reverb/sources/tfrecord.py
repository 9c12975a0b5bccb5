"""The lengths of a TFRecord file's records, looked at before TensorFlow reads the file.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). TensorFlow
allocates what the length says, and where that fails the process dies: a length of 2^40 is enough. Everything else that
can be wrong with a record, TensorFlow finds and says.
Source: record_reader.cc of TensorFlow 2.15.
"""

from __future__ import annotations

import os
import stat
from itertools import count
from pathlib import Path

from rlds2reverb.errors import SourceError

_LENGTH_BYTES = 8
_BYTES_AROUND_DATA = 16
_MOST_BYTES = 1 << 31
"""No record is longer: it holds a `tf.train.Example`, and protobuf reads no message of 2 GiB."""


def check_records(path: Path, most: int | None = None) -> None:
    """Refuses a file with a record that TensorFlow could not allocate; reads 8 bytes per record.

    A file that ends in the middle of a record passes; TensorFlow says so when it comes there.

    Args:
      path: a local file.
      most: how many records will be read, or None for all.

    Raises:
      SourceError: it is no file, cannot be read, or a record is longer than the file or than 2 GiB.
    """
    try:
        _check_kind(path)
        with path.open("rb", buffering=0) as file:
            _check_lengths(path, file.fileno(), most)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _check_kind(path: Path) -> None:
    """A pipe would never end, and a directory has no records."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise SourceError(f"{path}: cannot be read: not a regular file")


def _check_lengths(path: Path, file: int, most: int | None) -> None:
    size, start = os.fstat(file).st_size, 0
    for number in count() if most is None else range(most):
        head = os.pread(file, _LENGTH_BYTES, start)
        if len(head) < _LENGTH_BYTES:
            return
        length = int.from_bytes(head, "little")
        if length > min(size, _MOST_BYTES):
            raise SourceError(
                f"{path}: record {number}, at byte {start}, says that it has {length:,} bytes, and the file has "
                f"{size:,}: it is damaged there or before; prepare or copy it again"
            )
        start += length + _BYTES_AROUND_DATA
