"""Many values of a few dimensions, laid out so that numpy is quick with them: a row of a block is many rows of a column, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array

_ROWS = 128
"""Of a block, or up to twice as many: enough that calls into numpy do not count."""
_TOGETHER = 16
"""Rows of a block that are looked at together."""
_WIDTH = 1 << 11
"""Values of a row of a block, about."""
_FOLDS = 16
"""Parts of a row: each has as many values of each dimension."""
_ENDS: tuple[np.ufunc, np.ufunc] = np.minimum, np.maximum


class Block:
    """Values of some dimensions, all of them finite.

    Args:
      values: [rows, width] contiguous float32 or float64; a row has as many values of each dimension, all dimensions in turn.
      low, high: [dimensions] smallest and largest, float64.

    Attributes:
      values, low, high: as given.
      count: values of each dimension.
      is_one: [dimensions] whether all are the same.
    """

    def __init__(self, values: Array, low: Array, high: Array) -> None:
        self.values, self.low, self.high = values, low, high
        self.count = values.size // len(low)
        self.is_one = low == high

    def parts(self, dtype: Any) -> Iterator[Array]:
        """Takes the values apart, as a dtype: [n, width] that stays in the processor's fastest caches."""
        for start in range(0, len(self.values), _TOGETHER):
            yield self.values[start : start + _TOGETHER].astype(dtype, copy=False)

    @property
    def width(self) -> int:
        """Of a row."""
        return int(self.values.shape[1])

    def sums(self, row: Array) -> Array:
        """[dimensions] sums of what belongs to the values of a row, [width]."""
        return _folded(np.add, row, len(self.low))


def across(one_each: Array, width: int) -> Array:
    """[width] what belongs to the dimensions, [dimensions], for every value of a row."""
    repeated = np.broadcast_to(one_each, (width // len(one_each), len(one_each)))
    return repeated.reshape(-1)


def whole_rows(rows: int, dimensions: int) -> int:
    """How many of so many rows of a column fill rows of blocks."""
    return rows - rows % _rows_in_row(dimensions)


def blocks_of(values: Array) -> Iterator[Block | Array]:
    """Takes [n, dimensions] apart, contiguous float32 or float64: blocks, or [m, dimensions] with values that are not finite.

    It is quick where `whole_rows` are given.
    """
    dimensions = values.shape[1]
    whole = whole_rows(len(values), dimensions)
    wide = values[:whole].reshape(-1, dimensions * _rows_in_row(dimensions))
    for part in np.array_split(wide, max(1, len(wide) // _ROWS)) if whole else ():
        yield _block(part, dimensions) or part.reshape(-1, dimensions)
    if whole < len(values):
        yield _block(values[whole:], dimensions) or values[whole:]


def _rows_in_row(dimensions: int) -> int:
    return _FOLDS * max(1, _WIDTH // _FOLDS // dimensions)


def _block(values: Array, dimensions: int) -> Block | None:
    with np.errstate(invalid="ignore"):  # NaN is found below
        ends = [_folded(end, end.reduce(values, axis=0), dimensions) for end in _ENDS]
    low, high = (end.astype(np.float64) for end in ends)
    are_finite = np.isfinite(low).all() and np.isfinite(high).all()
    return Block(values, low, high) if are_finite else None


def _folded(ufunc: np.ufunc, row: Array, dimensions: int) -> Array:
    """[dimensions] of [width]; in two steps, for numpy is slow with short rows."""
    if row.size % (_FOLDS * dimensions) == 0:
        row = ufunc.reduce(row.reshape(_FOLDS, -1), axis=0)
    folded: Array = ufunc.reduce(row.reshape(-1, dimensions), axis=0)
    return folded
