"""The Flat and Nested forms: observations once, with one more for every trajectory's end.

Steps are [columns * rows], a column after the other, oldest first. Step number s of these has its observation in row
s + (ended trajectories before s); what came after an end stands behind it. Ends are `done`, and where recording stopped: the step
before `shift` in a storage that is not full, else the last of each column. The Nested form is the same bytes, by trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ted.bounds import cut, each_row, ends_of_ids
from rlds2reverb.readers.ted.folders import Folder
from rlds2reverb.readers.ted.incomplete import final_lost, without_incomplete
from rlds2reverb.readers.ted.keys import (
    DONES,
    NEXT,
    REWARD,
    ROWS,
    TedOptions,
    id_key,
    last_part,
)
from rlds2reverb.readers.ted.leaves import Leaf, unchanged
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import counted, shortened

_OF_THE_FORM = ("_storage_shape", "shift", "is_full")


def is_flat(folder: Folder) -> bool:
    """Whether a folder is of one of these forms."""
    return all(key in folder.others for key in _OF_THE_FORM)


class FlatTrajectories:
    """The trajectories of a buffer in the Flat or the Nested form.

    Args:
      name: for messages.
      folder: what was read.
      leaves: its leaves, under the names that options give them.
      valid: steps that were recorded, of all columns; None for what `shift` says.
      options: how to read.
    """

    def __init__(
        self, name: str, folder: Folder, leaves: Mapping[str, Leaf], valid: int | None, options: TedOptions
    ) -> None:
        self._name, self._options = name, options
        self.columns, self.rows, shift, is_full = self._form(folder)
        self.constants = {key: value for key, value in folder.others.items() if key not in _OF_THE_FORM}
        self._leaves = {
            (NEXT + key if last_part(key) in DONES | {REWARD} else key): leaf for key, leaf in leaves.items()
        }
        steps = self.columns * self.rows
        done = self._leaves.get(f"{NEXT}done")
        if done is None or done.dtype != bool or done.shape not in ((steps,), (steps, 1)):
            raise SourceError(f'{name}: expected a key "done" of {counted(steps, "step")}, as _storage_shape says')
        ends = (done.values != 0).reshape(self.columns, self.rows)
        recorded = ends.copy()
        self.last = self.rows if is_full else shift
        self._is_overwritten = is_full and 0 < shift < self.rows
        ends[:, self.last - 1] = True
        self._ends = np.flatnonzero(ends)
        self._check_sizes(steps)
        self.id_key = id_key(name, options.trajectories, self._leaves)
        self._cut(recorded, ends, self.last if valid is None or is_full else min(self.last, valid // self.columns))

    @property
    def count(self) -> int:
        """How many trajectories."""
        return len(self._bounds)

    @cached_property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys with one row more for each end."""
        steps = self.columns * self.rows
        return {
            key: ArraySpec(leaf.shape[1:], leaf.dtype) for key, leaf in self._leaves.items() if leaf.shape[0] != steps
        }

    @cached_property
    def steps(self) -> Mapping[str, ArraySpec]:
        """The others."""
        return {
            key: ArraySpec(leaf.shape[1:], leaf.dtype)
            for key, leaf in self._leaves.items()
            if key not in self.observed and key != "index"
        }

    @contextmanager
    def reading(self) -> Iterator[FlatTrajectories]:
        """Nothing to open: files are mapped."""
        with unchanged(self._leaves.values()):
            yield self

    def step(self, key: str, number: int) -> Array:
        """[T, ...]."""
        start, stop = self._place(number)
        return _true(self._leaves[key], slice(start, stop))

    def observe(self, key: str, number: int) -> Array:
        """[T + 1, ...]."""
        start, stop = self._place(number)
        before = np.searchsorted(self._ends, [start, stop - 1])
        first, last = start + int(before[0]), stop - 1 + int(before[1]) + 1
        inside = self._ends[before[0] : before[1]]
        leaf = self._leaves[key]
        if not len(inside):
            return _true(leaf, slice(first, last + 1))
        skipped = inside - start + 1 + np.arange(len(inside))
        return np.delete(_true(leaf, slice(first, last + 1)), skipped, 0)

    def id(self, number: int) -> Any:
        """What its id key has in its first step."""
        return self._id_values().reshape(-1)[self._place(number)[0]]

    def _place(self, number: int) -> tuple[int, int]:
        at = int(self._bounds.column[number]) * self.rows
        return at + int(self._bounds.start[number]), at + int(self._bounds.stop[number])

    def _form(self, folder: Folder) -> tuple[int, int, int, bool]:
        """Columns, rows, shift and whether it is full."""
        shape, shift, is_full = (folder.others[key] for key in _OF_THE_FORM)
        sizes = [shape] if isinstance(shape, int) else shape
        if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise SourceError(f"{self._name}: _storage_shape {shortened(repr(shape))}: expected sizes")
        columns = 1
        for size in sizes[1:]:
            columns *= size
        if type(is_full) is not bool or type(shift) is not int or not (is_full or 0 < shift <= sizes[0]):
            raise SourceError(
                f"{self._name}: shift {shortened(repr(shift))}, is_full {shortened(repr(is_full))}: expected a row of {sizes[0]:,}"
            )
        return columns, sizes[0], shift, is_full

    def _check_sizes(self, steps: int) -> None:
        """Steps have a row for each, observations one more for each end that was marked when they were written.

        Rows after `shift` were never recorded, and may hold anything.
        """
        least = steps - (self.rows - self.last) + len(self._ends[self._ends < steps - (self.rows - self.last)])
        for key, leaf in self._leaves.items():
            if not leaf.shape or (leaf.shape[0] != steps and (leaf.shape[0] < least or key.startswith(NEXT))):
                found = leaf.shape[0] if leaf.shape else 0
                raise SourceError(
                    f"{self._name}: {key}: has {counted(found, 'row')}; expected {steps:,} steps, or at least {least:,} observations"
                )

    def _cut(self, recorded: Array, ends: Array, valid: int) -> None:
        shape = (self.columns, self.rows)
        each = np.full(self.columns, valid)
        remarks: tuple[Remark, ...] = ()
        lost: list[Remark] = []
        if self._options.trajectories == ROWS:
            self._bounds = each_row(self.columns, each)
        else:
            bounds = cut(ends.copy(), each)
            if self.id_key:
                bounds = cut(ends_of_ids(self._id_values().reshape(shape)), each)
                unmarked = ~ends[bounds.column, bounds.stop - 1]
                bounds.stop[unmarked] -= 1
                left = bounds.stop > bounds.start
                lost = final_lost(int(unmarked.sum()), int((~left).sum()))
                bounds = bounds.only(left)
            self._bounds, remarks = without_incomplete(
                bounds, recorded, self._is_overwritten, self._options.drop_incomplete
            )
        self.remarks = (*remarks, *lost)

    def _id_values(self) -> Array:
        """[columns * rows, ...] the id of each step; where ids stand under `next` as well, they have one row more for each end."""
        leaf, steps = self._leaves[self.id_key], self.columns * self.rows
        if leaf.shape[1:] not in ((), (1,)):
            raise SourceError(
                f"{self._name}: {self.id_key}: has {list(leaf.shape[1:])} for each step; expected one id; trajectories=done parts by end flags"
            )
        if leaf.shape[0] == steps:
            return leaf.values
        step = np.arange(steps)
        return np.asarray(leaf.values[np.minimum(step + np.searchsorted(self._ends, step), leaf.shape[0] - 1)])


def _true(leaf: Leaf, rows: slice) -> Array:
    found = leaf.values[rows]
    return np.asarray(found != 0 if leaf.dtype == bool else found)
