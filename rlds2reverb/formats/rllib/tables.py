"""RLlib's Parquet files: a row per step, per sample batch, or per episode of the new stack.

Columns become numpy arrays: plain ones, lists of equal lengths, structs, and the tensors of Ray Data. Without Ray, pyarrow reads its
extension types as their storage, and names the type in the field's metadata. Source: ray/air/util/tensor_extensions/arrow.py.

A row with a whole episode holds its state as msgpack: see `states`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.arrow import check_row_groups, is_list, stored_values
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.lru import LRU
from rlds2reverb.formats.paths import RefusedFile
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib import keys
from rlds2reverb.formats.rllib.index import DataFile, FoundRows, RecordPlace, policy_rows
from rlds2reverb.formats.rllib.records import (
    Columns,
    ReadSettings,
    Store,
    Wanted,
    convert_record,
    parse_parts,
    row_text,
)
from rlds2reverb.formats.rllib.states import read_state, state_columns, state_rows
from rlds2reverb.formats.rllib.values import Converter, Leaves, is_packed
from rlds2reverb.text import line_of

_KEYS = (
    keys.EPS_ID, keys.AGENT_ID, keys.AGENT_INDEX, keys.MODULE_ID, keys.T, keys.TERMINATEDS, keys.TRUNCATEDS, keys.DONES
)  # fmt: skip
_TRIED = 100


def open_tables(files: list[DataFile], settings: ReadSettings) -> Store:
    """The files, by the kind of rows in the first readable one; the scan counts unreadable files."""
    errors: list[SourceError] = []
    with closing(_ParquetFiles(files)) as parquet:
        for number in range(min(len(files), _TRIED)):
            try:
                schema = parquet.open_table(number).schema_arrow
                break
            except SourceError as error:
                errors.append(error)
        else:
            raise errors[0]
    if EPISODE in schema.names and pa.types.is_binary(schema.field(EPISODE).type):
        return _RecordTables(files, settings)
    obs, eps = settings.names.of(keys.OBS), settings.names.of(keys.EPS_ID)
    if obs not in schema.names:
        raise SourceError(
            f'{files[0]}: no column "{obs}"; it has {", ".join(schema.names)}. columns=obs:NAME;actions:NAME;... says which are RLlib\'s'
        )
    if "type" in schema.names or (eps in schema.names and pa.types.is_nested(schema.field(eps).type)):
        return _RecordTables(files, settings)
    return _StepTables(files, settings)


class _Tables(Store):
    """Parquet files, by row groups."""

    @contextmanager
    def _files_open(self) -> Iterator[_ParquetFiles]:
        with closing(_ParquetFiles(self._files)) as parquet:
            yield parquet

    def where(self, place: RecordPlace) -> str:
        return f"{self._files[place.file]}: row group {place.at}"

    def _scan(self, _: Wanted) -> Iterator[FoundRows]:
        with self._files_open() as parquet:
            for number, file in enumerate(self._files):
                try:
                    groups = parquet.open_table(number).metadata.num_row_groups
                except RefusedFile:
                    raise
                except SourceError as error:
                    self.troubles.add(str(file), str(error))
                    continue
                for group in range(groups):
                    try:
                        yield from self._scan_group(parquet, RecordPlace(number, group))
                    except BrokenEpisode as broken:
                        self.troubles.add(f"{file}: row group {group}", broken.why)

    @abstractmethod
    def _scan_group(self, parquet: _ParquetFiles, place: RecordPlace) -> Iterator[FoundRows]:
        """The parts in a row group; raises `BrokenEpisode` if it cannot be read."""


class _StepTables(_Tables):
    """Files with a row per step; a part is a row group."""

    def _scan_group(self, parquet: _ParquetFiles, place: RecordPlace) -> Iterator[FoundRows]:
        file = self._files[place.file]
        keeps_ends = file.run is not None
        columns = {self.settings.names.standard(name): name for name in parquet.names(place.file)}
        read = [columns[name] for name in (*_KEYS, keys.REWARDS) if name in columns]
        read += [columns[name] for name in (keys.OBS, keys.NEXT_OBS) if keeps_ends and name in columns]
        table = parquet.read(place.file, place.at, read)
        rewards = _key_values(table, columns.get(keys.REWARDS))
        ends = ["", ""]
        if keeps_ends and table.num_rows:
            converter = Converter(self.where(place), self.settings.floats)
            for end, (name, at) in enumerate(((keys.OBS, 0), (keys.NEXT_OBS, table.num_rows - 1))):
                if name in columns:
                    row = table[columns[name]].slice(at, 1)
                    ends[end] = row_text(_convert_column(table.schema.field(columns[name]), row, name, converter), 0)
        part = policy_rows(
            lambda name: _key_values(table, columns.get(name)),
            self.settings.done_means,
            rows=table.num_rows,
            columns=frozenset(columns),
            rewards=rewards if keeps_ends else None,
            ends=(ends[0], ends[1]),
        )
        yield FoundRows(place, file, part)

    def _columns(self, files: _ParquetFiles, place: RecordPlace, wanted: frozenset[str]) -> Columns:
        there = set(files.names(place.file))
        columns = {name: self.settings.names.of(name) for name in wanted}
        columns = {name: column for name, column in columns.items() if column in there}
        table = files.read(place.file, place.at, sorted(columns.values()))
        converter = Converter(self.where(place), self.settings.floats)
        leaves: Columns = {}
        for name, column in columns.items():
            try:
                leaves[0, name] = _convert_column(table.schema.field(column), table[column], name, converter)
            except BrokenEpisode as broken:
                leaves[0, name] = broken
        return leaves


def _key_values(table: pa.Table, column: str | None) -> Array | None:
    """A column of ids, numbers or flags; None if it is missing or empty."""
    if column is None:
        return None
    values = table[column]
    if values.null_count == table.num_rows:
        return None
    if values.null_count:
        raise BrokenEpisode(column, f'column "{column}": {values.null_count:,} rows without a value')
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        encoded = values.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        return np.asarray(np.asarray(encoded.dictionary.to_pylist(), str)[encoded.indices.to_numpy()])
    return np.asarray(values.to_numpy())


EPISODE = "item"  # the column of episodes


class _RecordTables(_Tables):
    """Files with a row per record."""

    def where(self, place: RecordPlace) -> str:
        return f"{super().where(place)}, row {place.row:,}"

    def _scan_group(self, parquet: _ParquetFiles, place: RecordPlace) -> Iterator[FoundRows]:
        file = self._files[place.file]
        for row in range(self._table(parquet, place).num_rows):
            at_row = replace(place, row=row)
            try:
                record = self._record(parquet, at_row)
                if isinstance(record, bytes):
                    parts = [state_rows(read_state(record))]
                else:
                    parts = parse_parts(record, self.settings, str(file), file.run is not None)
            except BrokenEpisode as broken:
                self.troubles.add(self.where(at_row), broken.why)
                continue
            for number, part in enumerate(parts):
                yield FoundRows(replace(at_row, part=number), file, part)

    def _columns(self, files: _ParquetFiles, place: RecordPlace, wanted: frozenset[str]) -> Columns:
        record = self._record(files, place)
        if isinstance(record, bytes):
            return state_columns(read_state(record), self.settings, self.where(place), wanted)
        return convert_record(record, self.settings, self.where(place), wanted)

    def _table(self, parquet: _ParquetFiles, place: RecordPlace) -> pa.Table:
        """The row group: the column of episodes, or all columns."""
        names = parquet.names(place.file)
        return parquet.group(place.file, place.at, [EPISODE] if EPISODE in names else names)

    def _record(self, parquet: _ParquetFiles, place: RecordPlace) -> Any:
        """A row: the bytes of an episode, or a record, column by column."""
        table, plain = self._table(parquet, place), self.settings.names.of(keys.INFOS)  # infos become text
        try:
            if EPISODE in table.column_names:
                value = table[EPISODE][place.row].as_py()
                if not isinstance(value, bytes):
                    raise BrokenEpisode("", f"expected an episode's bytes, found {type(value).__name__}")
                return value
            record: dict[str, Any] = {}
            for field, column in zip(table.schema, table.columns):
                cell = column.slice(place.row, 1)
                if not cell.null_count:
                    joined = pa.concat_arrays(cell.chunks)
                    record[field.name] = (
                        joined.to_pylist()[0] if field.name == plain else _cell(field, joined, plain, 0)
                    )
            return record
        except ERRORS as error:
            raise BrokenEpisode("", line_of(error)) from error


def _cell(field: pa.Field, column: Any, plain: str, depth: int) -> Any:
    """The value of a column of one row; what lies below the name `plain` stays as Python's values."""
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if column.null_count:
        return None
    if _is_tensor(field):
        return _cell_values(field, column, depth)[0]
    column = stored_values(column)
    if pa.types.is_struct(column.type):
        return {
            part.name: values.to_pylist()[0] if part.name == plain else _cell(part, values, plain, depth + 1)
            for part, values in zip(column.type, column.flatten())
        }
    if is_list(column.type):
        return _cell_values(column.type.value_field, column.flatten(), depth)
    return column.to_pylist()[0]


