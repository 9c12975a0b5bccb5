"""The records of one file, each the `bytes` of one `tf.train.Example`: in TFRecord (`tfrecord`), ArrayRecord or Parquet.

ArrayRecord files are read by their own package `array_record`, which is optional. TFDS writes one record per group, so that each can be
read alone. Source: array_record 0.8's Python bindings.

Parquet files have one binary column `data`, a record per row, and are read by `pyarrow`, which is optional. Parquet has checksums of its own,
which are verified where they are present; TFDS writes none. TFDS 4.9.10 writes row groups of 100 records and loses others, for its
`_batched` skips as many records as it wrote before; dataset_info.json keeps the full number. A file that lost rows looks complete.
Source: file_adapters.py of TFDS 4.9.10 (`ParquetFileAdapter`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.buckets import for_library, local_copy
from rlds2reverb.formats.tfds.info import ARRAY_RECORD, PARQUET, RIEGELI, TFRECORD
from rlds2reverb.formats.tfds.tfrecord import check_file, tfrecords

_AT_ONCE = 64  # records in one call of array_record
_COLUMN = "data"
_BINARY = ("binary", "large_binary")
_ROWS_AT_ONCE = 16  # a row is an episode, often of many megabytes


def open_records(path: Path, file_format: str, skip: int, take: int, total: int = 0) -> Iterator[bytes]:
    """Reads records `skip` to `skip + take` of one shard, which should have `total` (0 where unknown). Nothing is read ahead.

    Raises:
      SourceError: a missing library, a file that cannot be read or has fewer records, or a damaged record; the message says which.
    """
    if file_format == PARQUET:
        return _parquet_records(path, skip, take, total)
    return tfrecords(path, skip, take) if file_format == TFRECORD else _array_records(path, skip, take)


def check_format(file_format: str, where: str) -> None:
    """Raises `SourceError`, with what to do about it, for the file format that cannot be read."""
    if file_format == RIEGELI:
        raise SourceError(
            f"{where}: riegeli files are not read here, nor by tensorflow-datasets' wheels; prepare the dataset again "
            f'with file_format="{TFRECORD}" or "{ARRAY_RECORD}"'
        )


def _array_records(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Reads records number `skip` to `skip + take`; the package verifies its checksums. Raises as `open_records`."""
    check_file(path)
    with needing(f"{path}: reading array_record files", "array-record", SourceError):
        from array_record.python.array_record_module import ArrayRecordReader
    which, reader = "", None
    try:
        reader = ArrayRecordReader(str(local_copy(path)))  # its C++ opens names only
        count = reader.num_records()
        if count < skip + take:
            raise SourceError(f"{path}: has {count:,} records; expected at least {skip + take:,}; copy the file again")
        for start in range(skip, skip + take, _AT_ONCE):
            end = min(start + _AT_ONCE, skip + take)
            which = f", records {start} to {end - 1}"
            yield from reader.read(start, end)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SourceError(f"{path}{which}: cannot be read as array_record: {reason}; copy the file again") from error
    finally:
        with suppress(RuntimeError):  # a damaged file raises the same error again
            if reader is not None:
                reader.close()


def _parquet_records(path: Path, skip: int, take: int, total: int) -> Iterator[bytes]:
    """Reads rows number `skip` to `skip + take`; raises as `open_records`. The loss of rows is noticed also when only a part is read."""
    with _open_parquet(path) as file:
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        if columns.get(_COLUMN) not in _BINARY:
            raise SourceError(f'{path}: expected a column "{_COLUMN}" of binary records, found {columns}')
        count, expected = file.metadata.num_rows, max(skip + take, total)
        if count < expected:
            raise SourceError(
                f"{path}: has {count:,} records; expected {expected:,}, as dataset_info.json says: TFDS's parquet writer "
                'loses records past 100 per row group; prepare the dataset again as tfrecord, or read what is left with "?lost_records=skip" behind the name'
            )
        first, end = 0, skip + take  # first row of a group
        # Group by group: one that ends early would shift the rows behind it, if all were read in one go.
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            start, stop = max(skip - first, 0), min(end - first, rows)
            first += rows
            if start < stop:
                yield from _read_rows(path, file, group, start, stop)
        if first < end:
            raise SourceError(f"{path}: its row groups have {first:,} rows, and it says {end:,}; copy the file again")


def _read_rows(path: Path, file: Any, group: int, start: int, stop: int) -> Iterator[bytes]:
    row = 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[_COLUMN]):
        column = batch.column(0)[max(start - row, 0) : max(stop - row, 0)]
        if column.null_count:
            raise SourceError(f"{path}: a row without a record")
        yield from column.to_pylist()
        row += batch.num_rows
        if row >= stop:
            return
    raise SourceError(f"{path}: row group {group} ends after {row:,} rows; expected {stop:,}; copy the file again")


def count_rows(path: Path) -> int:
    """The number of rows that a Parquet file has. Raises `SourceError` if it cannot be read."""
    with _open_parquet(path) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """The open file. What pyarrow raises inside becomes a `SourceError`."""
    check_file(path)
    with needing(f"{path}: reading parquet files", "parquet", SourceError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    verify = "page_checksum_verification"  # from pyarrow 15.0 on
    options = {verify: True} if verify in inspect.signature(ParquetFile).parameters else {}
    try:
        with ParquetFile(for_library(path), **options) as file:
            yield file
    except (ArrowException, OSError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SourceError(f"{path}: cannot be read as parquet: {reason}; copy the file again") from error
