"""TFRecord files: their records' lengths looked at, and the records read with their checksums verified.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). There is no
header. A checksum is CRC-32C, rotated and shifted ("masked"). TFDS never compresses these files.

What a length says is compared with the file before memory is asked for: a length of 2^40 is refused.
Source: record_reader.cc and crc32c.h of TensorFlow 2.15.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular

_HEAD = struct.Struct("<QI")
_LENGTH_BYTES = 8
_SUM_BYTES = 4
_BYTES_AROUND_DATA = 16
_BUFFER_BYTES = 1 << 20
MOST_BYTES = 1 << 31
"""No record is longer: it holds a `tf.train.Example`, and protobuf reads no message of 2 GiB."""


def masked_checksum(data: bytes) -> int:
    """The masked CRC-32C of some bytes, as TFRecord files store it."""
    plain: int = google_crc32c.value(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check_records(path: Path, most: int | None = None) -> None:
    """Refuses a file with a record of an absurd length; reads 8 bytes per record.

    A file that ends in the middle of a record passes; that is said when the reading comes there.

    Args:
      path: a local file.
      most: how many records will be read, or None for all.

    Raises:
      SourceError: it is no file, cannot be read, or a record is longer than the file or than 2 GiB.
    """
    try:
        check_regular(path)
        with path.open("rb", buffering=0) as file:
            _check_lengths(path, file, most)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def tfrecords(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file, checksums verified; those before are jumped over.

    Raises:
      SourceError: the file cannot be read, ends too early, or a record is damaged; says which.
    """
    try:
        check_regular(path)
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            for number in range(skip):
                _jump(path, file, number, size)
            for number in range(skip, skip + take):
                yield _record(path, file, number, size)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _check_lengths(path: Path, file: BinaryIO, most: int | None) -> None:
    size, start = os.fstat(file.fileno()).st_size, 0
    for number in count() if most is None else range(most):
        file.seek(start)
        head = file.read(_LENGTH_BYTES)
        if len(head) < _LENGTH_BYTES:
            return
        length = int.from_bytes(head, "little")
        if length > min(size, MOST_BYTES):
            raise _absurd(path, number, start, length, size)
        start += length + _BYTES_AROUND_DATA


def _length(path: Path, file: BinaryIO, number: int, size: int) -> int:
    """Reads a record's head; the file stands at its data then."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _cut(path, number, size)
    length, checksum = _HEAD.unpack(head)
    if checksum != masked_checksum(head[:_LENGTH_BYTES]):
        raise _damaged(path, number, "the checksum of its length is wrong")
    if length > MOST_BYTES:
        raise _absurd(path, number, file.tell() - _HEAD.size, length, size)
    if length > size:
        raise _cut(path, number, size)
    return int(length)


def _jump(path: Path, file: BinaryIO, number: int, size: int) -> None:
    length = _length(path, file, number, size)
    if file.seek(length + _SUM_BYTES, os.SEEK_CUR) > size:
        raise _cut(path, number, size)


def _record(path: Path, file: BinaryIO, number: int, size: int) -> bytes:
    length = _length(path, file, number, size)
    data, checksum = file.read(length), file.read(_SUM_BYTES)
    if len(checksum) < _SUM_BYTES:
        raise _cut(path, number, size)
    if int.from_bytes(checksum, "little") != masked_checksum(data):
        raise _damaged(path, number, "the checksum of its data is wrong")
    return data


def _absurd(path: Path, number: int, start: int, length: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: record {number}, at byte {start}, says that it has {length:,} bytes, and the file has "
        f"{size:,}: it is damaged there or before; prepare or copy it again"
    )


def _cut(path: Path, number: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: the file ends before the end of record {number}, after {size:,} bytes; prepare or copy it again"
    )


def _damaged(path: Path, number: int, what: str) -> SourceError:
    return SourceError(f"{path}: record {number} is damaged: {what}; prepare or copy the file again")
