"""Trajectories of a buffer by number, each key by itself; ids or end flags, in the order of recording, say where they begin and end.

As TorchRL's `find_start_stop_traj`: an id that changes, or an end flag, ends a trajectory; what is recorded last always ends one.

`RingTrajectories`: storages in TED's own form, where the row of a step holds what it saw, what it did, and under `next` what came of it.
A storage of [rows, ...] has time first; rows [0, len) are valid, and a full one is a ring: the row under the write cursor is the oldest.
What stands before the cursor was recorded last, so a trajectory always ends there.

`FlatTrajectories`: the Flat and Nested forms, where observations stand once, with one more for every trajectory's end. Steps are
[columns * rows], a column after the other, oldest first. Step number s of these has its observation in row s + (ended trajectories
before s); what came after an end stands behind it. Ends are `done`, and where recording stopped: the step before `shift` in a storage
that is not full, else the last of each column. The Nested form is the same bytes, by trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ted.folders import Folder, HeldLeaf, Leaf, PerRow, as_column, unchanged
from rlds2reverb.formats.ted.keys import DONES, KEEP, NEXT, REWARD, ROWS, TRAJECTORY_IDS, TedOptions, id_key, last_part
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted, shortened


class TrajectoryRows(Protocol):
    """Reads the rows of trajectories."""

    def step(self, key: str, number: int) -> Array:
        """A key of `Trajectories.steps` of one trajectory: [T, ...]."""

    def observe(self, key: str, number: int) -> Array:
        """A key of `Trajectories.observed` of one trajectory, with what came after its last step: [T + 1, ...]."""

    def id(self, number: int) -> Any:
        """What `Trajectories.id_key` has in the first step of one trajectory."""


class Trajectories(Protocol):
    """The trajectories of a buffer."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def steps(self) -> Mapping[str, ArraySpec]:
        """Keys with T rows; those of the step after begin with `next/`: reward, terminated, truncated, done."""

    @property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys with T + 1 rows."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """Key -> a value of the whole buffer that is not a tensor."""

    @property
    def id_key(self) -> str:
        """The key of trajectories' ids, "" for none."""

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was found at opening."""

    def reading(self) -> AbstractContextManager[TrajectoryRows]:
        """Opens what is read from."""


@dataclass(frozen=True)
class _Bounds:
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

    def only(self, wanted: Array) -> _Bounds:
        """Those that a mask [n] marks."""
        return _Bounds(self.column[wanted], self.start[wanted], self.stop[wanted])


def flattened(values: Array, dims: int = 1) -> Array:
    """The same values with all sizes after the first `dims` as one."""
    return values.reshape(*values.shape[:dims], math.prod(values.shape[dims:]))


def any_of(values: Array, dims: int = 1) -> Array:
    """[...] of the first `dims` sizes: whether any value is not 0.

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


def cut(ends: Array, valid: Array | None = None) -> _Bounds:
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
    return _Bounds(column, start, stop)


def each_row(columns: int, valid: Array) -> _Bounds:
    """Every row as a trajectory of its own."""
    column = np.repeat(np.arange(columns), valid)
    start = np.arange(len(column)) - np.repeat(np.cumsum(valid) - valid, valid)
    return _Bounds(column, start, start + 1)


def _without_incomplete(
    bounds: _Bounds, flags: Array | None, cut_start: bool, drop: bool
) -> tuple[_Bounds, tuple[Notice, ...]]:
    """The trajectories to read, and notices about them.

    Args:
      bounds: all of them.
      flags: [columns, rows] where an end was recorded; None without end flags.
      cut_start: whether a ring was overwritten, so that the oldest may lack their beginning.
      drop: whether they are left out.
    """
    keep = np.ones(len(bounds), bool)
    notices: list[Notice] = []
    if flags is not None:
        notices += _done_inside(bounds, flags)
        open_ends = ~flags[bounds.column, bounds.stop - 1]
        keep &= ~open_ends
        notices += no_end(int(open_ends.sum()), drop)
    if cut_start:
        keep &= bounds.start > 0
        notices += overwritten(int((bounds.start == 0).sum()), drop)
    return (bounds.only(keep) if drop else bounds), tuple(notices)


