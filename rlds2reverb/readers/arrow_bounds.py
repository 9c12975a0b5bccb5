"""Parquet and Arrow files of unknown origin: how much memory their values take, known before any is asked for.

| stored | takes at most |
| --- | --- |
| numbers of any encoding | as many values as the pages' headers tell, of their width |
| texts as they are | the pages, unpacked |
| texts by a dictionary | their exact lengths, which numbers of entries and the dictionary tell |
| texts by prefixes of others | their exact lengths; those in lists, as many as there are of the length of the largest page |
| lists of one size | as many values as they have, also where there is none |
| buffers of Arrow | what they unpack to, and the file itself |
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.readers.flatbuffers import unpacked_bytes
from rlds2reverb.readers.parquet_footer import Chunk, Footer, footer_of
from rlds2reverb.readers.parquet_pages import Pages, pages_of

MOST_BYTES = 1 << 34
"""Of what is read at once."""
_FREE_BYTES = 128 << 20
"""May be read whatever the file has."""
_MOST_EXPANSION = 1100
"""How many times as large as the file values may be; gzip's best is 1,032."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_OF_A_LIST = 8
"""More bytes of a value in a list: of an offset, and of levels."""
_TEXT = "BYTE_ARRAY"
_OF_A_TEXT = 64
"""Bytes of an offset, and of what Python has around a text."""
_MOST_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 18


class ParquetBounds:
    """Refuses row groups that would take far more memory than the file has bytes, or more than `MOST_BYTES`.

    Args:
      path: of a file.
      file: the same, a `pyarrow.parquet.ParquetFile`.
      columns: names of those that are read; all by default.
      footer: of the file, where it was read before.

    Raises:
      ValueError: its footer is damaged.
      OSError: it cannot be read.
    """

    def __init__(
        self, path: Path, file: Any, columns: Iterable[str] | None = None, footer: Footer | None = None
    ) -> None:
        self._path, self._file = path, file
        self._footer = footer_of(path) if footer is None else footer
        self._leaves = list(_leaves(file, None if columns is None else frozenset(columns)))

    def check(self, groups: Iterable[int] | None = None) -> None:
        """Looks at row groups that are read at once, all by default.

        Raises:
          ValueError: they are too large, or something is no page.
          OSError, pyarrow.ArrowException: the file cannot be read.
        """
        wanted = list(range(self._file.metadata.num_row_groups) if groups is None else groups)
        with self._path.open("rb") as raw:
            stored = os.fstat(raw.fileno()).st_size
            chunks = _Chunks(raw.fileno(), (self._group(one) for one in wanted), self._leaves)
        most = _most(min(chunks.stored, stored))
        size, texts = chunks.size, list(chunks.texts.values())
        if size <= most < size + sum(one.at_most for one in texts):
            for one in texts:
                size += one.measured(self._path, wanted, most - size)
        else:
            size += sum(one.at_most for one in texts)
        _check(size, most, stored)

    def _group(self, number: int) -> tuple[int, tuple[Chunk, ...]]:
        """How many rows a row group has, and its columns."""
        about = self._file.metadata
        if not number < len(self._footer) or len(self._footer[number]) != about.num_columns:
            raise ValueError(f"its footer tells of other columns in row group {number} than of the file")
        return int(about.row_group(number).num_rows), self._footer[number]


class ArrowBounds:
    """Refuses a file of Arrow whose buffers unpack to far more than it has, or more than `MOST_BYTES`."""

    def __init__(self, path: Path) -> None:
        self._stored, self._size = path.stat().st_size, 0

    def add(self, message: Any) -> None:
        """Looks at a record batch before it is read.

        Args:
          message: `pyarrow.ipc.Message`.

        Raises:
          ValueError: with those before it, it is too large; or it makes no sense.
        """
        self._size += unpacked_bytes(memoryview(message.metadata), memoryview(message.body))
        _check(self._size, _most(self._stored), self._stored)


def _most(stored: int) -> int:
    return min(MOST_BYTES, max(_FREE_BYTES, _MOST_EXPANSION * stored))


def _check(size: int, most: int, stored: int) -> None:
    if size > most:
        raise ValueError(f"has {size:,} bytes to read at once, of {stored:,} in the file; at most {most:,} are read")


