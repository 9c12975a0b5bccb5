"""HDF5 files of unknown origin, as columns: what is read is bounded before memory is asked for.

How files are opened and links followed: `hdf5_files`. What no check here can bound is said in docs/formats/d4rl.md.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.hdf5_attributes import attributes
from rlds2reverb.readers.hdf5_chunks import Chunks, filters_of, missing_filter
from rlds2reverb.readers.hdf5_files import (
    ERRORS,
    Stamp,
    bytes_of,
    checked_of,
    failure_of,
    found,
    located,
    names,
    opened,
    path_of,
    stamp_of,
    where,
)
from rlds2reverb.readers.hdf5_texts import check_texts
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

__all__ = [
    "Column",
    "Stamp",
    "attributes",
    "column",
    "found",
    "leaves",
    "located",
    "names",
    "opened",
    "path_of",
    "stamp_of",
    "value",
    "where",
]

_MOST_BYTES = 1 << 32
"""Of what is read of one column at once: an episode's."""
_FREE_BYTES = 64 << 20
"""May be read whatever the file has."""
_MOST_EXPANSION = 1100
"""How many times as large as what is stored values may be; gzip's best is 1,032."""
_MOST_DEPTH = 16
_MOST_LEAVES = 10_000


class Column:
    """A dataset with rows, looked up and checked once.

    Args:
      group: where it is.
      name: of the dataset, with "/" in it for one deeper inside.
      path: what it is the column of; for messages.
      dataset: its id, when it was looked up already.

    Raises:
      BrokenEpisode: it is missing, no dataset of numbers or texts, or not stored in a way that is read.

    Attributes:
      shape: of all rows; the first size is their number.
      dtype: of the values; object for text.
    """

    def __init__(self, group: h5py.Group, name: str, path: str, dataset: h5py.h5d.DatasetID | None = None) -> None:
        self._is_virtual = False
        self.path, self._place = path, (group, name)
        self._chunks: Chunks | None = None
        self._offset: int | None = None
        try:
            self._id, self.shape = self._with_rows(located(group, name) if dataset is None else dataset)
            stored = self._id.dtype
            self._is_text = stored.kind == "O" and h5py.check_string_dtype(stored) is not None
            self.dtype = np.dtype(object) if self._is_text or stored.kind == "S" else stored
            self._row_bytes = math.prod(self.shape[1:]) * stored.itemsize
            self._offset = self._place_in_file() if self.dtype.kind in "biufc" else None
            if self._offset is None:
                self._check_storage()
            if not self._is_text and stored.kind not in "biufcS":
                raise self._broken(f"holds {_content(stored)}; expected numbers or texts")
        except BrokenEpisode as broken:
            raise BrokenEpisode(path, broken.why) from broken
        except ERRORS as error:
            raise self._broken(f"cannot be read: {failure_of(group, error)}") from error

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def where(self) -> str:
        """The file, and the place in it; for messages."""
        group, name = self._place
        return f"{where(group).rstrip('/')}/{name}"

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""
        return ArraySpec(self.shape[1:], self.dtype)

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all; text as `bytes`.

        Raises:
          BrokenEpisode: they cannot be read, or are too large.
        """
        stop = len(self) if stop is None else max(0, min(stop, len(self)))
        start = min(start, stop)
        try:
            self._check_size((stop - start) * self._row_bytes)
            if self._offset is not None:
                return self._plain(start, stop, self._offset)
            if self._chunks is not None:
                self._chunks.check(start, stop)
            if self._is_text:
                check_texts(self._dataset, checked_of(self._id), start, stop)
            values = self._whole() if stop - start == len(self) else self._dataset[start:stop]
        except ERRORS as error:
            raise self._broken(f"cannot be read: {failure_of(self._place[0], error)}") from error
        made: Array = values if values.dtype.kind in "biufcO" else values.astype(object)
        return made

    def _whole(self) -> Array:
        """All rows; of numbers without h5py's selections, which cost more than short columns."""
        if self.dtype.kind not in "biufc" or not math.prod(self.shape):
            return np.asarray(self._dataset[()])
        values = np.empty(self.shape, self.dtype)
        self._id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
        return values

    def _plain(self, start: int, stop: int, offset: int) -> Array:
        """Rows that lie in the file as they are in memory."""
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        checked_of(self._id).fill(values, offset + start * self._row_bytes)
        return values

    @property
    def _dataset(self) -> h5py.Dataset:
        return h5py.Dataset(self._id, readonly=True)

    def _with_rows(self, one: Any) -> tuple[Any, tuple[int, ...]]:
        shape = one.shape if isinstance(one, h5py.h5d.DatasetID) else None
        if not shape:
            raise self._broken(f"expected a dataset with rows, found {_kind(found(*self._place))}")
        return one, shape

    def _place_in_file(self) -> int | None:
        """Where the first row begins, when all lie there one after the other, as they are in memory; None otherwise.

        libhdf5 tells a place of contiguous datasets only, and none where values lie in other files.
        """
        offset = self._id.get_offset()
        if offset is None or self._id.get_storage_size() < len(self) * self._row_bytes:
            return None
        return int(offset) if self._id.get_type().equal(_native(self.dtype.str)) else None

    def _check_storage(self) -> None:
        plan = self._id.get_create_plist()
        layout = plan.get_layout()
        if plan.get_external_count() or (layout == h5py.h5d.VIRTUAL and not self._is_of_this_file()):
            raise self._broken("its values lie in other files, which are not read")
        if layout != h5py.h5d.CHUNKED:
            return
        filters = filters_of(plan)
        missing = missing_filter(filters)
        if missing:
            raise self._broken(
                f"is packed by {missing}, which this h5py has not; HDF5_PLUGIN_PATH says where plugins are"
            )
        self._chunks = Chunks(self._id, plan, filters)

    def _is_of_this_file(self) -> bool:
        """Whether the parts of a virtual dataset are plain ones of the same file."""
        parts = self._dataset.virtual_sources()
        ours = [found(self._dataset.file, one.dset_name) for one in parts if one.file_name == "."]
        plain = [one for one in ours if isinstance(one, h5py.Dataset) and not one.is_virtual and not one.external]
        self._is_virtual = True
        return len(plain) == len(parts)

    def _check_size(self, size: int) -> None:
        if size <= _FREE_BYTES:
            return
        stored = checked_of(self._id).size
        if not self._is_virtual:
            stored = min(stored, self._id.get_storage_size())
        most = min(_MOST_BYTES, max(_FREE_BYTES, _MOST_EXPANSION * stored))
        if size > most:
            raise self._broken(
                f"has {size:,} bytes to read at once, of {stored:,} in the file; at most {most:,} are read"
            )

    def _broken(self, why: str) -> BrokenEpisode:
        return BrokenEpisode(self.path, f"{self.where}: {why}")


