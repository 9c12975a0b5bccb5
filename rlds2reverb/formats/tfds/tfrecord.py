"""TFRecord files: records between frames with checksums, which are read from any record on.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). There is no header. A checksum is
CRC-32C, rotated and shifted ("masked"), so that a checksum over data that itself holds checksums loses none of its strength. TFDS never compresses these files.

Where a record begins, only the heads of all records before it say. They are jumped over, or looked up in the file's `index`; an index
is never trusted: the head at its place must have its checksum and its length, else it is dropped and the heads are walked.

A length is compared with the file's before memory is allocated: a length of 2^40 is refused.
Source: record_reader.cc and crc32c.h of TensorFlow 2.15.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import IO

import google_crc32c

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.paths import Stamp, stamp_of
from rlds2reverb.formats.tfds import index

_HEAD = struct.Struct("<QI")
_LENGTH_BYTES = 8
_SUM_BYTES = 4
FRAME_BYTES = 16
_BUFFER_BYTES = 1 << 20
_HEADS_BUFFER_BYTES = 1 << 13  # where only heads are read: of large records, what lies between them stays unread
_WALKED_AT_ONCE = 1 << 16  # records, between two calls of `on_walked`
MOST_BYTES = 1 << 31
"""No record is longer: it holds a `tf.train.Example`, and protobuf reads no message of 2 GiB."""


def masked_checksum(data: bytes) -> int:
    """The masked CRC-32C of some bytes, as TFRecord files store it."""
    plain: int = google_crc32c.value(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> tuple[bytes, bytes]:
    """What stands before and after a record in a TFRecord file."""
    length = len(record).to_bytes(_LENGTH_BYTES, "little")
    return _HEAD.pack(len(record), masked_checksum(length)), masked_checksum(record).to_bytes(_SUM_BYTES, "little")


def check_file(path: Path) -> None:
    """Raises `SourceError` for what is missing, or no regular file."""
    with _reading(path):
        check_regular(path)


def check_records(path: Path, most: int | None = None) -> None:
    """Refuses a file with a record longer than the file or 2 GiB among its first `most` (None for all); reads 8 bytes per record.

    A file that ends in the middle of a record passes; reading it raises the error.
    """
    with _reading(path):
        check_regular(path)
        with path.open("rb", buffering=0) as file:  # a buffer would read more than the 8 bytes that are needed
            size, start = path.stat().st_size, 0
            for number in count() if most is None else range(most):
                file.seek(start)
                head = file.read(_LENGTH_BYTES)
                if len(head) < _LENGTH_BYTES:
                    return
                length = int.from_bytes(head, "little")
                if length > min(size, MOST_BYTES):
                    raise _absurd_length(path, number, start, length, size)
                start += length + FRAME_BYTES


def tfrecords(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Reads records number `skip` to `skip + take` of a file, checksums verified; raises as `records.open_records`.

    Those before are jumped over: by the file's index where there is one, else by the lengths in their heads. What was walked over becomes
    an index, where it was much.
    """
    with _reading(path), ExitStack() as files:
        check_regular(path)
        stamp = stamp_of(path)
        size, ends = stamp[0], array("Q")
        # From the first record on a disk's file needs no index; of an object it says where the last one ends.
        indexed = index.load(path, stamp) if skip or isinstance(path, BucketPath) else index.NOTHING
        places, file = indexed, None
        if skip + 1 < len(indexed):
            end = int(indexed[skip + take]) if skip + take < len(indexed) else size
            file = files.enter_context(_open_at(path, int(indexed[skip]), end, _BUFFER_BYTES))
            if not _agrees(file, indexed, skip):
                index.forget(path)
                file, indexed = None, index.NOTHING
        if file is None:
            places = walk_heads(path, stamp, indexed, skip)
            if places[len(indexed) - 1] != indexed[-1]:
                indexed = index.NOTHING  # it was wrong
            file = files.enter_context(_open_at(path, int(places[skip]), size, _BUFFER_BYTES))
        at = int(places[skip])
        try:
            for number in range(skip, skip + take):
                length = _read_length(path, file, number, at, size)
                if number + 1 < len(indexed) and indexed[number + 1] != at + length + FRAME_BYTES:
                    index.forget(path)  # it is wrong from here on, and so may be the end of what was opened
                    indexed = index.NOTHING
                    file = files.enter_context(_open_at(path, at, size, _BUFFER_BYTES))
                    length = _read_length(path, file, number, at, size)
                data, checksum = file.read(length), file.read(_SUM_BYTES)
                if len(checksum) < _SUM_BYTES:
                    raise _cut_off(path, number, size)
                if int.from_bytes(checksum, "little") != masked_checksum(data):
                    raise _damaged(path, number, "the checksum of its data is wrong")
                at += length + FRAME_BYTES
                ends.append(at)
                yield data
        finally:  # also where the reader stops early
            index.save_walked(path, stamp, indexed, places[: skip + 1], ends)


