"""Chunks of an HDF5 dataset: which filters pack them, and whether what they unpack to is bounded.

libhdf5 unpacks gzip to whatever comes out. A chunk of a megabyte may make a gigabyte of that; larger ones are unpacked here first, as
far as their chunk is large.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import h5py
import numpy as np

from rlds2reverb.readers.hdf5_files import checked_of

_SMALL_CHUNK_BYTES = 1 << 20
_MOST_CHUNK_BYTES = 1 << 30
_FLETCHER_BYTES = 4
_KNOWN = {
    h5py.h5z.FILTER_DEFLATE: "gzip",
    h5py.h5z.FILTER_SZIP: "szip",
    307: "bzip2",
    32000: "LZF",
    32001: "Blosc",
    32004: "LZ4",
    32008: "bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
    32026: "Blosc2",
}
"""Names of filters: https://github.com/HDFGroup/hdf5_plugins/blob/master/docs/RegisteredFilterPlugins.md."""


def filters_of(plan: Any) -> list[tuple[int, int]]:
    """The filters (number, first parameter) of a dataset, in the order in which they pack."""
    found = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    return [(one[0], one[2][0] if one[2] else 0) for one in found]


def missing_filter(filters: list[tuple[int, int]]) -> str:
    """A filter that this h5py has not, as people call it; "" when it has all."""
    for number, _ in filters:
        if not h5py.h5z.filter_avail(number):
            return f"filter {number}" + (f" ({_KNOWN[number]})" if number in _KNOWN else "")
    return ""


def unpacked(data: bytes, filters: list[tuple[int, int]], mask: int, size: int) -> bytes | None:
    """A chunk without its filters; None when one of them is not among gzip, shuffle and Fletcher's checksum, which is not checked.

    Args:
      data: as stored.
      filters: of the dataset.
      mask: bits of the filters that were left out for this chunk.
      size: bytes of the chunk.

    Raises:
      OSError: it unpacks to something else.
    """
    for at, (number, parameter) in reversed(list(enumerate(filters))):
        if mask >> at & 1:
            continue
        if number == h5py.h5z.FILTER_FLETCHER32:
            data = data[:-_FLETCHER_BYTES]
        elif number == h5py.h5z.FILTER_DEFLATE:
            data = _inflated(data, size + _FLETCHER_BYTES)
        elif number == h5py.h5z.FILTER_SHUFFLE:
            data = _unshuffled(data, parameter)
        else:
            return None
    if len(data) != size:
        raise OSError(f"a chunk unpacks to {len(data):,} bytes; expected {size:,}")
    return data


class Chunks:
    """What is known of the chunks of a chunked dataset.

    Args:
      dataset: its id.
      plan: how it was created.
      filters: of it.

    Raises:
      OSError: they are too large.
    """

    def __init__(self, dataset: Any, plan: Any, filters: list[tuple[int, int]]) -> None:
        self._dataset, self._filters = dataset, filters
        self._large: dict[tuple[int, ...], int] = {}
        chunk = plan.get_chunk()
        self._rows = chunk[0]
        stored = dataset.dtype
        width = dataset.get_type().get_size() if stored.kind == "O" else stored.itemsize
        self._bytes = math.prod(chunk) * width
        if self._bytes > _MOST_CHUNK_BYTES:
            raise OSError(f"chunks of {self._bytes:,} bytes; expected at most {_MOST_CHUNK_BYTES:,}")
        packs = any(number == h5py.h5z.FILTER_DEFLATE for number, _ in filters)
        if packs and checked_of(dataset).size > _SMALL_CHUNK_BYTES:
            dataset.chunk_iter(self._note)

    def check(self, start: int, stop: int) -> None:
        """Raises `OSError` when a chunk of these rows unpacks to more than a chunk."""
        for offset in [one for one in self._large if one[0] < stop and one[0] + self._rows > start]:
            mask, data = self._dataset.read_direct_chunk(offset)
            unpacked(bytes(data), self._filters, mask, self._bytes)
            del self._large[offset]

    def _note(self, chunk: Any) -> None:
        if chunk.size > _SMALL_CHUNK_BYTES:
            self._large[tuple(chunk.chunk_offset)] = chunk.size


def _inflated(data: bytes, most: int) -> bytes:
    try:
        made = zlib.decompressobj().decompress(data, most + 1)
    except zlib.error as error:
        raise OSError(f"a chunk cannot be unpacked: {error}") from error
    if len(made) > most:
        raise OSError(f"a chunk unpacks to more than {most:,} bytes")
    return made


def _unshuffled(data: bytes, width: int) -> bytes:
    """Undoes the filter shuffle, which puts the first bytes of all values first; bytes that make no whole value stay at the end."""
    whole = len(data) // width * width if width > 1 else 0
    if not whole:
        return data
    planes = np.frombuffer(data, np.uint8, whole).reshape(width, -1)
    return planes.T.tobytes() + data[whole:]