def column(group: h5py.Group, name: str, path: str, rows: slice | None = None) -> Array:
    """Some rows of a dataset, or all; text as `bytes`.

    Args:
      group: where it is.
      name: of the dataset, with "/" in it for one deeper inside.
      path: what it is the column of; for messages.
      rows: which; without a step.

    Raises:
      BrokenEpisode: it is missing, no dataset of numbers or texts, too large, or cannot be read.
    """
    one = Column(group, name, path)
    start, stop, _ = (rows or slice(None)).indices(len(one))
    return one.rows(start, stop)


def value(group: h5py.Group, name: str) -> Any:
    """A dataset without rows: a number or `bytes`; None where it is empty.

    Raises:
      BrokenEpisode: it is missing, or something else.
    """
    one, place = found(group, name), f"{where(group).rstrip('/')}/{name}"
    try:
        if not isinstance(one, h5py.Dataset) or one.shape != ():
            raise BrokenEpisode(name, f"{place}: expected one value, found {_kind(one)}")
        if h5py.check_string_dtype(one.dtype) is None and one.dtype.kind not in "biufcS":
            raise BrokenEpisode(name, f"{place}: holds {_content(one.dtype)}; expected a number or a text")
        if one.dtype.kind == "O":
            check_texts(one, bytes_of(one), 0, 1)
        return one[()]
    except ERRORS as error:
        raise BrokenEpisode(name, f"{place}: cannot be read: {failure_of(group, error)}") from error


def leaves(group: h5py.Group, below: str = "", depth: int = 0) -> dict[str, h5py.Dataset]:
    """Path -> dataset, of all datasets in a group and in the groups in it.

    Raises:
      BrokenEpisode: something in it cannot be read, lies too deep, or there are too many.
    """
    made: dict[str, h5py.Dataset] = {}
    for name in names(group):
        path = f"{below}/{name}" if below else name
        one = found(group, name)
        if isinstance(one, h5py.Dataset):
            made[path] = one
        elif one is not None:
            if depth == _MOST_DEPTH:
                raise BrokenEpisode(path, f"{where(one)}: lies more than {_MOST_DEPTH} groups deep")
            made |= leaves(one, path, depth + 1)
        if len(made) > _MOST_LEAVES:
            raise BrokenEpisode(path, f"{where(group)}: more than {_MOST_LEAVES:,} datasets")
    return made


@cache
def _native(dtype: str) -> Any:
    """What h5py writes values of numpy's dtype as."""
    return h5py.h5t.py_create(np.dtype(dtype))


def _kind(one: Any) -> str:
    if one is None:
        return "nothing"
    return f"a {type(one).__name__.lower()}" + (f" of shape {one.shape}" if isinstance(one, h5py.Dataset) else "")


def _content(dtype: np.dtype[Any]) -> str:
    if h5py.check_vlen_dtype(dtype) is not None:
        return "arrays of lengths that differ"
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if dtype.names:
        return f"a compound of {', '.join(dtype.names)}"
    return "opaque bytes" if dtype.kind == "V" else f"values of dtype {dtype}"
