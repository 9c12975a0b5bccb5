"""ArrayRecord files, read by their own package `array_record`, which is optional.

Source: array_record 0.8's Python bindings. TFDS writes one record per group, so that each can be read alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.tfds_files.tfrecord import check_kind

_AT_ONCE = 64
"""Records read in one call."""


def array_records(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file; the package verifies its checksums.

    Raises:
      SourceError: the package is missing, the file cannot be read, or has fewer records; says which.
    """
    reader = _open(path)
    try:
        found = reader.num_records()
        if found < skip + take:
            raise SourceError(f"{path}: has {found:,} records; expected at least {skip + take:,}; copy the file again")
        for start in range(skip, skip + take, _AT_ONCE):
            yield from _read(path, reader, start, min(start + _AT_ONCE, skip + take))
    finally:
        reader.close()


def _open(path: Path) -> Any:
    try:
        check_kind(path)
        from array_record.python.array_record_module import ArrayRecordReader
    except ModuleNotFoundError as missing:
        raise SourceError(
            f"{path}: array_record files are read by the package array_record; install with: pip install array_record"
        ) from missing
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return ArrayRecordReader(str(path))
    except (RuntimeError, ValueError) as error:
        raise _unreadable(path, "", error) from error


def _read(path: Path, reader: Any, start: int, end: int) -> list[bytes]:
    try:
        records: list[bytes] = reader.read(start, end)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _unreadable(path, f", records {start} to {end - 1}", error) from error
    return records


def _unreadable(path: Path, which: str, error: Exception) -> SourceError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SourceError(f"{path}{which}: cannot be read as array_record: {said}; copy the file again")
