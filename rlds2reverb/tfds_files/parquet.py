"""Parquet files as TFDS writes them: one binary column `data`, a record per row. Read by `pyarrow`, which is optional.

Parquet has checksums of its own, which are verified where they are; TFDS writes none.

TFDS 4.9.10 writes row groups of 100 records and loses what comes after in each batch that it writes, while
dataset_info.json keeps the full number. The rows that are left cannot be told from complete ones.
Source: file_adapters.py of TFDS 4.9.10 (`ParquetFileAdapter`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.tfds_files.tfrecord import check_kind

_EXTRA = "parquet"
_COLUMN = "data"
_BINARY = ("binary", "large_binary")
_ROWS_AT_ONCE = 16


def parquet_records(path: Path, skip: int, take: int, *, skips_lost: bool = False) -> Iterator[bytes]:
    """Rows number `skip` to `skip + take` of a file.

    Args:
      path: a local file.
      skip: how many rows to leave out.
      take: how many to read after those.
      skips_lost: whether to read on where the file has fewer rows; else it is refused.

    Raises:
      SourceError: the package is missing, the file cannot be read, or has fewer rows; says which.
    """
    with _open(path) as file:
        _check_column(path, file.schema_arrow)
        _check_rows(path, file.metadata.num_rows, skip + take, skips_lost)
        yield from _rows(path, file, skip, min(skip + take, file.metadata.num_rows))


def _check_column(path: Path, schema: Any) -> None:
    found = {field.name: str(field.type) for field in schema}
    if found.get(_COLUMN) not in _BINARY:
        raise SourceError(f'{path}: expected a column "{_COLUMN}" of binary records, found {found}')


def _check_rows(path: Path, found: int, expected: int, skips_lost: bool) -> None:
    if found < expected and not skips_lost:
        raise SourceError(
            f"{path}: has {found:,} records; expected {expected:,}, as dataset_info.json says: TFDS's parquet writer "
            'loses records past 100 per row group; prepare the dataset again as tfrecord, or read what is left with lost_records="skip"'
        )


def _open(path: Path) -> Any:
    try:
        check_kind(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    with needing(f"{path}: reading parquet files", _EXTRA, SourceError):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        file = ParquetFile(path, page_checksum_verification=True)
    except (ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return file


def _rows(path: Path, file: Any, start: int, end: int) -> Iterator[bytes]:
    from pyarrow import ArrowException

    row = 0
    try:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[_COLUMN]):
            wanted = batch.column(0)[max(start - row, 0) : max(end - row, 0)]
            if wanted.null_count:
                raise SourceError(f"{path}: a row without a record, after row {row}")
            yield from wanted.to_pylist()
            row += batch.num_rows
            if row >= end:
                return
    except (ArrowException, OSError, ValueError, IndexError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> SourceError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SourceError(f"{path}: cannot be read as parquet: {said}; copy the file again")