@dataclass
class _Texts:
    """Texts of a column whose lengths the headers do not tell.

    Attributes:
      leaf: the column's path.
      is_in_lists: whether a row may have several.
      at_most: bytes, were each as long as it can be.
      longest: bytes of the longest one that is told by a prefix; 0 where all others are in dictionaries.
    """

    leaf: str
    is_in_lists: bool
    at_most: int = 0
    longest: int = 0

    def add(self, pages: Pages) -> None:
        """Those of a row group."""
        self.at_most += pages.by_dictionary * pages.dictionary + pages.by_prefix * pages.largest
        self.longest = max(self.longest, pages.largest if pages.by_prefix else 0)

    def measured(self, path: Path, groups: list[int], most: int) -> int:
        """Their bytes, or more than `most`: read a few at a time, each of a dictionary once."""
        from pyarrow.parquet import ParquetFile

        if self.longest and self.is_in_lists:
            return self.at_most
        rows = _MOST_ROWS if not self.longest else min(_MOST_ROWS, max(1, _FREE_BYTES // self.longest))
        by_dictionary, size = [] if self.longest else [self.leaf], 0
        with ParquetFile(path, read_dictionary=by_dictionary, memory_map=False, buffer_size=_BUFFER_BYTES) as file:
            for group in groups:  # each has a dictionary of its own, and pyarrow joins none in lists
                for batch in file.iter_batches(rows, row_groups=[group], columns=[self.leaf]):
                    size += sum(map(_bytes, batch.columns))
                    if size > most:
                        return size
        return size


class _Leaf(NamedTuple):
    """A column without others below it.

    Attributes:
      number, path: which.
      width: bytes of a value.
      is_text: whether values are texts.
      is_in_lists: whether a row may have several.
      of_each: how many values lists of one size make of a row that has none; or, where other lists are around these, of a value.
      is_of_rows: the former.
    """

    number: int
    path: str
    width: int
    is_text: bool
    is_in_lists: bool
    of_each: int
    is_of_rows: bool

    def slots(self, rows: int, values: int) -> int:
        """How many values there are in memory at most."""
        return max(rows, values, self.of_each * (rows if self.is_of_rows else values))


def _leaves(file: Any, wanted: frozenset[str] | None) -> Iterator[_Leaf]:
    """Those below the columns of these names, as pyarrow takes names."""
    schema = file.schema
    lists = [one for field in file.schema_arrow for one in _lists(field.type)]
    if len(lists) != file.metadata.num_columns:
        raise ValueError("its schema for Arrow has other columns than the file")
    for number, (of_each, is_of_rows) in enumerate(lists):
        told = schema.column(number)
        path, kind, is_in_lists = told.path, told.physical_type, told.max_repetition_level > 0
        parts = path.split(".")
        if wanted is None or any(".".join(parts[:stop]) in wanted for stop in range(1, len(parts) + 1)):
            width = _OF_A_TEXT if kind == _TEXT else _WIDTHS.get(kind) or max(1, told.length)
            width += _OF_A_LIST if is_in_lists else 0
            yield _Leaf(number, path, width, kind == _TEXT, is_in_lists, of_each, is_of_rows)


def _lists(kind: Any, of_each: int = 1, is_of_rows: bool = True) -> Iterator[tuple[int, bool]]:
    """(`of_each`, `is_of_rows`) of each leaf of a type: pyarrow fills lists of one size where there are none."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        yield from _lists(kind.storage_type, of_each, is_of_rows)
    elif pa.types.is_fixed_size_list(kind):
        yield from _lists(kind.value_type, of_each * max(1, kind.list_size), is_of_rows)
    elif pa.types.is_map(kind):
        yield from _lists(kind.key_type, of_each, False)
        yield from _lists(kind.item_type, of_each, False)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _lists(field.type, of_each, is_of_rows)
    elif hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        yield from _lists(kind.value_type, of_each, False)
    else:
        yield of_each, is_of_rows


class _Chunks:
    """Columns of row groups, by what their pages' headers tell.

    Attributes:
      stored: bytes in the file.
      size: bytes that the values take, but for those of `texts`.
      texts: by path.
    """

    def __init__(self, raw: int, groups: Iterable[tuple[int, tuple[Chunk, ...]]], leaves: list[_Leaf]) -> None:
        self.stored = self.size = 0
        self.texts: dict[str, _Texts] = {}
        for rows, chunks in groups:
            for leaf in leaves:
                self._add(raw, chunks[leaf.number], rows, leaf)

    def _add(self, raw: int, chunk: Chunk, rows: int, leaf: _Leaf) -> None:
        if chunk.start < 0:
            raise ValueError("a column lies outside of the file")
        pages = pages_of(raw, chunk.start, max(0, chunk.stored), chunk.values)
        self.stored += chunk.stored
        self.size += max(pages.unpacked, leaf.width * leaf.slots(rows, max(pages.values, chunk.values)))
        if leaf.is_text and (pages.by_prefix or pages.by_dictionary):
            self.texts.setdefault(leaf.path, _Texts(leaf.path, leaf.is_in_lists)).add(pages)


def _bytes(column: Any) -> int:
    import pyarrow as pa

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        lengths = np.array([len(one) for one in column.dictionary.cast(pa.large_binary()).to_pylist()], np.int64)
        return int(lengths[column.indices.drop_null().to_numpy()].sum()) if len(lengths) else 0
    if pa.types.is_struct(column.type):
        return sum(map(_bytes, column.flatten()))
    if hasattr(column, "flatten") and pa.types.is_nested(column.type):
        return _bytes(column.flatten())
    return int(column.nbytes)
