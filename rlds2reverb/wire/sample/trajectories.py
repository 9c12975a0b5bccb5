"""Trajectories of many items -> the chunks and rows that they point to.

Source: schema.proto, FlatTrajectory{columns(1){chunk_slices(1){chunk_key(1), offset(2), length(3), index(4)}, squeeze(2)}}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample import native
from rlds2reverb.wire.schema import message_class


class Slices(NamedTuple):
    """[slices] each: the chunk's key (uint64), rows (offset and length, int64), and the number of the tensor in the chunk (int64)."""

    keys: Array
    offsets: Array
    lengths: Array
    tensors: Array


@dataclass(frozen=True, eq=False)
class Pointers:
    """The slices of some items' columns. Every item has columns, every column has slices."""

    slices: Slices  # of all columns, item by item, column by column
    slice_counts: Array  # [columns] int64, slices of each column of all items
    squeezed: Array  # [columns] bool
    column_counts: Array  # [items] int64, columns of each item

    def __len__(self) -> int:
        return len(self.column_counts)

    def item_slice_counts(self) -> Array:
        """[items] int64: slices of each."""
        counts: Array = np.add.reduceat(self.slice_counts, starts_of(self.column_counts))
        return counts


def read_trajectories(trajectories: Sequence[bytes]) -> Pointers:
    """FlatTrajectory messages -> pointers.

    Raises:
      WireError: no such message, an item without columns, or a column without slices.
    """
    arrays = None if native.LIBRARY is None else native.trajectories(trajectories)
    if arrays is None:
        return read_plainly(trajectories)
    slices, slice_counts, squeezed, column_counts = arrays
    return Pointers(Slices(*slices), slice_counts, squeezed, column_counts)


def read_plainly(trajectories: Sequence[bytes]) -> Pointers:
    """As `read_trajectories`, by protobuf."""
    slices: list[tuple[int, int, int, int]] = []
    slice_counts, squeezed, column_counts = [], [], []
    for trajectory in trajectories:
        try:
            columns = message_class("FlatTrajectory").FromString(trajectory).columns
        except DecodeError as error:
            raise WireError(f"FlatTrajectory: {len(trajectory)} bytes that are no such message ({error})") from error
        if not columns:
            raise WireError("sampled item: its trajectory has no columns")
        column_counts.append(len(columns))
        for column in columns:
            pieces = column.chunk_slices
            if not pieces:
                raise WireError("sampled item: a column without slices")
            slices += [(piece.chunk_key, piece.offset, piece.length, piece.index) for piece in pieces]
            slice_counts.append(len(pieces))
            squeezed.append(column.squeeze)
    keys, *rows_and_tensors = zip(*slices)
    return Pointers(
        Slices(np.array(keys, np.uint64), *(np.array(values, np.int64) for values in rows_and_tensors)),
        np.array(slice_counts, np.int64),
        np.array(squeezed, bool),
        np.array(column_counts, np.int64),
    )


def starts_of(counts: Array) -> Array:
    """[n] counts -> [n] where each begins."""
    starts: Array = np.cumsum(counts) - counts
    return starts
