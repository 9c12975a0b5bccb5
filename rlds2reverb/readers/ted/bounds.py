"""Where trajectories begin and end, from ids or end flags in the order of recording.

As TorchRL's `find_start_stop_traj`: an id that changes, or an end flag, ends a trajectory; what is recorded last always ends one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array


@dataclass(frozen=True)
class Bounds:
    """Trajectories, one column of the batch after the other.

    Attributes:
      column: [n] which column.
      start, stop: [n] rows of it, the stop exclusive.
    """

    column: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.start)

    def only(self, wanted: Array) -> Bounds:
        """Those that a mask [n] marks."""
        return Bounds(self.column[wanted], self.start[wanted], self.stop[wanted])


def flattened(values: Array, dims: int = 1) -> Array:
    """The same values with all sizes behind the first `dims` as one."""
    return values.reshape(*values.shape[:dims], math.prod(values.shape[dims:]))


def any_of(values: Array, dims: int = 1) -> Array:
    """[...], the first `dims` sizes: whether there is another value than 0 behind them.

    >>> any_of(np.array([[0, 2], [0, 0]]))
    array([ True, False])
    """
    flat = flattened(values, dims)
    return np.asarray(flat[..., 0] != 0 if flat.shape[-1] == 1 else (flat != 0).any(axis=-1))


def ends_of_ids(ids: Array) -> Array:
    """[columns, rows] of ids -> where the next one differs.

    >>> ends_of_ids(np.array([[5, 5, 0, 0, 1]]))
    array([[False,  True, False,  True, False]])
    """
    ends = np.zeros(ids.shape, bool)
    ends[:, :-1] = ids[:, 1:] != ids[:, :-1]
    return ends


def cut(ends: Array, valid: Array | None = None) -> Bounds:
    """Trajectories from end flags.

    Args:
      ends: [columns, rows], changed here.
      valid: [columns] how many rows of each were recorded; all by default.

    >>> cut(np.array([[False, True, False, False]]))
    Bounds(column=array([0, 0]), start=array([0, 2]), stop=array([2, 4]))
    """
    columns, rows = ends.shape
    if valid is None:
        valid = np.full(columns, rows)
    ends &= np.arange(rows) < valid[:, None]
    some = np.flatnonzero(valid)
    ends[some, valid[some] - 1] = True
    column, last = np.nonzero(ends)
    stop = last + 1
    start = np.zeros_like(stop)
    start[1:] = np.where(column[1:] == column[:-1], stop[:-1], 0)
    return Bounds(column, start, stop)


def each_row(columns: int, valid: Array) -> Bounds:
    """Every row as a trajectory of its own."""
    column = np.repeat(np.arange(columns), valid)
    start = np.arange(len(column)) - np.repeat(np.cumsum(valid) - valid, valid)
    return Bounds(column, start, start + 1)
