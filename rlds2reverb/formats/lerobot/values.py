"""Rows of LeRobot's Parquet files: read in batches and converted to columns of an episode.

| feature | in Arrow |
| --- | --- |
| number of shape (1,) | a plain column |
| shape (n,) | lists of n, of fixed size or not |
| 2 to 5 axes | lists within lists; info.json has the shape |
| string | text |
| image | structs of the file's bytes and its path |
| language_persistent, language_events | lists of structs; here a text of JSON |

pyarrow gives errors of many kinds over a damaged file; here they become `SourceError`, or `BrokenEpisode` for rows of an episode.
Source: feature_utils.py of lerobot 0.6.1 (`get_hf_features_from_features`).
"""

from __future__ import annotations

import json
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.arrow import MOST_BYTES, check_row_groups, is_list, numbers_of, stored_values
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.lerobot.features import LANGUAGE, TEXT, Feature
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.text import line_of, shortened

ERRORS = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)
"""Raised by pyarrow for a damaged file."""

_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 18  # of a column that is read; without it, pyarrow reads all of a row group at once
_MOST_BATCH_ROWS = 1 << 16
_MOST_ROWS = 10_000_000  # of a table that is read as a whole: the episodes, or the tasks


def open_table(path: Path) -> ParquetFile:
    """Opens a file; raises `SourceError` if it is missing, not a regular one, or not Parquet."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path}: not a regular file")
        return ParquetFile(for_library(path), memory_map=False, buffer_size=_BUFFER_BYTES)
    except ERRORS as error:
        raise SourceError(f"{path}: cannot be read as Parquet: {line_of(error)}") from error


def read_table(path: Path, is_needed: Callable[[str], bool]) -> pa.Table:
    """Reads the needed columns of a small table, chosen by their names; raises `SourceError` if it is damaged or too large."""
    with open_table(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise SourceError(f"{path}: has {file.metadata.num_rows:,} rows; expected at most {_MOST_ROWS:,}")
        try:
            names = [name for name in file.schema_arrow.names if is_needed(name)]
            check_row_groups(path, file, names)
            return file.read(names)
        except ERRORS as error:
            raise SourceError(f"{path}: cannot be read: {line_of(error)}") from error


class Batch:
    """Some rows of a file from number `first` on, and the columns made of them."""

    def __init__(self, rows: pa.RecordBatch, first: int) -> None:
        self.rows, self.first, self.stop = rows, first, first + rows.num_rows
        self._columns: dict[str, Array | None] = {}
        self.size_bytes = rows.nbytes

    def convert(self, name: str, make: Callable[[pa.Array], Array]) -> Array | None:
        """The column made by `make`, which is called once; None if a row is broken."""
        if name not in self._columns:
            try:
                self._columns[name] = make(self.rows.column(name))
            except BrokenEpisode:
                self._columns[name] = None
        return self._columns[name]


@dataclass(frozen=True, eq=False)
class RowRange:
    """The requested rows, as batches with start and stop in each; the schema gives types to columns without rows."""

    path: Path
    pieces: Sequence[tuple[Batch, int, int]]
    schema: pa.Schema

    @staticmethod
    def join(parts: Sequence[RowRange]) -> RowRange:
        """Rows that stand in several places, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return RowRange(parts[0].path, [piece for part in parts for piece in part.pieces], parts[0].schema)

    @property
    def count(self) -> int:
        return sum(stop - start for _, start, stop in self.pieces)

    def column(self, name: str) -> pa.Array:
        with _broken_unless_read(str(self.path)):
            parts = [batch.rows.column(name).slice(start, stop - start) for batch, start, stop in self.pieces]
            if len(parts) == 1:
                return parts[0]
            joined = pa.chunked_array(parts, self.schema.field(name).type).combine_chunks()
            return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined

    def convert(self, name: str, make: Callable[[pa.Array], Array]) -> Array:
        """The column [rows, ...] made by `make`, which is always the same for a name.

        It is made from whole batches and kept, for later rows; only if one of these has a broken row, from the requested rows alone.
        """
        parts = [(batch.convert(name, make), start, stop) for batch, start, stop in self.pieces]
        good = [column[start:stop] for column, start, stop in parts if column is not None]
        if not good or len(good) < len(parts):
            return make(self.column(name))
        return good[0] if len(good) == 1 else np.concatenate(good)


