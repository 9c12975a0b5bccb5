"""What the headers of a Parquet file's pages say: how many values there are, and how large they are unpacked.

The footer tells both as well, but nothing holds a reader to it: memory is asked for by what stands in the headers. They are Thrift's compact
protocol. Source: parquet.thrift and Encodings.md of the format's specification (`PageHeader`, `DataPageHeader`, `DataPageHeaderV2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlds2reverb.readers.reading_at import bytes_at

_WINDOW_BYTES = 1 << 16
"""A chunk that is no larger is read at once; of others, the headers only."""
_HEADER_BYTES = 1 << 8
_MOST_HEADER_BYTES = 1 << 24
_MOST_PAGES = 1 << 17
_DEEPEST = 8

_UNPACKED, _STORED = 2, 3
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
_VALUES = 1
_ENCODING = {_DATA: 2, _DATA_2: 4}
_BY_DICTIONARY, _BY_PREFIX = (2, 8), 7

_WHOLE_NUMBERS, _BINARY, _STRUCT = (4, 5, 6), 8, 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Of what is not needed: truths, which their kind tells, bytes, and doubles."""

Fields = dict[int, Any]


@dataclass
class Pages:
    """The pages of a column in a row group.

    Attributes:
      values: how many values they have; those without a value, and empty lists, count as one.
      unpacked: bytes of all pages, without their compression.
      by_dictionary: how many values are numbers of entries of the dictionary.
      dictionary: bytes of that; no entry is larger.
      by_prefix: how many texts are told by how much of the text before them begins them.
      largest: bytes of the largest page; no text that is told so is larger.
    """

    values: int = 0
    unpacked: int = 0
    by_dictionary: int = 0
    dictionary: int = 0
    by_prefix: int = 0
    largest: int = 0


def pages_of(file: int, start: int, size: int, values: int) -> Pages:
    """Looks at the headers in a chunk.

    Args:
      file: a descriptor.
      start, size: where the chunk is, in bytes.
      values: how many values the footer tells; pages behind those are not read.

    Raises:
      ValueError: what stands there is no page.
      OSError: it cannot be read.
    """
    found, at = Pages(), 0
    window = bytes_at(file, size, start) if size <= _WINDOW_BYTES else b""
    for _ in range(_MOST_PAGES):
        if at >= size or found.values >= values:
            return found
        header, at = _in_window(window, at) if window else _in_file(file, start, at, size)
        at += _take(found, header)
    raise ValueError(f"more than {_MOST_PAGES:,} pages in a column of a row group")


def _take(found: Pages, header: Fields) -> int:
    """Adds a page; how many bytes it has in the file, behind its header."""
    unpacked, stored = header.get(_UNPACKED), header.get(_STORED)
    if not isinstance(unpacked, int) or not isinstance(stored, int) or unpacked < 0 or stored < 0:
        raise ValueError("the header of a page tells no sizes")
    found.unpacked += unpacked
    found.largest = max(found.largest, unpacked)
    if _DICTIONARY in header:
        found.dictionary = max(found.dictionary, unpacked)
    kind = _DATA if _DATA in header else _DATA_2
    about = header.get(kind)
    if isinstance(about, dict):
        count, encoding = about.get(_VALUES), about.get(_ENCODING[kind])
        if not isinstance(count, int) or count < 0:
            raise ValueError("the header of a page tells no number of values")
        found.values += count
        if encoding in _BY_DICTIONARY:
            found.by_dictionary += count
        elif encoding == _BY_PREFIX:
            found.by_prefix += count
    return stored


def _in_window(window: bytes, at: int) -> tuple[Fields, int]:
    """A header among bytes, and where it ends."""
    try:
        return _struct(window, at, 0)
    except IndexError:
        raise ValueError("no header of a page") from None


def _in_file(file: int, start: int, at: int, stop: int) -> tuple[Fields, int]:
    """The same in a file; `at` and `stop` count from `start`."""
    size = _HEADER_BYTES
    while True:
        data = bytes_at(file, min(size, stop - at), start + at)
        try:
            header, length = _struct(data, 0, 0)
        except IndexError:
            if len(data) < size or size >= _MOST_HEADER_BYTES:
                raise ValueError("no header of a page") from None
            size *= 16
        else:
            return header, at + length


def _struct(data: bytes, at: int, depth: int) -> tuple[Fields, int]:
    """The fields of a struct, those that are numbers or structs; and where it ends."""
    if depth > _DEEPEST:
        raise ValueError("no header of a page")
    fields: Fields = {}
    number = 0
    while True:
        first = data[at]
        at += 1
        if not first:
            return fields, at
        kind = first & 15
        if first > 15:
            number += first >> 4
        else:
            number, at = _varint(data, at)
        if kind in _WHOLE_NUMBERS:
            found, at = _varint(data, at)
            fields[number] = (found >> 1) ^ -(found & 1)
        elif kind == _STRUCT:
            fields[number], at = _struct(data, at, depth + 1)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ValueError("no header of a page")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = data[at]
    if found < 128:
        return found, at + 1
    found, shift = found & 127, 7
    while shift < 64:
        at += 1
        byte = data[at]
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at + 1
        shift += 7
    raise ValueError("no header of a page")
