"""The records of a file of a TFDS dataset: TFRecord, ArrayRecord or Parquet.

Of a TFRecord file lengths and checksums are verified.

A record is its length (8 bytes, little-endian), a checksum of that (4), the data, and a checksum of it (4). There is no
header. A checksum is CRC-32C, rotated and shifted ("masked"). TFDS never compresses these files.

What a length says is compared with the file before memory is asked for: a length of 2^40 is refused.
Source: record_reader.cc and crc32c.h of TensorFlow 2.15.
"""

from __future__ import annotations

import inspect
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
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
    """Reads the length in a record's head; the file position is at its data afterwards."""
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


# ArrayRecord files, read by their own package `array_record`, which is optional.
#
# Source: array_record 0.8's Python bindings. TFDS writes one record per group, so that each can be read alone.

_AT_ONCE = 64
"""Records read in one call."""


def array_records(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file; the package verifies its checksums.

    Raises:
      SourceError: the package is missing, the file cannot be read, or has fewer records; says which.
    """
    reader = _open_array_record(path)
    try:
        found = _count(path, reader)
        if found < skip + take:
            raise SourceError(f"{path}: has {found:,} records; expected at least {skip + take:,}; copy the file again")
        for start in range(skip, skip + take, _AT_ONCE):
            yield from _read(path, reader, start, min(start + _AT_ONCE, skip + take))
    finally:
        with suppress(RuntimeError):  # of a damaged file it says again what was said
            reader.close()


def _count(path: Path, reader: Any) -> int:
    try:
        found: int = reader.num_records()
    except (RuntimeError, ValueError) as error:
        raise _unreadable_array_record(path, "", error) from error
    return found


def _open_array_record(path: Path) -> Any:
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    with needing(f"{path}: reading array_record files", "array-record", SourceError):
        from array_record.python.array_record_module import ArrayRecordReader
    try:
        return ArrayRecordReader(str(path))
    except (RuntimeError, ValueError) as error:
        raise _unreadable_array_record(path, "", error) from error


def _read(path: Path, reader: Any, start: int, end: int) -> list[bytes]:
    try:
        records: list[bytes] = reader.read(start, end)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _unreadable_array_record(path, f", records {start} to {end - 1}", error) from error
    return records


def _unreadable_array_record(path: Path, which: str, error: Exception) -> SourceError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SourceError(f"{path}{which}: cannot be read as array_record: {said}; copy the file again")


# Parquet files as TFDS writes them: one binary column `data`, a record per row. Read by `pyarrow`, which is optional.
#
# Parquet has checksums of its own, which are verified where they are; TFDS writes none.
#
# TFDS 4.9.10 writes row groups of 100 records and loses what comes after in each batch that it writes, while
# dataset_info.json keeps the full number. The rows that are left cannot be told from complete ones.
# Source: file_adapters.py of TFDS 4.9.10 (`ParquetFileAdapter`).

_COLUMN = "data"
_BINARY = ("binary", "large_binary")
_ROWS_AT_ONCE = 16


def parquet_records(path: Path, skip: int, take: int, *, total: int = 0, skips_lost: bool = False) -> Iterator[bytes]:
    """Rows number `skip` to `skip + take` of a file.

    Args:
      path: a local file.
      skip: how many rows to leave out.
      take: how many to read after those.
      total: how many rows the file should have in all, where known.
      skips_lost: whether to read on where the file has fewer rows; else it is refused.

    Raises:
      SourceError: the package is missing, the file cannot be read, or has fewer rows; says which.
    """
    with _open_parquet(path) as file:
        _check_column(path, file.schema_arrow)
        _check_rows(path, file.metadata.num_rows, max(skip + take, total), skips_lost)
        yield from _rows(path, file, skip, min(skip + take, file.metadata.num_rows))


def _check_column(path: Path, schema: Any) -> None:
    found = {field.name: str(field.type) for field in schema}
    if found.get(_COLUMN) not in _BINARY:
        raise SourceError(f'{path}: expected a column "{_COLUMN}" of binary records, found {found}')


def _check_rows(path: Path, found: int, expected: int, skips_lost: bool) -> None:
    if found < expected and not skips_lost:
        raise SourceError(
            f"{path}: has {found:,} records; expected {expected:,}, as dataset_info.json says: TFDS's parquet writer "
            'loses records past 100 per row group; prepare the dataset again as tfrecord, or read what is left with "?lost_records=skip" behind the name'
        )


def _open_parquet(path: Path) -> Any:
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    with needing(f"{path}: reading parquet files", "parquet", SourceError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        file = ParquetFile(path, **_checks(ParquetFile))
    except (ArrowException, OSError, ValueError) as error:
        raise _unreadable_parquet(path, error) from error
    return file


def _checks(reader: Any) -> dict[str, bool]:
    """Options to verify checksums, which pyarrow supports from 15.0 on; TFDS writes none."""
    option = "page_checksum_verification"
    return {option: True} if option in inspect.signature(reader).parameters else {}


def _rows(path: Path, file: Any, start: int, end: int) -> Iterator[bytes]:
    """Reads one row group at a time, so that a damaged one does not shift the rows of the rest."""
    first = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if first < end and first + rows > start:
            yield from _rows_of_group(path, file, group, range(max(start - first, 0), min(end - first, rows)))
        first += rows
    if first < end:
        raise SourceError(f"{path}: its row groups have {first:,} rows, and it says {end:,}; copy the file again")


def _rows_of_group(path: Path, file: Any, group: int, wanted: range) -> Iterator[bytes]:
    from pyarrow import ArrowException

    row = 0
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[_COLUMN]):
            yield from _records(path, batch.column(0)[max(wanted.start - row, 0) : max(wanted.stop - row, 0)])
            row += batch.num_rows
            if row >= wanted.stop:
                return
    except (ArrowException, OSError, ValueError, IndexError) as error:
        raise _unreadable_parquet(path, error) from error
    raise SourceError(
        f"{path}: row group {group} ends after {row:,} rows; expected {wanted.stop:,}; copy the file again"
    )


def _records(path: Path, column: Any) -> list[bytes]:
    if column.null_count:
        raise SourceError(f"{path}: a row without a record")
    records: list[bytes] = column.to_pylist()
    return records


def _unreadable_parquet(path: Path, error: Exception) -> SourceError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SourceError(f"{path}: cannot be read as parquet: {said}; copy the file again")


# The records of one shard, whatever the file format: `bytes` of one `tf.train.Example` each.

TFRECORD = "tfrecord"
ARRAY_RECORD = "array_record"
PARQUET = "parquet"
RIEGELI = "riegeli"

REFUSE = "refuse"
SKIP = "skip"
LOST_RECORDS = (REFUSE, SKIP)
"""What to do about records that a shard should have and has not, see `open_records`."""

_READERS: dict[str, Callable[[Path, int, int], Iterator[bytes]]] = {
    TFRECORD: tfrecords,
    ARRAY_RECORD: array_records,
}


def open_records(
    path: Path, file_format: str, skip: int, take: int, *, total: int = 0, lost_records: str = REFUSE
) -> Iterator[bytes]:
    """Reads records `skip` to `skip + take` of one shard. Nothing is read ahead.

    Args:
      path: a local file.
      file_format: as dataset_info.json has it: "tfrecord", "array_record" or "parquet".
      skip: how many records to leave out at the beginning.
      take: how many to read after those.
      total: how many records the shard should have in all, where known: what is lost of a parquet file is noticed then
        also when only a part is read.
      lost_records: what to do when a parquet file has fewer rows than that, which TFDS 4.9.10 writes: "refuse"
        them, or "skip" what is lost: then fewer come, and the caller counts.

    Raises:
      SourceError: a format that is not read, a library that is missing, a file that cannot be read or has fewer records,
        or a damaged record; says which. The format is refused before the first record is asked for.
    """
    if file_format == PARQUET:
        return parquet_records(path, skip, take, total=total, skips_lost=lost_records == SKIP)
    check_format(file_format, str(path))
    return _READERS[file_format](path, skip, take)


def check_format(file_format: str, where: str) -> None:
    """Refuses a file format that cannot be read.

    Raises:
      SourceError: with what to do about it.
    """
    if file_format == RIEGELI:
        raise SourceError(
            f"{where}: riegeli files are not read here, nor by tensorflow-datasets' wheels; prepare the dataset again "
            f'with file_format="{TFRECORD}" or "{ARRAY_RECORD}"'
        )
    if file_format != PARQUET and file_format not in _READERS:
        known = ", ".join((*_READERS, PARQUET))
        raise SourceError(f'{where}: unknown file format "{file_format}"; expected one of {known}')
