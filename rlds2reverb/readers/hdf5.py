"""HDF5 files of unknown origin: opened for reading, links followed inside the dataset's folder only, what is read is bounded.

h5py gives errors of many kinds over a damaged file; here they become `SourceError`, or `BrokenEpisode` for what is read of one episode.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import shortened

_ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    UnicodeError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)
"""What h5py raises over a damaged file."""

_SMALL_BYTES = 1 << 20
_MOST_TIMES, _MOST_TIMES_PLAIN = 1 << 11, 8
"""A dataset has at most so many times the bytes that are stored of it, for chunks may be left out: with filters (zlib's 1,032), and without."""


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file, open for reading.

    Raises:
      SourceError: it is missing, no regular file, or not HDF5.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path}: not a regular file")
        file = h5py.File(path, "r", locking=False)
    except _ERRORS as error:
        raise SourceError(f"{path}: cannot be read as HDF5: {_line(error)}") from error
    with file:
        yield file


def column(group: h5py.Group, name: str, path: str, rows: slice | None = None) -> Array:
    """Some rows of a dataset, or all; text as `bytes`.

    Args:
      group: where it is.
      name: of the dataset, with "/" in it for one deeper inside.
      path: what it is the column of; for messages.
      rows: which.

    Raises:
      BrokenEpisode: it is missing, no dataset of numbers or texts, or cannot be read.
    """
    with told_as_broken(path, group, name):
        return values_of(group.get(name), path, group, name, rows)


def values_of(found: Any, path: str, group: Any, below: str, rows: slice | None = None) -> Array:
    """Some rows of what was found at `below` in a group, or all; text as `bytes`. What h5py raises is left to `told_as_broken`.

    Raises:
      BrokenEpisode: it is no dataset of numbers or texts, or claims to be far larger than what is stored of it.
    """
    if not isinstance(found, h5py.Dataset) or found.ndim == 0:
        raise BrokenEpisode(path, f"{place(group, below)}: expected a dataset with rows, found {_kind(found)}")
    if found.external or found.is_virtual:
        raise BrokenEpisode(path, f"{place(group, below)}: its values lie in other files, which are not read")
    claimed = found.size * found.dtype.itemsize
    if claimed > _SMALL_BYTES and claimed > _most_times(found) * found.id.get_storage_size():
        raise BrokenEpisode(path, f"{place(group, below)}: claims {claimed:,} bytes, of which hardly any are stored")
    values = found[rows] if rows is not None else found[()]
    return np.asarray(values) if values.dtype.kind in "biufcO" else np.asarray(values, object)


def _most_times(dataset: Any) -> int:
    return _MOST_TIMES if dataset.id.get_create_plist().get_nfilters() else _MOST_TIMES_PLAIN


@contextmanager
def told_as_broken(path: str, group: Any, below: str = "") -> Iterator[None]:
    """What h5py raises inside over a damaged file, as an episode that is broken at `path`; it happened at `below` in a group."""
    try:
        yield
    except _ERRORS as error:
        raise BrokenEpisode(path, f"{place(group, below)}: cannot be read: {_line(error)}") from error


def place(group: Any, below: str = "") -> str:
    """File and name of what is in a group, for messages."""
    return f"{group.file.filename}: {group.name.rstrip('/')}/{below}"


def attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of a group, a dataset or the file.

    Raises:
      SourceError: one cannot be read.
    """
    try:
        return dict(thing.attrs.items())
    except _ERRORS as error:
        raise SourceError(
            f"{thing.file.filename}: attributes of {thing.name}: cannot be read: {_line(error)}"
        ) from error


def _kind(found: Any) -> str:
    if found is None:
        return "nothing"
    return f"a {type(found).__name__.lower()}" + (" without rows" if isinstance(found, h5py.Dataset) else "")


def _line(error: BaseException) -> str:
    return shortened(" ".join(str(error).split()) or type(error).__name__)
