"""What sampled items point to, many items side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire.sample.spans import spread, starts_of


class Slices(NamedTuple):
    """[slices] each: what one slice points to.

    Attributes:
      keys: uint64, the chunk's.
      offsets, lengths: int64, rows.
      tensors: int64, the number of the tensor in the chunk.
    """

    keys: Array
    offsets: Array
    lengths: Array
    tensors: Array


@dataclass(frozen=True, eq=False)
class Pointers:
    """What the columns of some items point to. Every item has columns, every column has slices.

    Attributes:
      slices: of all columns, item by item, column by column.
      slice_counts: [columns] int64, slices of each column of all items.
      squeezed: [columns] bool.
      column_counts: [items] int64, columns of each item.
    """

    slices: Slices
    slice_counts: Array
    squeezed: Array
    column_counts: Array

    def __len__(self) -> int:
        return len(self.column_counts)

    def item_slice_counts(self) -> Array:
        """[items] int64: slices of each."""
        counts: Array = np.add.reduceat(self.slice_counts, starts_of(self.column_counts))
        return counts

    def part(self, first: int, end: int) -> Pointers:
        """Those of the items [first, end)."""
        if (first, end) == (0, len(self)):
            return self
        a, b = int(self.column_counts[:first].sum()), int(self.column_counts[:end].sum())
        c, d = int(self.slice_counts[:a].sum()), int(self.slice_counts[:b].sum())
        return Pointers(
            Slices(*(values[c:d] for values in self.slices)),
            self.slice_counts[a:b],
            self.squeezed[a:b],
            self.column_counts[first:end],
        )

    def chosen(self, items: Array) -> Pointers:
        """Those of the items of these numbers, in that order."""
        columns = spread(starts_of(self.column_counts)[items], self.column_counts[items])
        slices = spread(starts_of(self.slice_counts)[columns], self.slice_counts[columns])
        return Pointers(
            Slices(*(values[slices] for values in self.slices)),
            self.slice_counts[columns],
            self.squeezed[columns],
            self.column_counts[items],
        )

    def first_of_equal_keys(self) -> Array:
        """[slices] int64: a slice with the same chunk; of a column that reads the same chunks as its item's first, one of that."""
        counts = self.slice_counts
        column_starts = starts_of(counts)
        first_columns = np.repeat(starts_of(self.column_counts), self.column_counts)
        moved = np.repeat(column_starts - column_starts[first_columns], counts)
        own = np.arange(len(moved))
        like = own - moved
        # A column with more slices than the first one has: what is beyond would be compared with a slice of another column.
        ends_of_first = np.repeat((column_starts + counts)[first_columns], counts)
        is_equal = (like < ends_of_first) & (self.slices.keys[like] == self.slices.keys)
        return np.where(is_equal, like, own)


def joined(parts: Sequence[Pointers]) -> Pointers:
    """The items of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Pointers(
        Slices(*(np.concatenate(values) for values in zip(*(part.slices for part in parts)))),
        np.concatenate([part.slice_counts for part in parts]),
        np.concatenate([part.squeezed for part in parts]),
        np.concatenate([part.column_counts for part in parts]),
    )
