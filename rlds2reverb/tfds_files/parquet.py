"""Parquet files as TFDS writes them: one binary column `data`, a record per row. Read by `pyarrow`, which is optional.

Parquet has checksums of its own, which are verified where they are; TFDS writes none.

TFDS 4.9.10 writes row groups of 100 records and loses what comes after in each batch that it writes, while
dataset_info.json keeps the full number. The rows that are left cannot be told from complete ones.
Source: file_adapters.py of TFDS 4.9.10 (`ParquetFileAdapter`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import check_regular

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
    """That checksums are verified, which pyarrow can from 15.0 on; TFDS writes none."""
    option = "page_checksum_verification"
    return {option: True} if option in inspect.signature(reader).parameters else {}


def _rows(path: Path, file: Any, start: int, end: int) -> Iterator[bytes]:
    """Row group by row group, so that a damaged one moves no row of the others."""
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
