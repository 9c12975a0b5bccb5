"""Columns of Parquet files as numpy arrays: plain ones, lists of equal lengths, structs, and the tensors of Ray Data.

Source of Ray's extension types: ray/air/util/tensor_extensions/arrow.py. pyarrow alone reads them as what they are stored in, and tells the
type in the field's metadata.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.arrow import check_row_groups
from rlds2reverb.readers.lru import LRU
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.packed import is_packed
from rlds2reverb.readers.rllib.values import Converter, Leaves
from rlds2reverb.wording import line_of

ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)
"""What pyarrow raises over a damaged file."""
_OPEN_FILES = 4
_KEPT_GROUPS = 2
_NAME, _SHAPE = b"ARROW:extension:name", b"ARROW:extension:metadata"
_VARIABLE = "variable_shaped"
_DEEPEST = 20


class ParquetFiles:
    """Files and their row groups. Those that were read last stay open."""

    def __init__(self, files: list[DataFile]) -> None:
        self._files = files
        self._open = LRU[int, pq.ParquetFile](_OPEN_FILES, close=lambda file: file.close(force=True))
        self._groups = LRU[tuple[int, int, tuple[str, ...]], pa.Table](_KEPT_GROUPS)

    def opened(self, number: int) -> pq.ParquetFile:
        """A file.

        Raises:
          SourceError: it is none of Parquet.
        """
        return self._open.get(number, lambda: self._opened(number))

    def _opened(self, number: int) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._files[number].path, memory_map=False)
        except ERRORS as error:
            raise SourceError(f"{self._files[number]}: cannot be read as Parquet: {line_of(error)}") from error

    def group(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group, kept for the next call; raises as `read`."""
        return self._groups.get((number, group, tuple(columns)), lambda: self.read(number, group, columns))

    def read(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group.

        Raises:
          BrokenEpisode: it is damaged, or too large.
        """
        where = f"{self._files[number]}: row group {group}"
        try:
            file = self.opened(number)
            check_row_groups(self._files[number].path, file, columns, [group])
            table = file.read_row_group(group, columns=columns)
            rows = file.metadata.row_group(group).num_rows
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        except ERRORS as error:
            raise BrokenEpisode("", f"{where}: cannot be read: {line_of(error)}") from error
        if table.num_rows != rows:
            raise BrokenEpisode("", f"{where}: has {table.num_rows:,} rows, and says {rows:,}")
        return table

    def close(self) -> None:
        """Closes them all."""
        self._groups.clear()
        self._open.clear()


def leaves_of(field: pa.Field, column: Any, name: str, converter: Converter) -> Leaves:
    """A column of a table as arrays.

    Raises:
      BrokenEpisode: it has nulls, rows of different shapes, or values that are neither numbers nor texts.
    """
    try:
        found: Leaves = {}
        _add(
            found,
            "",
            field,
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column,
            (name, converter, 0),
        )
    except ERRORS as error:
        raise BrokenEpisode(name, f'column "{name}": {line_of(error)}') from error
    return found


def _add(found: Leaves, path: str, field: pa.Field, column: Any, context: tuple[str, Converter, int]) -> None:
    name, converter, depth = context
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    stored = column.storage if isinstance(column, pa.ExtensionArray) else column
    if pa.types.is_struct(stored.type) and not is_tensor(field):
        _no_nulls(stored)
        for part, values in zip(stored.type, stored.flatten()):
            _add(found, f"{path}/{part.name}" if path else part.name, part, values, (name, converter, depth + 1))
        return
    array = dense(field, column)
    if array.dtype == object:
        found.update({f"{path}/{below}".strip("/"): leaf for below, leaf in _texts(array, name, converter).items()})
    else:
        found[path] = array


def is_tensor(field: pa.Field) -> bool:
    """Whether a field holds tensors of Ray Data."""
    kind, shape = _extension(field)
    return shape is not None or _VARIABLE in kind


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def dense(field: pa.Field, column: Any) -> Array:
    """Rows of one shape as an array; texts as objects.

    Raises:
      ValueError: they have nulls, different shapes, or are neither numbers nor texts.
    """
    kind, shape = _extension(field)
    stored = column.storage if isinstance(column, pa.ExtensionArray) else column
    if _VARIABLE in kind:
        stored = _of_one_shape(stored)
    array = _dense(stored)
    return array if shape is None else array.reshape(len(array), *shape)


def _texts(array: Array, name: str, converter: Converter) -> Leaves:
    """Texts, or what is packed in them."""
    values = [one.decode("ascii", "replace") if isinstance(one, bytes) else one for one in array.ravel().tolist()[:1]]
    if array.ndim == 1 and values and is_packed(values[0]):
        return converter.leaves(
            name,
            [one.decode("ascii", "replace") if isinstance(one, bytes) else one for one in array.tolist()],
            len(array),
        )
    made = np.empty(array.shape, object)
    made.reshape(-1)[:] = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
    return {"": made}


def _extension(field: pa.Field) -> tuple[str, tuple[int, ...] | None]:
    """The name of a field's extension type, "" for none, and the shape of its tensors."""
    if isinstance(field.type, pa.BaseExtensionType):
        shape = getattr(field.type, "shape", None)
        return field.type.extension_name, None if shape is None else tuple(shape)
    told = field.metadata or {}
    kind = told.get(_NAME, b"").decode("utf-8", "replace")
    if "arrow_tensor" not in kind:
        return kind, None
    shape = json.loads(told.get(_SHAPE, b"null"))
    if isinstance(shape, dict):
        shape = shape.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("a tensor without a shape")
    return kind, tuple(shape)


def _of_one_shape(column: Any) -> Any:
    """Tensors whose shapes may differ, where they do not: nested lists of their one shape."""
    shapes = _dense(column.field("shape"))
    if len(shapes) and (shapes != shapes[0]).any():
        raise ValueError("rows of different shapes")
    values = column.field("data")
    for size in reversed(shapes[0].tolist()[1:] if len(shapes) else []):
        values = _split(values, size)
    return values


def _split(values: Any, size: int) -> Any:
    inner = values.flatten()
    return pa.FixedSizeListArray.from_arrays(inner, size) if size else values


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
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return np.asarray(column.to_numpy(zero_copy_only=False), object)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise ValueError(f"values of type {kind}")


def _no_nulls(column: Any) -> None:
    if column.null_count:
        raise ValueError(f"{column.null_count:,} rows without a value")
