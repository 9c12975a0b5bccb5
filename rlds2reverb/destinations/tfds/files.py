"""The records of a spool -> the files of a split. Done again from anywhere after a kill, it ends with the same files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rlds2reverb.destinations.growing_files import lost
from rlds2reverb.destinations.tfds.spool import FRAME_BYTES, RECORDS
from rlds2reverb.destinations.whole_files import whole
from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.tfds_files.records import ARRAY_RECORD, PARQUET, TFRECORD
from rlds2reverb.tfds_files.tfrecord import tfrecords

_EXTRAS = {ARRAY_RECORD: "array-record", PARQUET: "parquet"}
_COPIED_BYTES = 8 << 20
_ROWS_AT_ONCE = 64


def check_libraries(file_format: str) -> None:
    """Refuses to begin without what writes the format.

    Raises:
      ConfigError: it is not installed.
    """
    if file_format == TFRECORD:
        return
    with needing(f"writing {file_format} files", _EXTRAS[file_format], ConfigError):
        if file_format == PARQUET:
            import pyarrow.parquet  # noqa: F401
        else:
            import array_record.python.array_record_module  # noqa: F401


def write_files(folder: Path, file_format: str, names: Sequence[str], bounds: Sequence[int], lengths: Array) -> None:
    """Writes all files.

    Args:
      folder: where the spool is, and the files will be.
      file_format: of them.
      names: of the files.
      bounds: [files + 1] the first record of every file, and behind the last.
      lengths: [n] bytes of every record, without frames.

    Raises:
      OSError: records are missing, or the disk.
    """
    if file_format == TFRECORD:
        _cut(folder, names, bounds, lengths)
        return
    write = _parquet if file_format == PARQUET else _array_record
    for name, start, stop in zip(names, bounds, bounds[1:]):
        if not (folder / name).exists():
            if not (folder / RECORDS).exists():
                raise lost(folder / RECORDS, int(lengths.sum()))
            with whole(folder / name) as unfinished:
                write(unfinished, tfrecords(folder / RECORDS, start, stop - start))
    (folder / RECORDS).unlink(missing_ok=True)


def _cut(folder: Path, names: Sequence[str], bounds: Sequence[int], lengths: Array) -> None:
    """The last file first: its records are copied, and cut off the spool, so that at most one file stands there twice. The first is the rest."""
    spool = folder / RECORDS
    if not spool.exists():
        if not (folder / names[0]).exists():
            raise lost(spool, int(lengths.sum()))
        return  # a run before came so far
    ends = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) + FRAME_BYTES)])  # [n + 1]
    for name, start, stop in list(zip(names, bounds, bounds[1:]))[:0:-1]:
        if spool.stat().st_size > ends[start]:
            with whole(folder / name) as unfinished:
                _copy(spool, unfinished, ends[start], ends[stop])
            os.truncate(spool, ends[start])
        elif not (folder / name).exists():
            raise lost(spool, ends[stop])
    if spool.stat().st_size < ends[bounds[1]]:
        raise lost(spool, ends[bounds[1]])
    spool.replace(folder / names[0])


def _copy(spool: Path, path: Path, start: int, stop: int) -> None:
    with spool.open("rb") as records, path.open("wb") as file:
        records.seek(start)
        _copy_bytes(records, file, stop - start)


def _copy_bytes(records: BinaryIO, file: BinaryIO, left: int) -> None:
    while left:
        data = records.read(min(left, _COPIED_BYTES))
        file.write(data)
        left -= len(data)


def _parquet(path: Path, records: Any) -> None:
    """One column `data`, as TFDS has it; a row group per some records, so that memory is bounded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("data", pa.binary())])
    with pq.ParquetWriter(path, schema) as writer:
        waiting: list[bytes] = []
        for record in records:
            waiting.append(record)
            if len(waiting) == _ROWS_AT_ONCE:
                writer.write_table(pa.table({"data": pa.array(waiting, pa.binary())}, schema))
                waiting = []
        if waiting:
            writer.write_table(pa.table({"data": pa.array(waiting, pa.binary())}, schema))


def _array_record(path: Path, records: Any) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    try:
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
    except RuntimeError as error:  # its only kind; only the text has the system's reason
        text = str(error)
        number = next((one for one in (errno.ENOSPC, errno.EDQUOT) if os.strerror(one) in text), errno.EIO)
        raise OSError(number, " ".join(text.split()), str(path)) from error