def check_end(path: Path, records: int, size: int) -> None:
    """Raises `SourceError` for a file with more behind its last record, which ends at byte `size`."""
    if path.stat().st_size > size:
        raise _too_many(path, records)


def walk_heads(path: Path, stamp: Stamp, indexed: Array, until: int) -> Array:
    """The places of a file's records up to number `until`, by their heads: from the last one that is indexed on, or from the first where that is wrong.

    Raises:
      SourceError: a head is damaged, or the file ends before.
      OSError: it cannot be read.
    """
    number, size, ends = max(0, len(indexed) - 2), stamp[0], array("Q")
    at = int(indexed[number])
    with _open_at(path, at, size, _HEADS_BUFFER_BYTES) as file:
        if len(indexed) > 1 and not _agrees(file, indexed, number):
            index.forget(path)
            return walk_heads(path, stamp, index.NOTHING, until)
        for record in range(number, until):
            length = _read_length(path, file, record, at, size)
            at += length + FRAME_BYTES
            if at > size:
                raise _cut_off(path, record, size)
            file.seek(length + _SUM_BYTES, os.SEEK_CUR)
            ends.append(at)
    return index.join_places(indexed[: number + 1], ends)


def index_file(path: Path, records: int, beside: bool, on_walked: Callable[[int], None]) -> Path:
    """Saves the index of a file, and returns where.

    Args:
      records: number that the dataset says.
      beside: into the file's folder, in place of the cache.
      on_walked: is called with the number of records that came to those so far.

    Raises:
      SourceError: the file cannot be read, is damaged, or has another number of records; or nothing is put beside it.
      WriteError: the folder of the index cannot be written.
    """
    if beside:
        index.check_beside(path)  # before anything is read
    with _reading(path):
        check_regular(path)
        stamp = stamp_of(path)
        places = index.load(path, stamp)
        on_walked(len(places) - 1)
        while (count := len(places)) <= records:
            places = walk_heads(path, stamp, places, min(records, count + _WALKED_AT_ONCE))
            on_walked(len(places) - count)
    if len(places) != records + 1 or places[records] < stamp[0]:
        raise _too_many(path, records)
    return index.save(path, stamp, places, beside)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _open_at(path: Path, start: int, stop: int, buffer_bytes: int) -> IO[bytes]:
    """Opens a file at byte `start`; nothing from `stop` on is asked of a bucket."""
    if isinstance(path, BucketPath):
        return path.open_part(start, stop, buffer_bytes)
    file = path.open("rb", buffering=buffer_bytes)
    file.seek(start)
    return file


def _agrees(file: IO[bytes], places: Array, number: int) -> bool:
    """Whether the file has, where it stands, the head of a record as long as its index says."""
    head = file.read(_HEAD.size)
    file.seek(-len(head), os.SEEK_CUR)
    length = int(places[number + 1]) - int(places[number]) - FRAME_BYTES
    return len(head) == _HEAD.size and _HEAD.unpack(head) == (length, masked_checksum(head[:_LENGTH_BYTES]))


def _read_length(path: Path, file: IO[bytes], number: int, start: int, size: int) -> int:
    """Reads the length in the head of the record that begins at byte `start`; the file position is at its data afterwards."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _cut_off(path, number, size)
    length, checksum = _HEAD.unpack(head)
    if checksum != masked_checksum(head[:_LENGTH_BYTES]):
        raise _damaged(path, number, "the checksum of its length is wrong")
    if length > MOST_BYTES:
        raise _absurd_length(path, number, start, length, size)
    if length > size:
        raise _cut_off(path, number, size)
    return int(length)


def _too_many(path: Path, records: int) -> SourceError:
    return SourceError(
        f"{path}: there are more than the {records:,} records that the dataset says; prepare or copy it again"
    )


def _absurd_length(path: Path, number: int, start: int, length: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: record {number}, at byte {start}, says that it has {length:,} bytes, and the file has "
        f"{size:,}: it is damaged there or before; prepare or copy it again"
    )


def _cut_off(path: Path, number: int, size: int) -> SourceError:
    return SourceError(
        f"{path}: the file ends before the end of record {number}, after {size:,} bytes; prepare or copy it again"
    )


def _damaged(path: Path, number: int, what: str) -> SourceError:
    return SourceError(f"{path}: record {number} is damaged: {what}; prepare or copy the file again")