def _cell_values(field: pa.Field, column: Any, depth: int) -> Any:
    """A sequence of values: an array, a dict of arrays, or a list if they make no array."""
    stored = stored_values(column)
    if pa.types.is_struct(stored.type) and not _is_tensor(field) and not stored.null_count and depth <= _DEEPEST:
        return {part.name: _cell_values(part, values, depth + 1) for part, values in zip(stored.type, stored.flatten())}
    try:
        array = _dense_rows(field, column)
    except ValueError:
        return stored.to_pylist()
    return stored.to_pylist() if array.dtype == object else np.array(array)


ERRORS = (  # raised by pyarrow for a damaged file
    pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, NotImplementedError
)  # fmt: skip
_OPEN_FILES = 4
_KEPT_GROUPS = 2
_NAME, _SHAPE = b"ARROW:extension:name", b"ARROW:extension:metadata"
_VARIABLE = "variable_shaped"
_DEEPEST = 20


class _ParquetFiles:
    """Files and their row groups. The files read last stay open."""

    def __init__(self, files: list[DataFile]) -> None:
        self._files = files
        self._open = LRU[int, pq.ParquetFile](_OPEN_FILES, close=lambda file: file.close(force=True))
        self._groups = LRU[tuple[int, int, tuple[str, ...]], pa.Table](_KEPT_GROUPS)

    def open_table(self, number: int) -> pq.ParquetFile:
        try:
            return self._open.get(
                number, lambda: pq.ParquetFile(for_library(self._files[number].path), memory_map=False)
            )
        except ERRORS as error:
            raise SourceError(f"{self._files[number]}: cannot be read as Parquet: {line_of(error)}") from error

    def names(self, number: int) -> list[str]:
        """The columns of a file; raises `BrokenEpisode` if it cannot be opened."""
        try:
            names: list[str] = self.open_table(number).schema_arrow.names
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        return names

    def group(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group, kept for the next call; raises as `read`."""
        return self._groups.get((number, group, tuple(columns)), lambda: self.read(number, group, columns))

    def read(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group; raises `BrokenEpisode` if it is damaged, or too large."""
        where = f"{self._files[number]}: row group {group}"
        try:
            file = self.open_table(number)
            check_row_groups(self._files[number].path, file, columns, [group])
            table = file.read_row_group(group, columns=columns)
            rows = file.metadata.row_group(group).num_rows
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        except ERRORS as error:
            raise BrokenEpisode("", f"{where}: cannot be read: {line_of(error)}") from error
        if table.num_rows != rows:  # pyarrow need not notice
            raise BrokenEpisode("", f"{where}: has {table.num_rows:,} rows, and says {rows:,}")
        return table

    def close(self) -> None:
        self._groups.clear()
        self._open.clear()


def _convert_column(field: pa.Field, column: Any, name: str, converter: Converter) -> Leaves:
    """A column of a table as arrays. Raises `BrokenEpisode` for nulls, rows of different shapes, and values other than numbers and texts."""
    try:
        return _nested_leaves(
            field, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, name, converter
        )
    except ERRORS as error:
        raise BrokenEpisode(name, f'column "{name}": {line_of(error)}') from error


def _nested_leaves(field: pa.Field, column: Any, name: str, converter: Converter, depth: int = 0) -> Leaves:
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    stored = stored_values(column)
    if pa.types.is_struct(stored.type) and not _is_tensor(field):
        _no_nulls(stored)
        return {
            f"{part.name}/{path}" if path else part.name: leaf
            for part, values in zip(stored.type, stored.flatten())
            for path, leaf in _nested_leaves(part, values, name, converter, depth + 1).items()
        }
    array = _dense_rows(field, column)
    return _texts(array, name, converter) if array.dtype == object else {"": array}


def _is_tensor(field: pa.Field) -> bool:
    kind, shape = _extension(field)
    return shape is not None or _VARIABLE in kind


def _dense_rows(field: pa.Field, column: Any) -> Array:
    """Rows of one shape as an array, tensors included; texts as objects. Raises `ValueError` for anything else."""
    kind, shape = _extension(field)
    stored = stored_values(column)
    if _VARIABLE in kind:  # their shapes must be equal; as nested lists
        shapes = _dense(stored.field("shape"))
        if len(shapes) and (shapes != shapes[0]).any():
            raise ValueError("rows of different shapes")
        stored = stored.field("data")
        for size in reversed(shapes[0].tolist()[1:] if len(shapes) else []):
            inner = stored.flatten()
            stored = pa.FixedSizeListArray.from_arrays(inner, size) if size else stored
    array = _dense(stored)
    return array if shape is None else array.reshape(len(array), *shape)


def _texts(array: Array, name: str, converter: Converter) -> Leaves:

    def as_text(value: Any) -> Any:
        return value.decode("ascii", "replace") if isinstance(value, bytes) else value

    flat = array.ravel().tolist()
    if array.ndim == 1 and flat and is_packed(as_text(flat[0])):
        return converter.leaves(name, [as_text(value) for value in flat], len(array))
    encoded = [value.encode() if isinstance(value, str) else value for value in flat]
    return {"": np.array(encoded, object).reshape(array.shape)}


def _extension(field: pa.Field) -> tuple[str, tuple[int, ...] | None]:
    """The name of a field's extension type ("" for none), and the shape of its tensors."""
    if isinstance(field.type, pa.BaseExtensionType):
        shape = getattr(field.type, "shape", None)
        return field.type.extension_name, None if shape is None else tuple(shape)
    about = field.metadata or {}
    kind = about.get(_NAME, b"").decode("utf-8", "replace")
    if "arrow_tensor" not in kind:
        return kind, None
    shape = json.loads(about.get(_SHAPE, b"null"))
    if isinstance(shape, dict):
        shape = shape.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("a tensor without a shape")
    return kind, tuple(shape)


def _dense(column: Any) -> Array:
    """Rows of one shape as an array; texts as objects."""
    _no_nulls(column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _dense(column.dictionary_decode())
    if is_list(kind):
        inner = _dense(column.flatten())
        if pa.types.is_fixed_size_list(kind):
            return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            raise ValueError("rows of different lengths")
        size = int(lengths[0]) if len(lengths) else 0
        return inner.reshape(len(column), size, *inner.shape[1:])
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), object)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise ValueError(f"values of type {kind}")


def _no_nulls(column: Any) -> None:
    if column.null_count:
        raise ValueError(f"{column.null_count:,} rows without a value")