def _done_inside(bounds: _Bounds, flags: Array) -> list[Notice]:
    """A notice of end flags inside trajectories that ids divide: trajectories of the same id were joined."""
    before = np.zeros((len(flags), flags.shape[1] + 1), np.int64)
    np.cumsum(flags, axis=1, out=before[:, 1:])
    inside = before[bounds.column, bounds.stop - 1] - before[bounds.column, bounds.start]
    count = int(inside.sum())
    text = (
        f"{counted(count, 'end flag')} inside {_trajectories(int((inside > 0).sum()))}, where the id does not change: "
        "one id may stand for several trajectories; trajectories=done parts them by end flags"
    )
    return [Notice("done_inside", text, count)] if count else []


def no_end(count: int, drop: bool) -> list[Notice]:
    """A notice of trajectories without an end flag."""
    text = f"{_trajectories(count)} without an end flag, where recording stopped or was overwritten; {_done(drop)}"
    return [Notice("no_end", text, count)] if count else []


def overwritten(count: int, drop: bool) -> list[Notice]:
    """A notice of trajectories that are the oldest of a ring."""
    text = f"a full ring: its oldest {_trajectories(count)} may lack the beginning; {_done(drop)}"
    return [Notice("cut_start", text, count)] if count else []


def final_lost(count: int, empty: int) -> list[Notice]:
    """A notice of trajectories that end by their id, in a form that keeps no observation after such an end.

    Args:
      count: how many there are.
      empty: how many of them had one step only, so that nothing is left.
    """
    text = (
        f"{_trajectories(count)} without an end flag before the id changes: this form keeps no observation "
        "after their last step, so that step is left out"
    )
    if empty:
        text += f"; {empty:,} of them had no other step and {'is' if empty == 1 else 'are'} left out whole"
    return [Notice("final_lost", text, count)] if count else []


def _trajectories(count: int) -> str:
    return f"{count:,} {'trajectory' if count == 1 else 'trajectories'}"


def _done(drop: bool) -> str:
    return "left out" if drop else "incomplete=drop leaves these out"


_NOT_STEPS = frozenset({"index"})
"""Root keys that buffers add; the number of a row."""


@dataclass(frozen=True)
class Grid:
    """Where the rows of a storage are.

    Attributes:
      columns: how many sequences of steps there are beside one another.
      rows: how many steps each of them has.
      valid: [columns] how many of these were recorded.
      first: the row that was recorded first.
      time_first: whether leaves are [rows, columns, ...]; else [columns, rows, ...].
      held: the rows that there is room for; of columns, where time is last.
      dims: how many leading sizes of a leaf are these.
    """

    columns: int
    rows: int
    valid: Array
    first: int = 0
    time_first: bool = True
    held: int = 0
    dims: int = 1

    def shaped(self, values: Array) -> Array:
        """A leaf as [held, columns, ...], or [columns, rows, ...] where time is last."""
        return values.reshape(self.held, self.columns if self.time_first else self.rows, *values.shape[self.dims :])

    def take(self, shaped: Array, column: int, start: int, stop: int) -> Array:
        """[stop - start, ...] of a column, in the order of recording; may be a view."""
        if not self.time_first:
            return shaped[column, start:stop]
        start, stop = start + self.first, stop + self.first
        if stop <= self.held:
            return shaped[start:stop, column]
        if start >= self.held:
            return shaped[start - self.held : stop - self.held, column]
        return np.concatenate([shaped[start:, column], shaped[: stop - self.held, column]])

    def all(self, shaped: Array) -> Array:
        """[columns, rows, ...] in the order of recording."""
        if not self.time_first:
            return shaped[: self.columns]
        ordered = shaped[: self.rows] if not self.first else np.roll(shaped, -self.first, 0)
        return np.moveaxis(ordered, 0, 1)


