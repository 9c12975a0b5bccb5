"""Rows of LeRobot's Parquet files: read a few at a time, made into columns of an episode, and columns of an episode made into Arrow's.

| feature | in Arrow |
| --- | --- |
| number of shape (1,) | a plain column |
| shape (n,) | lists of n, of fixed size or not |
| 2 to 5 axes | lists within lists; the shape stands in info.json |
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.arrow import MOST_BYTES, check_row_groups, is_list, stored_values
from rlds2reverb.formats.lerobot.features import FILES, LANGUAGE, PIXELS, TEXT, Feature, Field
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.images import png_files
from rlds2reverb.text import line_of, shortened

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
            names = [name for name in file.schema_arrow.names if wanted(name)]
            check_row_groups(path, file, names)
            return file.read(names)
        except ERRORS as error:
            raise SourceError(f"{path}: cannot be read: {line_of(error)}") from error


class Batch:
    """Some rows of a file, and the columns made of them.

    Args:
      rows: they themselves.
      first: the number of the first of them in the file.
    """

    def __init__(self, rows: pa.RecordBatch, first: int) -> None:
        self.rows, self.first, self.stop = rows, first, first + rows.num_rows
        self._made: dict[str, Array | None] = {}
        self.size = rows.nbytes
        """Bytes."""

    def made(self, name: str, make: Callable[[pa.Array], Array]) -> Array | None:
        """The column made by `make`, which is called once; None if a row is broken."""
        if name not in self._made:
            try:
                self._made[name] = make(self.rows.column(name))
            except BrokenEpisode:
                self._made[name] = None
        return self._made[name]


@dataclass(frozen=True, eq=False)
class Taken:
    """The requested rows.

    Attributes:
      path: of their file.
      pieces: batches, and which of their rows: start and stop.
      schema: of the file; columns without rows are of its types.
    """

    path: Path
    pieces: Sequence[tuple[Batch, int, int]]
    schema: pa.Schema

    def column(self, name: str) -> pa.Array:
        """The column as stored.

        Raises:
          BrokenEpisode: it cannot be read.
        """
        with _told(self.path):
            parts = [batch.rows.column(name).slice(start, stop - start) for batch, start, stop in self.pieces]
            return parts[0] if len(parts) == 1 else _joined(pa.chunked_array(parts, self.schema.field(name).type))

    def made(self, name: str, make: Callable[[pa.Array], Array]) -> Array:
        """The column made by `make`: from whole batches, so that later rows need not be made again, or from these rows only if others are broken.

        Args:
          name: of the column; always with the same `make`.
          make: a column -> [rows, ...]; raises `BrokenEpisode` for a broken row.
        """
        parts = [(batch.made(name, make), start, stop) for batch, start, stop in self.pieces]
        good = [made[start:stop] for made, start, stop in parts if made is not None]
        if not good or len(good) < len(parts):
            return make(self.column(name))
        return good[0] if len(good) == 1 else np.concatenate(good)


class TableRows:
    """Some columns of a file, read forwards in batches. Memory holds one batch beside the requested rows.

    Args:
      path: the file.
      columns: names of those that are read.
      row_bytes: the least bytes of a row in memory; it may be fewer in the file.

    Raises:
      SourceError: as `opened`.
      BrokenEpisode: a column is missing, or the schema makes no sense.
    """

    def __init__(self, path: Path, columns: Sequence[str], row_bytes: int = 1) -> None:
        self.path, self.columns, self._row_bytes = path, tuple(columns), max(1, row_bytes)
        self._file = opened(path)
        try:
            self._schema = self._file.schema_arrow
        except ERRORS as error:
            self._file.close()
            raise BrokenEpisode("", f"{path}: cannot be read: {line_of(error)}") from error
        found = self._schema.names
        for name in columns:
            if name not in found:
                self._file.close()
                raise BrokenEpisode(name, f"{path}: no such column; there are {shortened(', '.join(found))}")
        self.count = int(self._file.metadata.num_rows)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: Batch | None = None
        self._ends = list(accumulate(map(self._rows_of, range(self._file.metadata.num_row_groups))))
        """The row after the last, for each row group."""
        self._checked: set[int] = set()
        self._asked_for = 0
        """Rows of a batch."""
        self._broken = 0, 0, ""
        """Rows that cannot be read, start and stop, and why."""

    def close(self) -> None:
        """Closes the file."""
        self._batches, self._batch = iter(()), None
        self._file.close()

    def read(self, start: int, stop: int) -> Taken:
        """Rows `start` to `stop`; fast if they follow the rows read last.

        Raises:
          BrokenEpisode: there are fewer, or they cannot be read.
        """
        if not 0 <= start <= stop <= self.count:
            raise BrokenEpisode("", f"{self.path}: has {self.count:,} rows; expected rows {start:,} to {stop:,}")
        with _told(self.path):
            return Taken(self.path, list(self._taken(start, stop)), self._schema)

    def _begin(self, start: int) -> Batch:
        """The first batch of the row group that has this row."""
        group, first, _ = self._group(start)
        groups = list(range(group, self._file.metadata.num_row_groups))
        self._asked_for = self._batch_rows(groups)
        self._batches = self._file.iter_batches(self._asked_for, row_groups=groups, columns=list(self.columns))
        return self._next(first)

    def _group(self, row: int) -> tuple[int, int, int]:
        """The row group that has this row: its number, its first row, and the row after its last."""
        group = bisect_right(self._ends, row)
        first = self._ends[group - 1] if group else 0
        return group, first, self._ends[group] if group < len(self._ends) else self.count

    def _rows_of(self, group: int) -> int:
        return int(self._file.metadata.row_group(group).num_rows)

    def _check(self, first: int) -> None:
        """Checks that the row groups of the batch that begins with this row are not too large. Raises one of `ERRORS`."""
        last = min(first + self._asked_for, self.count) - 1
        for group in range(self._group(first)[0], min(self._group(last)[0] + 1, len(self._ends))):
            if group not in self._checked:
                check_row_groups(self.path, self._file, self.columns, [group])
                self._checked.add(group)

    def _batch_rows(self, groups: Sequence[int]) -> int:
        """How many rows take about `_BATCH_BYTES`."""
        sizes = [(one.total_byte_size, one.num_rows) for one in map(self._file.metadata.row_group, groups[:8])]
        size, rows = (sum(each) for each in zip(*sizes)) if sizes else (0, 1)
        most = min(_MOST_BATCH_ROWS, _BATCH_BYTES // self._row_bytes)
        return int(max(1, min(most, _BATCH_BYTES * rows // max(1, size))))

    def _next(self, first: int) -> Batch:
        """The batch that begins with this row of the file. After a failure, the rest of the row group is not tried again."""
        self._batch = None
        try:
            self._check(first)
            rows = next(self._batches)
        except (StopIteration, *ERRORS) as error:
            ends = f"ends after {first:,} rows; expected {self.count:,}; copy the file again"
            why = ends if isinstance(error, StopIteration) else f"cannot be read: {line_of(error)}"
            self._broken = first, self._group(first)[2], f"{self.path}: {why}"
            raise BrokenEpisode("", self._broken[2]) from error
        self._batch = Batch(rows, first)
        return self._batch

    def _taken(self, start: int, stop: int) -> Iterator[tuple[Batch, int, int]]:
        at, size = start, 0
        while at < stop:
            if self._broken[0] <= at < self._broken[1]:
                raise BrokenEpisode("", self._broken[2])
            batch = self._batch
            if batch is None or at < batch.first:
                batch = self._begin(at)
            while batch.stop <= at:
                batch = self._next(batch.stop)
            size += batch.size
            if size > MOST_BYTES:
                raise BrokenEpisode("", f"{self.path}: more than {MOST_BYTES:,} bytes from row {start:,} to {stop:,}")
            last = min(stop, batch.stop)
            yield batch, at - batch.first, last - batch.first
            at = last


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise BrokenEpisode("", f"{path}: cannot be read: {line_of(error)}") from error


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def column(feature: Feature, found: pa.Array, path: Path) -> Array:
    """[T, ...] of a feature that is not an image.

    Raises:
      BrokenEpisode: a value is missing, has another shape, or does not fit the feature's dtype.
    """
    try:
        stored = stored_values(found)
        if feature.kind == LANGUAGE:
            return _as_json(stored)
        if stored.null_count:
            raise _broken(feature, path, f"{stored.null_count:,} rows without a value")
        flat = _flat(feature, stored, path)
        return _text(feature, flat, path) if feature.kind == TEXT else _numbers(feature, flat, len(stored), path)
    except ERRORS as error:
        raise _broken(feature, path, f"cannot be read: {line_of(error)}") from error


def image_files(feature: Feature, found: pa.Array, path: Path) -> list[bytes]:
    """The bytes of every row's file.

    Raises:
      BrokenEpisode: a row has none; LeRobot always puts them into the table.
    """
    try:
        stored = stored_values(found)
        bytes_ = stored.field("bytes") if pa.types.is_struct(stored.type) else stored
        files: list[bytes] = bytes_.to_pylist()
    except ERRORS as error:
        raise _broken(feature, path, f"cannot be read: {line_of(error)}") from error
    for row, file in enumerate(files):
        if not isinstance(file, bytes):
            raise BrokenEpisode(
                feature.path,
                f'{path}: column "{feature.name}", row {row}: no bytes of an image file; only images inside the table are read',
            )
    return files


def _broken(feature: Feature, path: Path, why: str) -> BrokenEpisode:
    return BrokenEpisode(feature.path, f'{path}: column "{feature.name}": {why}')


def _flat(feature: Feature, stored: pa.Array, path: Path) -> pa.Array:
    """The values without the lists around them. Every list must have the size that the feature gives."""
    for axis, size in enumerate(feature.shape):
        if not is_list(stored.type):
            if axis == 0 and feature.size == 1 and axis == len(feature.shape) - 1:
                return stored
            raise _broken(
                feature, path, f"expected lists of the shape {list(feature.shape)}, found {stored.type} at axis {axis}"
            )
        rows, sizes = len(stored), _sizes(stored)
        if (sizes != size).any():
            raise _broken(
                feature, path, f"a list of {int(sizes[sizes != size][0]):,} values at axis {axis}; expected {size:,}"
            )
        stored = stored_values(stored.flatten())
        if len(stored) != rows * size or stored.null_count:
            raise _broken(feature, path, "a value is missing")
    if is_list(stored.type) and feature.shape == ():
        return _flat(Feature(feature.name, feature.kind, feature.path, (1,), feature.dtype), stored, path)
    return stored


def _sizes(stored: Any) -> Array:
    if pa.types.is_fixed_size_list(stored.type):
        return np.array([stored.type.list_size])
    return np.diff(stored.offsets.to_numpy())


def _numbers(feature: Feature, flat: pa.Array, rows: int, path: Path) -> Array:
    values = np.asarray(flat.to_numpy(zero_copy_only=False))
    if values.dtype != feature.dtype:
        if values.dtype.kind not in "biuf":
            raise _broken(feature, path, f"holds {flat.type}; expected {feature.dtype}")
        with np.errstate(all="ignore"):
            cast = values.astype(feature.dtype)
            differs = (cast.astype(values.dtype) != values) & ~((cast != cast) & (values != values))
        if differs.any():
            raise _broken(
                feature, path, f"holds {flat.type}, of which {feature.dtype} of info.json does not hold every value"
            )
        values = cast
    return values.reshape(rows, *feature.shape)


def _text(feature: Feature, flat: pa.Array, path: Path) -> Array:
    if not (pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type)):
        raise _broken(feature, path, f"holds {flat.type}; expected text")
    values = flat.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    return np.asarray(values, object).reshape(-1, *feature.shape)


def _as_json(stored: pa.Array) -> Array:
    """One text per row; rows without any have "[]"."""
    texts = np.empty(len(stored), object)
    texts[:] = [
        json.dumps(row or [], ensure_ascii=False).encode(errors="backslashreplace") for row in stored.to_pylist()
    ]
    return texts


_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def arrow_column(one: Field, values: Array) -> tuple[pa.Array, bool]:
    """[T, ...] as a column; and whether a text was changed because it is not UTF-8."""
    if one.kind in (PIXELS, FILES):
        files = pa.array(png_files(values) if one.kind == PIXELS else list(values), pa.binary())
        return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], fields=list(_IMAGE)), False
    if one.kind == TEXT:
        texts, is_changed = as_texts(values)
        return pa.array(texts, pa.string()), is_changed
    return arrow_numbers(values.reshape(len(values), *one.shape)), False


def arrow_numbers(values: Array) -> pa.Array:
    """[T, ...] -> a plain column for one value per row, lists of a fixed size for one axis, nested lists for more."""
    flat = pa.array(np.ascontiguousarray(values.reshape(-1), values.dtype.newbyteorder("=")))
    *inner, last = values.shape[1:] or (1,)
    if values.size == len(values) and values.ndim <= 2:
        return flat
    if not inner:
        return pa.FixedSizeListArray.from_arrays(flat, last)
    for size in reversed(values.shape[1:]):
        flat = pa.ListArray.from_arrays(np.arange(0, len(flat) + 1, size, dtype=np.int32), flat)
    return flat


def as_texts(values: Iterable[Any]) -> tuple[list[str], bool]:
    """Texts as `str`; and whether one was changed because it is not UTF-8."""
    values = list(values)
    texts = [
        bytes(value).decode(errors="backslashreplace") if not isinstance(value, str) else value for value in values
    ]
    return texts, any(not isinstance(value, str) and text.encode() != value for text, value in zip(texts, values))


def arrow_schema(table: pa.Table, entries: Mapping[str, Any]) -> pa.Schema:
    """The table's schema, with the features as the library `datasets` expects them."""
    features = {name: _feature(one) for name, one in entries.items()}
    return table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _feature(entry: Mapping[str, Any]) -> dict[str, Any]:
    shape, dtype = entry["shape"], entry["dtype"]
    if dtype == "image":
        return {"_type": "Image"}
    plain = {"dtype": dtype, "_type": "Value"}
    if shape == [1]:
        return plain
    if len(shape) == 1:
        return {"feature": plain, "length": shape[0], "_type": "Sequence"}
    return {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
