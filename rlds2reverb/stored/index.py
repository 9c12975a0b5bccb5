"""What the items of a table point to, all together: which rows of which episodes, and in which tensors these lie.

An item is a *window* when each of its columns is consecutive rows of one sequence of its writer's, and when all items read the rows of
their columns in the same way: column c begins `shifts[c]` rows after the first column, and is as long, or always equally long. Only
then do rows put together make the sequence that was cut. What is noted of an item is three numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.stored.chunks import Chunks
from rlds2reverb.stored.items import Items
from rlds2reverb.wire.sample.pointers import Pointers
from rlds2reverb.wire.sample.spans import starts_of
from rlds2reverb.wire.sample.templates import Templates

_MOST_COLUMNS = 1 << 14


@dataclass(frozen=True, eq=False)
class Index:
    """The items of a table.

    Attributes:
      keys: [n] uint64, the items'.
      inserted: [n] int64, ns since 1970; 0 where that is not told.
      columns: how many every item has.
      squeezed: [columns] bool, which have no axis of rows.
      shifts: [columns] int64, rows from the first of the first column to the first of each.
      lengths: [columns] int64: of those that are equally long in all items; 0 for those as long as the item's first column.
      tensors: [chunks, columns] int16: in which tensor of a chunk a column lies; -1 where no item says so.
      episodes: [n] int64, numbers in `Chunks.episodes`' distinct values, see `sequences`.
      starts, stops: [n] int64, rows of the first column.
      sequences: distinct episode numbers of the chunks, uint64.
      unlike: why the items are no windows: one of them, and what it reads; "" when they are.
    """

    keys: Array
    inserted: Array
    columns: int
    squeezed: Array
    shifts: Array
    lengths: Array
    tensors: Array
    episodes: Array
    starts: Array
    stops: Array
    sequences: Array
    unlike: str = ""


def index_of(name: str, items: Items, chunks: Chunks) -> Index:
    """Reads all items once.

    Args:
      name: of the source, for messages.
      items: at least one.
      chunks: all that they refer to.

    Raises:
      SourceError: an item cannot be read, points to a chunk that is not there, or has other columns than those before.
    """
    return _Indexing(name, chunks).of(items.parts())


class _Windows:
    """What columns of some items read. [items, columns] each.

    Attributes:
      episodes: number of the writer's sequence; -1 where the column is not consecutive rows of one.
      starts, lengths: rows.
    """

    def __init__(self, episodes: Array, starts: Array, lengths: Array) -> None:
        self.episodes, self.starts, self.lengths = episodes, starts, lengths


class _Indexing:
    """An index in the making."""

    def __init__(self, name: str, chunks: Chunks) -> None:
        self._name, self._chunks, self._templates = name, chunks, Templates()
        self._sequences, self._sequence_of_chunk = np.unique(chunks.episodes, return_inverse=True)
        self._parts: list[tuple[Array, ...]] = []
        self._columns = 0
        self._squeezed = self._shifts = self._lengths = np.zeros(0, np.int64)
        self._tensors = np.zeros((0, 0), np.int16)
        self._is_like_first = self._is_even = np.zeros(0, bool)
        self._unlike = ""

    def of(self, parts: Iterable[Sequence[Any]]) -> Index:
        """The index of all parts."""
        for items in parts:
            self._take(items)
        if not self._parts:
            raise SourceError(
                f"{self._name}: the table holds no items, so there is nothing to read, and nothing tells its spec"
            )
        keys, inserted, episodes, starts, stops = map(np.concatenate, zip(*self._parts))
        return Index(
            keys,
            inserted,
            self._columns,
            self._squeezed,
            self._shifts,
            np.where(self._is_like_first, 0, self._lengths),
            self._tensors,
            episodes,
            starts,
            stops,
            self._sequences,
            self._unlike,
        )

    def _take(self, items: Sequence[Any]) -> None:
        keys = np.array([item.key for item in items], np.uint64)
        inserted = np.array([item.inserted_at.seconds * 10**9 + item.inserted_at.nanos for item in items], np.int64)
        try:
            pointers = self._templates.read([item.flat_trajectory for item in items])
        except WireError as error:
            raise SourceError(
                f"{self._name}: one of the items {keys[0]} to {keys[-1]} cannot be read: {error}"
            ) from error
        self._check_columns(keys, pointers)
        numbers = self._chunks.find(pointers.slices.keys)
        if (numbers < 0).any():
            at = int(np.flatnonzero(numbers < 0)[0])
            item = keys[np.searchsorted(np.cumsum(pointers.item_slice_counts()), at, side="right")]
            raise SourceError(
                f"{self._name}: item {item} points to chunk {pointers.slices.keys[at]}, which is not there"
            )
        self._note_tensors(numbers, pointers)
        windows = self._windows(numbers, pointers)
        if not self._unlike:
            self._compare(keys, windows)
        starts = windows.starts[:, 0]
        self._parts.append((keys, inserted, windows.episodes[:, 0], starts, starts + windows.lengths[:, 0]))

    def _check_columns(self, keys: Array, pointers: Pointers) -> None:
        if not self._columns:
            columns = self._columns = int(pointers.column_counts[0])
            if columns > _MOST_COLUMNS:
                raise SourceError(
                    f"{self._name}: item {keys[0]} has {columns:,} columns, expected at most {_MOST_COLUMNS:,}"
                )
            self._squeezed = pointers.squeezed[:columns]
            self._shifts = self._lengths = np.zeros(columns, np.int64)
            self._tensors = np.full((len(self._chunks), columns), -1, np.int16)
            self._is_like_first = self._is_even = np.ones(columns, bool)
        other = pointers.column_counts != self._columns
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise SourceError(
                f"{self._name}: item {keys[at]} has {pointers.column_counts[at]} columns, those before have {self._columns}"
            )
        squeezed = (pointers.squeezed.reshape(-1, self._columns) != self._squeezed).any(axis=1)
        if squeezed.any():
            self._refuse(keys[np.flatnonzero(squeezed)[0]], "has an axis of rows where others have none, or has none")

    def _note_tensors(self, numbers: Array, pointers: Pointers) -> None:
        column_of_slice = np.repeat(np.arange(len(pointers.slice_counts)) % self._columns, pointers.slice_counts)
        tensors = np.minimum(pointers.slices.tensors, np.iinfo(np.int16).max).astype(np.int16)
        before = self._tensors[numbers, column_of_slice]
        self._tensors[numbers, column_of_slice] = tensors
        changed = ((before >= 0) & (before != tensors)) | (self._tensors[numbers, column_of_slice] != tensors)
        if changed.any() and not self._unlike:
            self._unlike = (
                "a column lies in one tensor of a chunk for one item, and in another one of it for another item"
            )

    def _windows(self, numbers: Array, pointers: Pointers) -> _Windows:
        slices, counts = pointers.slices, pointers.slice_counts
        firsts = starts_of(counts)
        starts = self._chunks.starts[numbers] + slices.offsets
        stops = starts + slices.lengths
        sequences = self._sequence_of_chunk[numbers]
        is_told = (slices.offsets >= 0) & (slices.offsets + slices.lengths <= self._chunks.rows[numbers])
        goes_on = np.ones(len(starts), bool)
        goes_on[1:] = (starts[1:] == stops[:-1]) & (sequences[1:] == sequences[:-1])
        goes_on[firsts] = True
        is_window = np.logical_and.reduceat(is_told & goes_on, firsts)
        lengths = np.add.reduceat(slices.lengths, firsts)
        shape = (-1, self._columns)
        return _Windows(
            np.where(is_window, sequences[firsts], -1).reshape(shape),
            starts[firsts].reshape(shape),
            lengths.reshape(shape),
        )

    def _compare(self, keys: Array, windows: _Windows) -> None:
        """Whether these items read their columns as those before did."""
        shifts = windows.starts - windows.starts[:, :1]
        if not self._parts:
            self._shifts, self._lengths = shifts[0], windows.lengths[0]
        self._is_like_first = self._is_like_first & (windows.lengths == windows.lengths[:, :1]).all(axis=0)
        self._is_even = self._is_even & (windows.lengths == self._lengths).all(axis=0)
        of_no_one = (windows.episodes < 0) | (windows.episodes != windows.episodes[:, :1])
        shifted = shifts != self._shifts
        longer = np.broadcast_to(~(self._is_like_first | self._is_even), shifts.shape)
        for bad, what in (
            (of_no_one, "reads rows of which nothing tells the order, or of several sequences"),
            (shifted, "begins at another row beside those of its first column than in other items"),
            (longer, "is as long as the first column in some items, and not in others"),
        ):
            if bad.any():
                item, column = np.argwhere(bad)[0]
                self._refuse(keys[item], what, int(column))
                return

    def _refuse(self, key: Any, what: str, column: int | None = None) -> None:
        where = "" if column is None else f", column {column},"
        self._unlike = self._unlike or f"item {key}{where} {what}"
