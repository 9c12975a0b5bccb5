"""Attributes in HDF5 files of unknown origin: read when they are few, small, and numbers or texts."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.hdf5_files import ERRORS, decoded, failure_of, where

_MOST_ATTRIBUTES = 100_000
_MOST_ATTRIBUTE_BYTES = 64 << 20


def attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    """The attributes of a group, a dataset or the file; None for an empty one. What is neither numbers nor texts is left out.

    Raises:
      SourceError: one cannot be read, or they are too many or too large.
    """
    try:
        return _attributes(thing)
    except ERRORS as error:
        raise SourceError(f"{where(thing)}: its attributes cannot be read: {failure_of(thing, error)}") from error


def _attributes(thing: h5py.Group | h5py.Dataset) -> dict[str, Any]:
    count = h5py.h5a.get_num_attrs(thing.id)
    if count > _MOST_ATTRIBUTES:
        raise ValueError(f"{count:,} of them; expected at most {_MOST_ATTRIBUTES:,}")
    values = {}
    for number in range(count):
        one = h5py.h5a.open(thing.id, index=number)
        kind, shape = one.get_type(), one.shape
        if not _is_plain(kind):
            continue
        size = math.prod(shape or ()) * kind.get_size()
        if size > _MOST_ATTRIBUTE_BYTES:
            raise ValueError(f"one of {size:,} bytes; expected at most {_MOST_ATTRIBUTE_BYTES:,}")
        name = decoded(one.name)
        values[name] = None if shape is None else _attribute(thing, one, shape)
    return values


def _attribute(thing: h5py.Group | h5py.Dataset, one: Any, shape: tuple[int, ...]) -> Any:
    """The value as h5py gives it; numbers without opening the attribute once more."""
    dtype = one.dtype
    if dtype.kind not in "biufc":
        return thing.attrs[decoded(one.name)]
    made = np.zeros(shape, dtype)
    one.read(made)
    return made[()] if made.ndim == 0 else made


def _is_plain(kind: Any) -> bool:
    """Whether values are numbers or texts. libhdf5 2.0 crashes over others where the file is damaged."""
    if isinstance(kind, h5py.h5t.TypeArrayID):
        return _is_plain(kind.get_super())
    plain = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeStringID, h5py.h5t.TypeEnumID)
    return isinstance(kind, plain) or kind.dtype.kind == "c"
