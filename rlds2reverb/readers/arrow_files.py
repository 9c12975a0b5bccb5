"""Small files of Parquet and of Arrow, read whole into memory, within the bounds of `arrow_bounds`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds2reverb.readers.arrow_bounds import MOST_BYTES, ArrowBounds, ParquetBounds

_MAGIC_BYTES = 8
"""Before the first message of a file."""
_RECORD_BATCH = "record batch"


def read_parquet(path: Path) -> Any:
    """All of a file, as a `pyarrow.Table`.

    Raises:
      ValueError, OSError, pyarrow.ArrowException: it is damaged, or too large.
    """
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path, memory_map=False) as file:
        ParquetBounds(path, file).check()
        table = file.read()
    table.validate(full=True)
    return table


def read_arrow(path: Path) -> Any:
    """All of a file; raises as `read_parquet`. Columns that are dictionaries are not read."""
    import pyarrow as pa
    from pyarrow import ipc

    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"has {size:,} bytes; at most {MOST_BYTES:,} are read")
    with pa.OSFile(str(path)) as file:
        data = file.read_buffer()
    with ipc.open_file(pa.BufferReader(data)) as told:
        schema, count = told.schema, told.num_record_batches
    messages = ipc.MessageReader.open_stream(pa.BufferReader(data.slice(_MAGIC_BYTES)))
    if ipc.read_schema(messages.read_next_message()) != schema:
        raise ValueError("its two schemas differ")
    bounds, batches = ArrowBounds(path), []
    for message in messages:
        if message.type != _RECORD_BATCH:
            raise ValueError(f"a message of the kind {message.type}; expected record batches only")
        bounds.add(message)
        batches.append(ipc.read_record_batch(message, schema))
        batches[-1].validate(full=True)
    if len(batches) != count:
        raise ValueError(f"{len(batches):,} record batches; the end of the file tells {count:,}")
    return pa.Table.from_batches(batches, schema)
