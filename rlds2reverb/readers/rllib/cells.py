"""Rows of Parquet files that are whole records, as `records` takes them: lists of numbers are arrays, with the dtypes of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.readers.rllib.arrow import dense, is_list, is_tensor

_DEEPEST = 20


def record_of(table: pa.Table, row: int, plain: str) -> dict[str, Any]:
    """The columns of a row that have a value there.

    Args:
      table: of records.
      row: its number.
      plain: the name of the column that stays as JSON has it: infos, which become text.

    Raises:
      ValueError, pyarrow.ArrowException: it cannot be read.
    """
    made: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns):
        one = column.slice(row, 1)
        if not one.null_count:
            joined = pa.concat_arrays(one.chunks)
            made[field.name] = joined.to_pylist()[0] if field.name == plain else _cell(field, joined, plain, 0)
    return made


def _cell(field: pa.Field, column: Any, plain: str, depth: int) -> Any:
    """The value of a column of one row."""
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if column.null_count:
        return None
    if is_tensor(field):
        return _values(field, column, depth)[0]
    column = _stored(column)
    if pa.types.is_struct(column.type):
        return {
            part.name: values.to_pylist()[0] if part.name == plain else _cell(part, values, plain, depth + 1)
            for part, values in zip(column.type, column.flatten())
        }
    if is_list(column.type):
        return _values(column.type.value_field, column.flatten(), depth)
    return column.to_pylist()[0]


def _values(field: pa.Field, column: Any, depth: int) -> Any:
    """Values that follow one another: an array, a dict of such, or a list where they make none."""
    stored = _stored(column)
    if pa.types.is_struct(stored.type) and not is_tensor(field) and not stored.null_count and depth <= _DEEPEST:
        return {part.name: _values(part, values, depth + 1) for part, values in zip(stored.type, stored.flatten())}
    try:
        found = dense(field, column)
    except ValueError:
        return stored.to_pylist()
    return stored.to_pylist() if found.dtype == object else np.array(found)


def _stored(column: Any) -> Any:
    return column.storage if isinstance(column, pa.ExtensionArray) else column
