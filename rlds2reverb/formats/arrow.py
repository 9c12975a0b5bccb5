"""Parquet and Arrow files of unknown origin: refused where they say that their values take far more memory than the files have bytes.

What they say is pyarrow's metadata: the bytes of a row group without compression, and its number of rows, each as wide as its column's type.
A file that was made to attack may lie about both; docs/datasets.md says how to read such data in a container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.files import check_regular
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.paths import check_read

MOST_BYTES = 1 << 34
"""Most bytes that are read at once."""
_TEXT_BYTES = 8
"""Least bytes of a text or a list: its offset."""


def check_row_groups(
    path: Path, file: Any, columns: Iterable[str] | None = None, groups: Iterable[int] | None = None
) -> None:
    """Refuses row groups that would take far more memory than the file has bytes, or more than `MOST_BYTES`.

    Args:
      path: of a file.
      file: the same, a `pyarrow.parquet.ParquetFile`.
      columns: names of those that are read; all by default.
      groups: numbers of the row groups that are read at once; all by default.

    Raises:
      ValueError: they are too large.
      OSError, pyarrow.ArrowException: the file cannot be read.
    """
    about, schema = file.metadata, file.schema_arrow
    names = None if columns is None else {name.split(".")[0] for name in columns} | set(columns)
    row_bytes = sum(_width(field.type) for field in schema if names is None or field.name in names)
    size = 0
    for number in range(about.num_row_groups) if groups is None else groups:
        group = about.row_group(number)
        size += max(group.num_rows * row_bytes, group.total_byte_size)
    check_read(size, path.stat().st_size, MOST_BYTES)


def _fields(kind: Iterable[Any]) -> Iterator[tuple[str, ...]]:
    """The names on the way to each value of a schema or struct: those of the structs around it, and its own."""
    from pyarrow import types

    for field in kind:
        below = _fields(field.type) if types.is_struct(field.type) and field.type.num_fields else [()]
        yield from ((field.name, *names) for names in below)


def read_parquet(path: Path, unread: Collection[tuple[str, ...]] = ()) -> Any:
    """All of a small file, as a `pyarrow.Table`, without the `unread` values, each a field and the fields of structs below it.

    Raises:
      ValueError, OSError, pyarrow.ArrowException: it is damaged, or too large.
    """
    from pyarrow.parquet import ParquetFile

    check_regular(path)
    with ParquetFile(for_library(path), memory_map=False) as file:
        names = [".".join(names) for names in _fields(file.schema_arrow) if names not in unread] if unread else None
        check_row_groups(path, file, names)
        table = file.read(names)
    table.validate(full=True)
    return table


def read_arrow(path: Path, unread: Collection[tuple[str, ...]] = ()) -> Any:
    """All of a small file, batch by batch, without columns of which all values are unread; raises as `read_parquet`."""
    import pyarrow as pa
    from pyarrow import ipc

    stored = check_regular(path).st_size
    check_read(stored, stored, MOST_BYTES)
    size, batches = 0, []
    options = None
    if unread:
        with path.open("rb") as raw, ipc.open_file(raw) as file:
            needed = {names[0] for names in _fields(file.schema) if names not in unread}
            places = [place for place, name in enumerate(file.schema.names) if name in needed]
        options = ipc.IpcReadOptions(included_fields=places)
    with path.open("rb") as raw, ipc.open_file(raw, options=options) as file:
        for number in range(file.num_record_batches):
            batches.append(file.get_batch(number))
            batches[-1].validate(full=True)
            size += batches[-1].nbytes
            check_read(size, stored, MOST_BYTES)
        return pa.Table.from_batches(batches, file.schema)


def is_list(kind: Any) -> bool:
    """Whether values of a type are lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def stored_values(column: Any) -> Any:
    """What a column of an extension type is stored in; any other column itself."""
    import pyarrow as pa

    return column.storage if isinstance(column, pa.ExtensionArray) else column


def numbers_of(column: Any) -> Array:
    """[n], the values of a `pyarrow.Array`, over its memory where that can be."""
    from pyarrow import types

    # pyarrow's `to_numpy` imports pandas where it is installed: half of the processor time to a new process's first batch.
    is_plain = types.is_integer(column.type) or types.is_floating(column.type)
    if is_plain and not column.null_count and len(column):  # pyarrow 19 crashes at the export of no values
        return np.from_dlpack(column)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _width(kind: Any) -> int:
    """Lower bound of the bytes per row of an Arrow type, rounded up to whole bytes."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(field.type) for field in kind)
    if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind):
        return -(-int(kind.bit_width) // 8)
    return _TEXT_BYTES
