"""What items point to -> rows of the arena -> columns of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample.arena import Arena
from rlds2reverb.wire.sample.pointers import Pointers
from rlds2reverb.wire.sample.spans import is_even, spread, starts_of

Column = Array | list[Array]
"""[B, ...] where all items of the batch have one shape and dtype; else B arrays."""


_MOST_ROWS = 1 << 28
"""Of one response, all columns together. A few bytes can ask for any number: the same rows again and again, or rows without values."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the values of some items lie in the arena; all items have as many columns.

    Attributes:
      first_rows: [slices] int64, where each slice begins: item by item, column by column.
      slice_lengths: [slices] int64, rows of each.
      slice_counts: [items, columns] int64, slices of each column.
      lengths: [items, columns] int64, rows of each.
      kinds: [items, columns] int64, the arena's number of what the rows are.
      squeezed: [items, columns] bool.
    """

    first_rows: Array
    slice_lengths: Array
    slice_counts: Array
    lengths: Array
    kinds: Array
    squeezed: Array

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def columns(self) -> int:
        """How many each item has."""
        return int(self.lengths.shape[1])

    def part(self, first: int, end: int) -> Rows:
        """Those of the items [first, end)."""
        if (first, end) == (0, len(self)):
            return self
        begin, stop = int(self.slice_counts[:first].sum()), int(self.slice_counts[:end].sum())
        return Rows(
            *(values[begin:stop] for values in (self.first_rows, self.slice_lengths)),
            *(values[first:end] for values in (self.slice_counts, self.lengths, self.kinds, self.squeezed)),
        )


def find_rows(pointers: Pointers, numbers: Array, arena: Arena) -> Rows:
    """Where the arena has what items point to.

    Args:
      pointers: of items with equally many columns.
      numbers: [slices] int64, as `arena.find` says for their keys.
      arena: holds the chunks.

    Raises:
      WireError: a slice points to a chunk, a tensor or rows that are not there, or a column's slices do not fit together.
    """
    slices = pointers.slices
    _check(numbers >= 0, pointers, "a chunk that did not come")
    is_there = (slices.tensors >= 0) & (slices.tensors < arena.tensor_counts(numbers))
    _check(is_there, pointers, "a tensor that the chunk does not have")
    first_rows, row_counts, kinds = arena.noted(numbers + slices.tensors)
    is_inside = (slices.offsets >= 0) & (slices.lengths >= 1) & (slices.offsets + slices.lengths <= row_counts)
    _check(is_inside, pointers, "rows that the chunk does not have")
    first_slices = starts_of(pointers.slice_counts)
    column_kinds = kinds[first_slices]
    _check(
        np.repeat(column_kinds, pointers.slice_counts) == kinds,
        pointers,
        "another dtype or shape than the slices before",
    )
    lengths = np.add.reduceat(slices.lengths, first_slices)
    if (total := int(lengths.sum())) > _MOST_ROWS:
        raise WireError(f"sampled items of one response have {total} rows, more than {_MOST_ROWS}")
    _check_squeezed(lengths, pointers.squeezed)
    by_item = (len(pointers), -1)
    return Rows(
        first_rows + slices.offsets,
        slices.lengths,
        pointers.slice_counts.reshape(by_item),
        lengths.reshape(by_item),
        column_kinds.reshape(by_item),
        pointers.squeezed.reshape(by_item),
    )


def _check(is_right: Array, pointers: Pointers, wrong: str) -> None:
    if is_right.all():
        return
    at = int(np.flatnonzero(~is_right)[0])
    keys, offsets, lengths, tensors = (values[at] for values in pointers.slices)
    raise WireError(
        f"sampled item: a slice of {lengths} rows from row {offsets} on, of tensor {tensors} of chunk {keys}: it points to {wrong}"
    )


def _check_squeezed(lengths: Array, squeezed: Array) -> None:
    if np.any(wrong := squeezed & (lengths != 1)):
        raise WireError(f"sampled item: a squeezed column of {lengths[wrong][0]} rows, expected 1")


def gather(pieces: Sequence[Rows], arena: Arena) -> tuple[Column, ...]:
    """The values of all items of the pieces, copied: one column for each of theirs.

    Raises:
      WireError: the items differ in their number of columns.
    """
    if len(counts := {piece.columns for piece in pieces}) > 1:
        raise unequal_columns(counts)
    whole = pieces[0] if len(pieces) == 1 else _joined_rows(pieces)
    first_slices = starts_of(whole.slice_counts.ravel()).reshape(whole.slice_counts.shape)
    return tuple(map(partial(_column, whole, first_slices, arena), range(whole.columns)))


def unequal_columns(counts: set[int]) -> WireError:
    """Of items that cannot be in one batch."""
    return WireError(f"sampled items of one batch have {sorted(counts)} columns; batch_size=1 takes them one by one")


def _joined_rows(pieces: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(piece, one.name) for piece in pieces]) for one in fields(Rows)))


def _column(whole: Rows, first_slices_of: Array, arena: Arena, number: int) -> Column:
    first_slices = first_slices_of[:, number]
    counts, lengths = whole.slice_counts[:, number], whole.lengths[:, number]
    kinds, squeezed = whole.kinds[:, number], whole.squeezed[:, number]
    if is_even(lengths) and is_even(kinds) and is_even(squeezed):
        index = spread(first_slices, counts)
        rows = arena.take(int(kinds[0]), whole.first_rows[index], whole.slice_lengths[index])
        axes = (len(lengths),) if squeezed[0] else (len(lengths), int(lengths[0]))
        return rows.reshape(*axes, *rows.shape[1:])
    values = []
    for first, count, kind, is_squeezed in zip(*(one.tolist() for one in (first_slices, counts, kinds, squeezed))):
        own = slice(first, first + count)
        value = arena.take(kind, whole.first_rows[own], whole.slice_lengths[own])
        values.append(value.reshape(value.shape[1:]) if is_squeezed else value)
    return stacked(values)


def stacked(values: list[Array]) -> Column:
    """One array of them where they have one shape and dtype; else they stay a list."""
    return np.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else values


def joined(columns: Sequence[Column]) -> Column:
    """Parts of one column, one after the other."""
    if len(columns) == 1:
        return columns[0]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({(column.shape[1:], column.dtype) for column in arrays}) == 1:
        return np.concatenate(arrays)
    return stacked([value for column in columns for value in _values(column)])


def _values(column: Column) -> list[Array]:
    """One array per item, each in memory of its own."""
    return column if isinstance(column, list) else [column[number, ...].copy() for number in range(len(column))]


def placed(values: Sequence[Column], places: Sequence[Array], total: int) -> Column:
    """Columns of several groups of items -> one column in which each item stands in its place.

    Args:
      values: per group [m, ...], or m arrays.
      places: per group [m], where its items stand; together each of [0, total) once.
      total: number of items.
    """
    if all(isinstance(one, np.ndarray) for one in values) and len({one.shape[1:] for one in values}) == 1:  # type: ignore[union-attr]
        out = np.empty((total, *np.shape(values[0])[1:]), values[0].dtype)  # type: ignore[union-attr]
        for one, at in zip(values, places):
            out[at] = one
        return out
    items: list[Array] = [np.empty(0)] * total
    for one, at in zip(values, places):
        for place, item in zip(at, one):
            items[place] = item
    return np.stack(items) if len({item.shape for item in items}) == 1 else items
