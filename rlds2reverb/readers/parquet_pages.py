"""What the headers of a Parquet file's pages say: how many values there are, and how large they are unpacked.

The footer tells both as well, but nothing holds a reader to it: memory is asked for by what stands in the headers. They are Thrift's compact
protocol (`thrift`). Source: parquet.thrift and Encodings.md of the format's specification (`PageHeader`, `DataPageHeader`, `DataPageHeaderV2`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.readers import thrift
from rlds2reverb.readers.reading_at import bytes_at
from rlds2reverb.readers.thrift import Fields

_WINDOW_BYTES = 1 << 16
"""A chunk that is no larger is read at once; of others, the headers only."""
_HEADER_BYTES = 1 << 8
_MOST_HEADER_BYTES = 1 << 24
_MOST_PAGES = 1 << 17

_UNPACKED, _STORED = 2, 3
_DATA, _DICTIONARY, _DATA_2 = 5, 7, 8
_VALUES = 1
_ENCODING = {_DATA: 2, _DATA_2: 4}
_BY_DICTIONARY, _BY_PREFIX = (2, 8), 7

_WANTED = {
    **dict.fromkeys((_UNPACKED, _STORED), thrift.NUMBER),
    **{kind: {_VALUES: thrift.NUMBER, at: thrift.NUMBER} for kind, at in _ENCODING.items()},
    _DICTIONARY: {},
}


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
        return thrift.struct(window, at, _WANTED)
    except IndexError:
        raise ValueError("no header of a page") from None


def _in_file(file: int, start: int, at: int, stop: int) -> tuple[Fields, int]:
    """The same in a file; `at` and `stop` count from `start`."""
    size = _HEADER_BYTES
    while True:
        data = bytes_at(file, min(size, stop - at), start + at)
        try:
            header, length = thrift.struct(data, 0, _WANTED)
        except IndexError:
            if len(data) < size or size >= _MOST_HEADER_BYTES:
                raise ValueError("no header of a page") from None
            size *= 16
        else:
            return header, at + length