class RingTrajectories:
    """The trajectories of a storage."""

    def __init__(
        self, name: str, folder: Folder, leaves: Mapping[str, Leaf], grid: Grid, options: TedOptions, cut_start: bool
    ) -> None:
        self.grid, self._options, self._name = grid, options, name
        self._shaped: dict[str, Array] = {}
        self._leaves = {**leaves, **_texts(folder, grid)}
        self.constants = {key: value for key, value in folder.others.items() if not isinstance(value, PerRow)}
        for key, leaf in self._leaves.items():
            if leaf.shape[: grid.dims] != folder.batch[: grid.dims]:
                raise SourceError(
                    f"{name}: {key}: has shape {list(leaf.shape)}; expected it to begin with {list(folder.batch)}"
                )
        self.id_key = id_key(name, options.trajectories, self._leaves)
        self._bounds, notices = self._cut(cut_start)
        self.notices = (*notices, *self._root_notices())

    @property
    def count(self) -> int:
        """How many trajectories."""
        return len(self._bounds)

    @cached_property
    def observed(self) -> Mapping[str, ArraySpec]:
        """What stands at the root and under `next` alike."""
        return {
            key: self._spec(leaf)
            for key, leaf in self._leaves.items()
            if not key.startswith(NEXT)
            and last_part(key) not in DONES | {REWARD}
            and NEXT + key in self._leaves
            and self._spec(self._leaves[NEXT + key]) == self._spec(leaf)
        }

    @cached_property
    def steps(self) -> Mapping[str, ArraySpec]:
        """The other keys, but for the root's end flags."""
        kept = self._options.next == KEEP
        return {
            key: self._spec(leaf)
            for key, leaf in self._leaves.items()
            if (
                (kept or key[len(NEXT) :] not in self.observed)
                if key.startswith(NEXT)
                else key not in self.observed
                and last_part(key) not in DONES
                and key not in _NOT_STEPS
                and not self._is_root_reward(key)
            )
        }

    @contextmanager
    def reading(self) -> Iterator[RingTrajectories]:
        """Checks the files, which are mapped already."""
        with unchanged(self._leaves.values()):
            yield self

    def step(self, key: str, number: int) -> Array:
        """[T, ...]."""
        return self._take(key, *self._place(number))

    def observe(self, key: str, number: int) -> Array:
        """[T + 1, ...]: the root's rows, and the last one of `next`."""
        column, start, stop = self._place(number)
        return np.concatenate([self._take(key, column, start, stop), self._take(NEXT + key, column, stop - 1, stop)])

    def id(self, number: int) -> Any:
        """What its id key has in its first step."""
        column, start, _ = self._place(number)
        return self._take(self.id_key, column, start, start + 1).reshape(-1)[0]

    def differs(self, key: str, number: int, most: int | None = None) -> Array:
        """Steps of a trajectory whose `next` is not what the step after it saw; of the first `most` steps."""
        column, start, stop = self._place(number)
        stop = stop if most is None else min(stop, start + most + 1)
        after = self.grid.take(self._values(NEXT + key), column, start, stop - 1)
        root = self.grid.take(self._values(key), column, start + 1, stop)
        return np.flatnonzero((_as_bytes(after) != _as_bytes(root)).any(axis=1))

    def _values(self, key: str) -> Array:
        if key not in self._shaped:
            self._shaped[key] = self.grid.shaped(self._leaves[key].values)
        return self._shaped[key]

    def _place(self, number: int) -> tuple[int, int, int]:
        bounds = self._bounds
        return int(bounds.column[number]), int(bounds.start[number]), int(bounds.stop[number])

    def _take(self, key: str, column: int, start: int, stop: int) -> Array:
        found = self.grid.take(self._values(key), column, start, stop)
        return np.asarray(found != 0 if self._leaves[key].dtype == bool else found)

    def _spec(self, leaf: Leaf) -> ArraySpec:
        return ArraySpec(leaf.shape[self.grid.dims :], leaf.dtype)

    def _is_root_reward(self, key: str) -> bool:
        return last_part(key) == REWARD and NEXT + key in self._leaves

    def _flags(self) -> Array | None:
        """[columns, rows] where an episode ends; None if there are no end flags."""
        known = [key for key in (NEXT + "done",) if key in self._leaves]
        known = known or [NEXT + key for key in ("terminated", "truncated") if NEXT + key in self._leaves]
        if not known:
            return None
        return np.asarray(np.logical_or.reduce([any_of(self.grid.all(self._values(key)), 2) for key in known]))

    def _root_notices(self) -> list[Notice]:
        """End flags at the root are False except after partial resets; TorchRL's other forms assume False."""
        keys = [key for key in sorted(self._leaves) if last_part(key) in DONES and not key.startswith(NEXT)]
        valid = np.arange(self.grid.rows) < self.grid.valid[:, None]
        counts = {key: int((any_of(self.grid.all(self._values(key)), 2) & valid).sum()) for key in keys}
        counted_keys = [
            f"{key.replace('/', '.')} in {counted(count, 'step')}" for key, count in counts.items() if count
        ]
        text = f"end flags at the root, {', '.join(counted_keys)}, are not read: steps that begin in a state that is over, as after a partial reset"
        return [Notice("root_done", text, max(counts.values()))] if counted_keys else []

    def _cut(self, cut_start: bool) -> tuple[_Bounds, tuple[Notice, ...]]:
        grid, options = self.grid, self._options
        flags = self._flags()
        if options.trajectories == ROWS:
            return each_row(grid.columns, grid.valid), ()
        if self.id_key:
            ids = self.grid.all(self._values(self.id_key))
            if ids.shape[2:] not in ((), (1,)):
                raise SourceError(
                    f"{self._name}: {self.id_key}: has {list(ids.shape[2:])} for each step; expected one id; trajectories=done parts by end flags"
                )
            bounds = cut(ends_of_ids(ids.reshape(ids.shape[:2])), grid.valid)
        elif flags is None:
            raise SourceError(
                f"{self._name}: nothing tells where trajectories end: neither {' nor '.join(TRAJECTORY_IDS)} nor next/done is there; "
                "name a key by trajectories=KEY or done=KEY, or have every step as an episode by trajectories=rows"
            )
        else:
            bounds = cut(flags.copy(), grid.valid)
        return _without_incomplete(bounds, flags, cut_start, options.drop_incomplete)


def _texts(folder: Folder, grid: Grid) -> dict[str, HeldLeaf]:
    """Leaves of values per row that are not tensors: texts or numbers."""
    made = {}
    for key, held in folder.others.items():
        if (
            isinstance(held, PerRow)
            and len(folder.batch) == 1
            and len(held.values) == folder.batch[0]
            and grid.time_first
        ):
            column = as_column(held.values)
            made[key] = HeldLeaf(column.view(np.uint8) if column.dtype == bool else column, column.dtype)
    return made


def _as_bytes(values: Array) -> Array:
    flat = flattened(np.ascontiguousarray(values))
    return flat if flat.dtype == object else flat.view(np.uint8)


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
        """Checks the files, which are mapped already."""
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
        notices: tuple[Notice, ...] = ()
        lost: list[Notice] = []
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
            self._bounds, notices = _without_incomplete(
                bounds, recorded, self._is_overwritten, self._options.drop_incomplete
            )
        self.notices = (*notices, *lost)

    def _id_values(self) -> Array:
        """[columns * rows, ...] the id of each step. Ids that are also under `next` have one row more for each end."""
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