class TableRows:
    """Some columns of a file, read forwards in batches. Memory holds one batch beside the requested rows.

    Args:
      row_bytes: the least bytes of a row in memory; it may take fewer in the file.

    Raises:
      SourceError: the file is missing, not a regular one, or not Parquet.
      BrokenEpisode: a column is missing, or the schema makes no sense.
    """

    def __init__(self, path: Path, columns: Sequence[str], row_bytes: int = 1) -> None:
        self.path, self.columns, self._row_bytes = path, tuple(columns), max(1, row_bytes)
        self._file = open_table(path)
        with ExitStack() as unless_good:
            unless_good.callback(self._file.close)
            with _broken_unless_read(str(path)):
                self._schema = self._file.schema_arrow
            names = self._schema.names
            for name in columns:
                if name not in names:
                    raise BrokenEpisode(name, f"{path}: no such column; there are {shortened(', '.join(names))}")
            unless_good.pop_all()
        groups = map(self._file.metadata.row_group, range(self._file.metadata.num_row_groups))
        self._bounds = list(accumulate((group.num_rows for group in groups), initial=0))
        """[row groups + 1] the first row of each, and behind the last."""
        self.count: int = self._bounds[-1]
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: Batch | None = None
        self._checked: set[int] = set()
        self._batch_rows = 0
        self._broken = 0, 0, ""  # rows that cannot be read, start and stop, and why

    @property
    def file(self) -> ParquetFile:
        return self._file

    def close(self) -> None:
        self._batches, self._batch = iter(()), None
        self._file.close()

    def read(self, start: int, stop: int) -> RowRange:
        """Rows `start` to `stop`; fast if they follow the rows read last. Raises `BrokenEpisode`."""
        if not 0 <= start <= stop <= self.count:
            raise BrokenEpisode("", f"{self.path}: has {self.count:,} rows; expected rows {start:,} to {stop:,}")
        with _broken_unless_read(str(self.path)):
            return RowRange(self.path, list(self._batches_between(start, stop)), self._schema)

    def _group(self, row: int) -> int:
        return bisect_right(self._bounds, row) - 1

    def _begin(self, start: int) -> Batch:
        """The first batch of the row group that has this row."""
        groups = list(range(self._group(start), len(self._bounds) - 1))
        sizes = [(group.total_byte_size, group.num_rows) for group in map(self._file.metadata.row_group, groups[:8])]
        size, rows = map(sum, zip(*sizes))
        most = min(_MOST_BATCH_ROWS, _BATCH_BYTES // self._row_bytes)
        self._batch_rows = int(max(1, min(most, _BATCH_BYTES * rows // max(1, size))))
        self._batches = self._file.iter_batches(self._batch_rows, row_groups=groups, columns=list(self.columns))
        return self._next(self._bounds[groups[0]])

    def _next(self, first: int) -> Batch:
        """The batch that begins with this row of the file. After a failure, the rest of the row group is not tried again."""
        self._batch = None
        try:
            last = min(first + self._batch_rows, self.count) - 1
            for group in range(self._group(first), self._group(last) + 1):
                if group not in self._checked:
                    check_row_groups(self.path, self._file, self.columns, [group])
                    self._checked.add(group)
            rows = next(self._batches)
        except (StopIteration, *ERRORS) as error:
            ends = f"ends after {first:,} rows; expected {self.count:,}; copy the file again"
            why = ends if isinstance(error, StopIteration) else f"cannot be read: {line_of(error)}"
            self._broken = first, self._bounds[self._group(first) + 1], f"{self.path}: {why}"
            raise BrokenEpisode("", self._broken[2]) from error
        self._batch = Batch(rows, first)
        return self._batch

    def _batches_between(self, start: int, stop: int) -> Iterator[tuple[Batch, int, int]]:
        at, size = start, 0
        while at < stop:
            if self._broken[0] <= at < self._broken[1]:
                raise BrokenEpisode("", self._broken[2])
            batch = self._batch
            if batch is None or at < batch.first:
                batch = self._begin(at)
            while batch.stop <= at:
                batch = self._next(batch.stop)
            size += batch.size_bytes
            if size > MOST_BYTES:
                raise BrokenEpisode("", f"{self.path}: more than {MOST_BYTES:,} bytes from row {start:,} to {stop:,}")
            last = min(stop, batch.stop)
            yield batch, at - batch.first, last - batch.first
            at = last


@contextmanager
def _broken_unless_read(where: str, column: str = "") -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise BrokenEpisode(column, f"{where}: cannot be read: {line_of(error)}") from error


def convert_column(feature: Feature, column: pa.Array, path: Path, rounds: bool = False) -> Array:
    """[T, ...] of a feature that is not an image; with `rounds`, floats that its dtype lacks become the nearest ones that it has.

    Raises:
      BrokenEpisode: a value is missing, or does not fit shape or dtype.
    """
    with _broken_unless_read(f'{path}: column "{feature.name}"', feature.path):
        stored = stored_values(column)
        if feature.kind == LANGUAGE:  # one text per row; "[]" for a row without any
            texts = (json.dumps(row or [], ensure_ascii=False) for row in stored.to_pylist())
            return np.array([text.encode(errors="backslashreplace") for text in texts], object)
        if stored.null_count:
            raise _broken(feature, path, f"{stored.null_count:,} rows without a value")
        flat = _flatten(feature, stored, path)
        if feature.kind != TEXT:
            return _convert_numbers(feature, flat, len(stored), path, rounds)
        if not (pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type)):
            raise _broken(feature, path, f"holds {flat.type}; expected text")
        texts = flat.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return np.asarray(texts, object).reshape(-1, *feature.shape)


def image_files(feature: Feature, column: pa.Array, path: Path) -> list[bytes]:
    """The bytes of every row's file; raises `BrokenEpisode` if a row has none, for LeRobot always puts them into the table."""
    with _broken_unless_read(f'{path}: column "{feature.name}"', feature.path):
        stored = stored_values(column)
        files: list[bytes] = (stored.field("bytes") if pa.types.is_struct(stored.type) else stored).to_pylist()
    for row, file in enumerate(files):
        if not isinstance(file, bytes):
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}", row {row}: no bytes of an image file; only images inside the table are read',
            )
    return files


def _broken(feature: Feature, path: Path, why: str) -> BrokenEpisode:
    return BrokenEpisode(feature.path, f'{path}: column "{feature.name}": {why}')


def _flatten(feature: Feature, stored: pa.Array, path: Path) -> pa.Array:
    """The values without the lists around them. Every list must have the size that the feature gives."""
    for axis, size in enumerate(feature.shape):
        if not is_list(stored.type):
            if axis == 0 and feature.size == 1 and axis == len(feature.shape) - 1:
                return stored
            raise _broken(
                feature, path, f"expected lists of the shape {list(feature.shape)}, found {stored.type} at axis {axis}"
            )
        is_fixed = pa.types.is_fixed_size_list(stored.type)
        rows = len(stored)
        sizes = np.array([stored.type.list_size]) if is_fixed else np.diff(numbers_of(stored.offsets))
        if (sizes != size).any():
            raise _broken(
                feature, path, f"a list of {int(sizes[sizes != size][0]):,} values at axis {axis}; expected {size:,}"
            )
        stored = stored_values(stored.flatten())
        if len(stored) != rows * size or stored.null_count:
            raise _broken(feature, path, "a value is missing")
    if is_list(stored.type) and feature.shape == ():
        return _flatten(replace(feature, shape=(1,)), stored, path)
    return stored


def _convert_numbers(feature: Feature, flat: pa.Array, rows: int, path: Path, rounds: bool) -> Array:
    values = numbers_of(flat)
    if values.dtype != feature.dtype:
        if values.dtype.kind not in "biuf":
            raise _broken(feature, path, f"holds {flat.type}; expected {feature.dtype}")
        with np.errstate(all="ignore"):
            cast = values.astype(feature.dtype)
            differs = (cast.astype(values.dtype) != values) & ~((cast != cast) & (values != values))
            overflows = np.isinf(cast) & ~np.isinf(values)
        can_round = feature.dtype.kind == "f" and not overflows.any()
        if differs.any() and not (rounds and can_round):
            way_on = "; add cast=nearest behind the name to round them to it" if can_round else ""
            raise _broken(
                feature,
                path,
                f"holds {flat.type}, of which {feature.dtype} of info.json does not hold every value{way_on}",
            )
        values = cast
    return values.reshape(rows, *feature.shape)
