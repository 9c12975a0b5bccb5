"""ArrayRecord files, read by their own package `array_record`, which is optional.

Source: array_record 0.8's Python bindings. TFDS writes one record per group, so that each can be read alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.files import check_regular

_AT_ONCE = 64
"""Records read in one call."""


def array_records(path: Path, skip: int, take: int) -> Iterator[bytes]:
    """Records number `skip` to `skip + take` of a file; the package verifies its checksums.

    Raises:
      SourceError: the package is missing, the file cannot be read, or has fewer records; says which.
    """
    reader = _open_array_record(path)
    try:
        found = _count(path, reader)
        if found < skip + take:
            raise SourceError(f"{path}: has {found:,} records; expected at least {skip + take:,}; copy the file again")
        for start in range(skip, skip + take, _AT_ONCE):
            yield from _read(path, reader, start, min(start + _AT_ONCE, skip + take))
    finally:
        with suppress(RuntimeError):  # of a damaged file it says again what was said
            reader.close()


def _count(path: Path, reader: Any) -> int:
    try:
        found: int = reader.num_records()
    except (RuntimeError, ValueError) as error:
        raise _unreadable_array_record(path, "", error) from error
    return found


def _open_array_record(path: Path) -> Any:
    try:
        check_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    with needing(f"{path}: reading array_record files", "array-record", SourceError):
        from array_record.python.array_record_module import ArrayRecordReader
    try:
        return ArrayRecordReader(str(path))
    except (RuntimeError, ValueError) as error:
        raise _unreadable_array_record(path, "", error) from error


def _read(path: Path, reader: Any, start: int, end: int) -> list[bytes]:
    try:
        records: list[bytes] = reader.read(start, end)
    except (RuntimeError, ValueError, IndexError) as error:
        raise _unreadable_array_record(path, f", records {start} to {end - 1}", error) from error
    return records


def _unreadable_array_record(path: Path, which: str, error: Exception) -> SourceError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return SourceError(f"{path}{which}: cannot be read as array_record: {said}; copy the file again")
