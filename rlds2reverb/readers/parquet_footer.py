"""What the footer of a Parquet file says of its columns, row group by row group.

pyarrow tells it as well, and ends the process over a footer that is damaged (seen with 26.0: `RowGroupMetaData.column` lets no
exception out, such as one over a histogram of another size than its column needs). Source: parquet.thrift of the format's
specification (`FileMetaData`, `RowGroup`, `ColumnChunk`, `ColumnMetaData`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeVar

from rlds2reverb.readers import thrift
from rlds2reverb.readers.reading_at import bytes_at

T = TypeVar("T")

_END = b"PAR1"
_END_BYTES = 8
_MOST_BYTES = 1 << 25

_ROW_GROUPS, _COLUMNS, _ABOUT = 4, 1, 3
_PATH, _VALUES, _UNPACKED, _STORED, _DATA_PAGE, _DICTIONARY_PAGE = 3, 5, 6, 7, 9, 11
_NUMBERS = (_VALUES, _UNPACKED, _STORED, _DATA_PAGE)
_OF_A_COLUMN = {**dict.fromkeys((*_NUMBERS, _DICTIONARY_PAGE), thrift.NUMBER), _PATH: thrift.Each(thrift.TEXT)}
_WANTED = {_ROW_GROUPS: thrift.Each({_COLUMNS: thrift.Each({_ABOUT: _OF_A_COLUMN})})}


class Chunk(NamedTuple):
    """A column in a row group.

    Attributes:
      path: names of the column and of what it lies in, with dots between.
      values: how many it has; those without a value, and empty lists, count as one.
      unpacked, stored: bytes, without and with compression.
      data_page: where its pages of values begin in the file.
      dictionary_page: where its dictionary begins; 0 without one.
    """

    path: str
    values: int
    unpacked: int
    stored: int
    data_page: int
    dictionary_page: int

    @property
    def start(self) -> int:
        """Where pyarrow begins to read it."""
        return min(self.data_page, self.dictionary_page) if self.dictionary_page > 0 else self.data_page


Footer = tuple[tuple[Chunk, ...], ...]
"""The columns of each row group."""


def footer_of(path: Path) -> Footer:
    """Reads it.

    Raises:
      ValueError: it is damaged, or too large.
      OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = _bytes(file.fileno())
    try:
        about, _ = thrift.struct(data, 0, _WANTED)
    except IndexError:
        raise ValueError("its footer ends too early") from None
    groups = _checked(list, about.get(_ROW_GROUPS, []))
    return tuple(tuple(map(_chunk, _checked(list, _checked(dict, one).get(_COLUMNS)))) for one in groups)


def _bytes(file: int) -> bytes:
    size = os.fstat(file).st_size
    end = bytes_at(file, _END_BYTES, max(0, size - _END_BYTES))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != _END or length > size - _END_BYTES:
        raise ValueError("it has no footer of Parquet")
    if length > _MOST_BYTES:
        raise ValueError(f"its footer has {length:,} bytes; at most {_MOST_BYTES:,} are read")
    return bytes_at(file, length, size - _END_BYTES - length)


def _chunk(fields: object) -> Chunk:
    about = _checked(dict, _checked(dict, fields).get(_ABOUT))
    names = [_checked(bytes, one).decode() for one in _checked(list, about.get(_PATH))]
    values, unpacked, stored, data_page = (_checked(int, about.get(one)) for one in _NUMBERS)
    return Chunk(".".join(names), values, unpacked, stored, data_page, _checked(int, about.get(_DICTIONARY_PAGE, 0)))


def _checked(kind: type[T], found: object) -> T:
    if isinstance(found, kind):
        return found
    raise ValueError("its footer is none of Parquet")
