"""Where the records of a TFRecord shard begin: kept in a file of its own, so that a reader seeks a record by its number.

An index file has a head and then the places, 8 bytes each, all little-endian:

| bytes | head |
| --- | --- |
| 8 | `r2r-idx1` |
| 8 | size of the shard in bytes |
| 8 | time of its last change in nanoseconds; of an object in a bucket, with a digest of its ETag or version |
| 8 | digest of the places (XXH3, 64 bits) |

Record `n` begins at place `n` and ends at place `n + 1`. An index may end before its shard: it has what was walked over so far, and a later
reader goes on from there.

The rows of each record, the steps of its episode, are kept in a file of the same form, with the head `r2r-rows`: 8 bytes a record, all ones
where they were not counted. It lies in the cache only.

An index lies beside its shard, as SHARD.rlds2reverb-index, or in a folder of the user's cache under a digest of the shard's path. It only saves
time. A file that is missing, stale, cut off or makes no sense is as good as none, and a cache that cannot be written is not written.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, SourceError, WriteError
from rlds2reverb.files import cache_folder, can_be_replaced, unfinished_file, write_error
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.paths import Stamp

SUFFIX = ".rlds2reverb-index"

_MAGIC, _ROWS_MAGIC = b"r2r-idx1", b"r2r-rows"
_HEAD = struct.Struct("<8sQqQ")
_PLACE_BYTES = 8
_LEAST_RECORD = 16  # bytes of a record's frame in a TFRecord file

_WORTH_RECORDS, _WORTH_BYTES = 1024, 4 << 20
"""Least that is walked over before an index is saved unasked: some milliseconds of a disk, or one request to a bucket."""

UNCOUNTED = np.uint64((1 << 64) - 1)
"""In place of the rows of a record that were not counted."""

NOTHING = np.zeros(1, "<u8")
"""An index without records: record 0 begins at 0."""


def cached_path(shard: Path, kind: str = "index") -> Path:
    """The index of a shard in the cache, or with kind "rows" the rows of its records. Raises `ConfigError` where there is no folder for one."""
    name = xxhash.xxh3_128_hexdigest(os.fsencode(str(shard.resolve())))
    return cache_folder("indexes") / f"{name}.{kind}"


def beside_path(shard: Path) -> Path:
    """The index beside a shard.

    Raises:
      SourceError: the shard is in a bucket.
    """
    if isinstance(shard, BucketPath):
        raise SourceError(f"{shard}: no index is put beside it: it is in a bucket; leave --beside out")
    # A plain path: the dataset's own files are watched, and this is none of them.
    return Path(str(shard.with_name(f"{shard.name}{SUFFIX}")))


def check_beside(shard: Path) -> None:
    """Raises `SourceError` or `WriteError` where no index can be put beside a shard."""
    path = beside_path(shard)
    if not can_be_replaced(path):
        raise WriteError(f"{path}: cannot be written; {_WAY_OUT_OF_FOLDER}")


def load(shard: Path, stamp: Stamp) -> Array:
    """The places of a shard's records as far as they are known: [n + 1] uint64, the first is 0. `NOTHING` where none are.

    What is beside the shard is preferred to what is in the cache. Each place is a possible one; whether a record begins there, its head says.
    """
    with suppress(*_NO_CACHE):
        # The cache's path is asked for last: where there is no folder for a cache, the file beside the shard still counts.
        finders: tuple[Callable[[Path], Path], ...] = (beside_path, cached_path)
        for find_path in finders[1:] if isinstance(shard, BucketPath) else finders:
            places = _read(find_path(shard), _MAGIC, stamp, stamp[0] // _LEAST_RECORD + 1)
            if places is None or places[0] != 0 or places.max() > stamp[0]:
                continue
            # Signed: else a place that goes back wraps around.
            if not np.any(np.diff(places.view("<i8")) < _LEAST_RECORD):
                return places
    return NOTHING


def save(shard: Path, stamp: Stamp, places: Array, beside: bool = False) -> Path:
    """Saves an index whole: two processes may do so at once, and the last one's stays.

    Raises:
      ConfigError: there is no folder for a cache.
      SourceError: it should be beside a shard in a bucket.
      WriteError: the folder cannot be written.
    """
    path = beside_path(shard) if beside else cached_path(shard)
    try:
        if not beside:
            path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, stamp, places)
    except OSError as error:
        raise write_error(path, error, _WAY_OUT_OF_FOLDER if beside else _WAY_OUT_OF_CACHE) from error
    return path


def save_walked(shard: Path, stamp: Stamp, indexed: Array, places: Array, ends: Sequence[int]) -> None:
    """Saves what a reader walked over beyond what was indexed, where that was much; does nothing if the cache cannot be written.

    Args:
      places: up to the record from which on all were read.
      ends: of those.
    """
    last = ends[-1] if ends else int(places[-1])
    count = len(places) + len(ends)
    # Readers of a small split would write a file for each shard, and save themselves nothing.
    if count - len(indexed) < _WORTH_RECORDS and last - int(indexed[-1]) < _WORTH_BYTES:
        return
    if sys.is_finalizing():  # a generator that is closed at the end of the process finds modules half gone
        return
    with suppress(*_NO_CACHE):
        if len(load(shard, stamp)) < count:  # else it was there, or another reader was faster
            save(shard, stamp, join_places(places, ends))


def join_places(places: Array, ends: Sequence[int]) -> Array:
    """The places of records, and where the records from the last of them on end."""
    return np.concatenate([places, np.asarray(ends, "<u8")])


def load_rows(shard: Path, stamp: Stamp, records: int) -> Array:
    """[records] uint64 rows of each record of a shard, `UNCOUNTED` where they are not known."""
    with suppress(*_NO_CACHE):
        rows = _read(cached_path(shard, "rows"), _ROWS_MAGIC, stamp, records)
        if rows is not None and len(rows) == records:
            return rows.copy()  # what was read cannot be written
    return np.full(records, UNCOUNTED)


def save_rows(shard: Path, stamp: Stamp, rows: Array) -> None:
    """Saves the rows of each record; does nothing if the cache cannot be written."""
    with suppress(*_NO_CACHE):
        path = cached_path(shard, "rows")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, stamp, rows, _ROWS_MAGIC)


def forget(shard: Path) -> None:
    """Removes the index of a shard from the cache."""
    with suppress(*_NO_CACHE):
        cached_path(shard).unlink()


# RuntimeError: a circle of links; ValueError: a NUL in the path.
_NO_CACHE = (OSError, ConfigError, RuntimeError, ValueError)
_WAY_OUT_OF_CACHE = "nothing is lost but time; name a folder that can be written: RLDS2REVERB_CACHE=FOLDER"
_WAY_OUT_OF_FOLDER = "leave --beside out, and the index is put into the cache"


def _read(path: Path, kind: bytes, stamp: Stamp, numbers: int) -> Array | None:
    """[n] uint64 behind the head of a file, at most so many; None where it is not of this kind, or not of the shard as it is now.

    Raises:
      OSError: it cannot be read.
    """
    most = _HEAD.size + _PLACE_BYTES * numbers
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or not _HEAD.size + _PLACE_BYTES <= status.st_size <= most:
        return None
    with path.open("rb", buffering=0) as file:
        data = file.read(most + 1)
    if len(data) != status.st_size or (len(data) - _HEAD.size) % _PLACE_BYTES:
        return None
    magic, *written_for, digest = _HEAD.unpack_from(data)
    content = memoryview(data)[_HEAD.size :]
    if magic != kind or tuple(written_for) != stamp or digest != xxhash.xxh3_64_intdigest(content):
        return None
    return np.frombuffer(content, "<u8")


def _write(path: Path, stamp: Stamp, numbers: Array, kind: bytes = _MAGIC) -> None:
    data = np.ascontiguousarray(numbers, "<u8").tobytes()
    unfinished = unfinished_file(path)
    try:
        unfinished.write_bytes(_HEAD.pack(kind, *stamp, xxhash.xxh3_64_intdigest(data)) + data)
        unfinished.replace(os.path.realpath(path))  # not synced: what a crash leaves is found by its digest
    finally:
        unfinished.unlink(missing_ok=True)
