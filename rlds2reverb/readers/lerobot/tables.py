"""Rows of Parquet files of unknown origin, a few at a time.

pyarrow gives errors of many kinds over a damaged file; here they become `SourceError`, or `BrokenEpisode` for rows of an episode.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import line_of, shortened

ERRORS = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)
"""What pyarrow raises over a damaged file."""

_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 18
"""Of a column that is read; without, pyarrow reads all of a row group at once."""
_MOST_BATCH_ROWS = 1 << 16
_MOST_ROWS = 10_000_000
"""Of a table that is read as a whole: the episodes, or the tasks."""


def opened(path: Path) -> ParquetFile:
    """The file, open for reading.

    Raises:
      SourceError: it is missing, no regular file, or not Parquet.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path}: not a regular file")
        return ParquetFile(path, memory_map=False, buffer_size=_BUFFER_BYTES)
    except ERRORS as error:
        raise SourceError(f"{path}: cannot be read as Parquet: {line_of(error)}") from error


def whole(path: Path, wanted: Any) -> pa.Table:
    """A small table.

    Args:
      path: the file.
      wanted: takes a column's name; whether it is read.

    Raises:
      SourceError: the file cannot be read, or has more rows than such a table has.
    """
    with opened(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise SourceError(f"{path}: has {file.metadata.num_rows:,} rows; expected at most {_MOST_ROWS:,}")
        try:
            return file.read([name for name in file.schema_arrow.names if wanted(name)])
        except ERRORS as error:
            raise SourceError(f"{path}: cannot be read: {line_of(error)}") from error


class Rows:
    """Some columns of a file, read forwards in batches; memory holds one batch beside the rows that are asked for.

    Raises:
      SourceError: as `opened`.
      BrokenEpisode: a column is missing.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self._file = opened(path)
        found = self._file.schema_arrow.names
        for name in columns:
            if name not in found:
                self._file.close()
                raise BrokenEpisode(name, f"{path}: no such column; there are {shortened(', '.join(found))}")
        self.count = int(self._file.metadata.num_rows)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._at = -1

    def close(self) -> None:
        """Lets go of the file."""
        self._batches, self._rest = iter(()), None
        self._file.close()

    def read(self, start: int, stop: int) -> dict[str, pa.Array]:
        """Rows `start` to `stop`, column by column; cheap behind those that were read last.

        Raises:
          BrokenEpisode: there are fewer, or they cannot be read.
        """
        if not 0 <= start <= stop <= self.count:
            raise BrokenEpisode("", f"{self.path}: has {self.count:,} rows; expected rows {start:,} to {stop:,}")
        with _told(self.path):
            if not 0 <= self._at <= start:
                self._begin(start)
            batches = list(self._taken(start, stop))
            table = pa.Table.from_batches(batches) if batches else self._file.schema_arrow.empty_table()
            return {name: _joined(table.column(name)) for name in self.columns}

    def _begin(self, start: int) -> None:
        """Places the cursor before the row group that has this row."""
        metadata, first = self._file.metadata, 0
        groups = list(range(metadata.num_row_groups))
        while groups and first + metadata.row_group(groups[0]).num_rows <= start:
            first += metadata.row_group(groups.pop(0)).num_rows
        self._at, self._rest = first, None
        self._batches = self._file.iter_batches(self._batch_rows(groups), row_groups=groups, columns=list(self.columns))

    def _batch_rows(self, groups: Sequence[int]) -> int:
        """How many rows have about `_BATCH_BYTES`."""
        sizes = [(one.total_byte_size, one.num_rows) for one in map(self._file.metadata.row_group, groups[:8])]
        size, rows = (sum(each) for each in zip(*sizes)) if sizes else (0, 1)
        return int(max(1, min(_MOST_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size))))

    def _taken(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        while self._at < stop:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                raise BrokenEpisode(
                    "", f"{self.path}: ends after {self._at:,} rows; expected {stop:,}; copy the file again"
                )
            first, last = max(0, start - self._at), min(batch.num_rows, stop - self._at)
            if last > first:
                yield batch.slice(first, last - first)
            self._rest = batch.slice(last) if last < batch.num_rows else None
            self._at += last


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise BrokenEpisode("", f"{path}: cannot be read: {line_of(error)}") from error


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
