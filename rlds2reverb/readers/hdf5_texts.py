"""Texts of free length: where they are stored, a length and a place each; libhdf5 asks for as much memory as the length says.

Source of the layout: HDF5 File Format Specification 3.0, "Variable-length" in IV.A.2.d "The Datatype Message".
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from rlds2reverb.readers.hdf5_bytes import CheckedFile
from rlds2reverb.readers.hdf5_chunks import filters_of, unpacked

_MOST_BYTES = 1 << 30
_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])


def check_texts(dataset: h5py.Dataset, file: CheckedFile, start: int, stop: int) -> None:
    """Looks at the lengths before libhdf5 does.

    Args:
      dataset: of texts of free length.
      file: the one that it is in.
      start: the first row.
      stop: the row after the last one.

    Raises:
      OSError: a text is longer than the file, all are longer than what is read at once, or they are stored in a way that cannot be checked.
    """
    lengths = _references(dataset, file, start, stop)["length"]
    if len(lengths) and int(lengths.max()) > file.size:
        raise OSError(f"a text of {int(lengths.max()):,} bytes in a file of {file.size:,}")
    total = int(lengths.sum(dtype=np.uint64))
    if total > _MOST_BYTES:
        raise OSError(f"texts of {total:,} bytes to read at once; at most {_MOST_BYTES:,} are read")


def _references(dataset: h5py.Dataset, file: CheckedFile, start: int, stop: int) -> Any:
    plan = dataset.id.get_create_plist()
    layout = plan.get_layout()
    if layout == h5py.h5d.CHUNKED:
        parts = [np.zeros(0, _REFERENCE), *_of_chunks(dataset, plan, start, stop)]
        return np.concatenate(parts)
    offset = dataset.id.get_offset()
    if layout == h5py.h5d.COMPACT:
        raise OSError("texts within the header; write them anew with h5py's own layout")
    if offset is None:
        return np.zeros(0, _REFERENCE)  # never written: all of them are empty
    width = int(np.prod(dataset.shape[1:], dtype=object)) * _REFERENCE.itemsize
    data = file.bytes_at(offset + start * width, (stop - start) * width)
    return np.frombuffer(data, _REFERENCE, len(data) // _REFERENCE.itemsize)


def _of_chunks(dataset: h5py.Dataset, plan: Any, start: int, stop: int) -> list[Any]:
    """The references in every chunk of these rows."""
    filters, rows = filters_of(plan), plan.get_chunk()[0]
    size = int(np.prod(plan.get_chunk(), dtype=object)) * _REFERENCE.itemsize
    parts = []
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        if chunk.chunk_offset[0] >= stop or chunk.chunk_offset[0] + rows <= start:
            continue
        mask, stored = dataset.id.read_direct_chunk(chunk.chunk_offset)
        data = unpacked(bytes(stored), filters, mask, size)
        if data is None:
            raise OSError("texts packed by filters other than gzip and shuffle; write them anew with one of these")
        parts.append(np.frombuffer(data, _REFERENCE))
    return parts
