"""Trajectories of a buffer by number, each key by itself. Trajectory ids or end flags, in the order of recording, divide them.

As in TorchRL's `find_start_stop_traj`, an id that changes or an end flag ends a trajectory; the step recorded last always ends one.

`RingTrajectories`: storages in TED's own form, where the row of a step holds observation and action, and the outcome under `next`.
A storage of [rows, ...] has time first; rows [0, len) are valid, and a full one is a ring: the row under the write cursor is the oldest.
The row before the cursor was recorded last, so a trajectory always ends there.

`FlatTrajectories`: the Flat and Nested forms, where observations are stored once, with one more for every trajectory's end. Steps are
[columns * rows], column by column, oldest first. Step number s has its observation in row s + (trajectories ended before s); the
observation after an end is the row behind it. Ends are `done`, and the place where recording stopped: the step before `shift` in a storage
that is not full, else the last of each column. The Nested form is the same bytes, by trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.ted.folders import FileArray, Folder, Leaf, PerRow, as_column, leaf_of, reading
from rlds2reverb.formats.ted.keys import (
    DONES,
    KEEP,
    NEXT,
    REWARD,
    ROWS,
    TRAJECTORY_IDS,
    TedOptions,
    id_key,
    last_part,
)
from rlds2reverb.formats.ted.sampler import PRIORITY, Priorities
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted, shortened

INDEX = "index"  # a root key that buffers add: the number of a row


class TrajectoryRows(Protocol):
    """Reads the rows of trajectories."""

    def step(self, key: str, number: int) -> Array:
        """A key of `Trajectories.steps` of one trajectory: [T, ...]."""

    def observe(self, key: str, number: int) -> Array:
        """A key of `Trajectories.observed` of one trajectory, with the observation after its last step: [T + 1, ...]."""

    def id(self, number: int) -> Any:
        """The value of `Trajectories.id_key` in the first step of one trajectory."""


class Trajectories(Protocol):
    """The trajectories of a buffer."""

    @property
    def count(self) -> int: ...

    @property
    def steps(self) -> Mapping[str, ArraySpec]:
        """Keys with T rows; `next/...` are those of the following step: reward, terminated, truncated, done."""

    @property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys with T + 1 rows."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """Key -> a value of the whole buffer that is not a tensor."""

    @property
    def id_key(self) -> str:
        """The key of the trajectory ids; "" if end flags divide trajectories."""

    @property
    def notices(self) -> tuple[Notice, ...]: ...

    def reading(self) -> AbstractContextManager[TrajectoryRows]: ...


@dataclass(frozen=True)
class _Bounds:
    """Trajectories, one column of the batch after the other: [n] the column, and the rows [start, stop) in it."""

    column: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.start)

    def only(self, mask: Array) -> _Bounds:
        """The trajectories that a mask [n] marks."""
        return _Bounds(self.column[mask], self.start[mask], self.stop[mask])


def flatten_tail(values: Array, dims: int = 1) -> Array:
    """The same values with all sizes after the first `dims` as one; `reshape(..., -1)` cannot do that with empty arrays."""
    return values.reshape(*values.shape[:dims], math.prod(values.shape[dims:]))


def any_of(values: Array, dims: int = 1) -> Array:
    """[...] of the first `dims` sizes: whether any value is not 0."""
    flat = flatten_tail(values, dims)
    return np.asarray(flat[..., 0] != 0 if flat.shape[-1] == 1 else (flat != 0).any(axis=-1))


def find_id_changes(ids: Array) -> Array:
    """[columns, rows] of ids -> where the next one differs.

    >>> find_id_changes(np.array([[5, 5, 0, 0, 1]]))
    array([[False,  True, False,  True, False]])
    """
    ends = np.zeros(ids.shape, bool)
    ends[:, :-1] = ids[:, 1:] != ids[:, :-1]
    return ends


def cut_at_ends(ends: Array, valid: Array | None = None) -> _Bounds:
    """Trajectories from end flags.

    Args:
      ends: [columns, rows], changed here.
      valid: [columns] number of recorded rows of each; all by default.

    >>> cut_at_ends(np.array([[False, True, False, False]]))
    _Bounds(column=array([0, 0]), start=array([0, 2]), stop=array([2, 4]))
    """
    columns, rows = ends.shape
    if valid is None:
        valid = np.full(columns, rows)
    ends &= np.arange(rows) < valid[:, None]
    # The step that was recorded last ends a trajectory without a flag, as in TorchRL's `find_start_stop_traj`.
    some = np.flatnonzero(valid)
    ends[some, valid[some] - 1] = True
    column, last = np.nonzero(ends)
    stop = last + 1
    start = np.zeros_like(stop)
    start[1:] = np.where(column[1:] == column[:-1], stop[:-1], 0)
    return _Bounds(column, start, stop)


def cut_each_row(columns: int, valid: Array) -> _Bounds:
    """Every row as a trajectory of its own."""
    column = np.repeat(np.arange(columns), valid)
    start = np.arange(len(column)) - np.repeat(np.cumsum(valid) - valid, valid)
    return _Bounds(column, start, start + 1)


def _judge_incomplete(
    bounds: _Bounds, flags: Array | None, cut_start: bool, drop: bool
) -> tuple[_Bounds, list[Notice]]:
    """The trajectories to read, and notices about incomplete ones, which `drop` leaves out. `flags` are the recorded ends, [columns, rows];
    `cut_start` says that a ring was overwritten, so that the oldest trajectories may lack their beginning.
    """
    keep = np.ones(len(bounds), bool)
    notices: list[Notice] = []
    if flags is not None:
        ended_before = np.zeros((len(flags), flags.shape[1] + 1), np.int64)
        np.cumsum(flags, axis=1, out=ended_before[:, 1:])
        inside = ended_before[bounds.column, bounds.stop - 1] - ended_before[bounds.column, bounds.start]
        if count := int(inside.sum()):
            text = (
                f"{counted(count, 'end flag')} inside {counted(int((inside > 0).sum()), 'trajectory')}, where the id does not change: "
                "one id may stand for several trajectories; trajectories=done divides them by end flags"
            )
            notices.append(Notice("done_inside", text, count))
        open_ends = ~flags[bounds.column, bounds.stop - 1]
        keep &= ~open_ends
        notices += no_end(int(open_ends.sum()), drop)
    if cut_start:
        keep &= bounds.start > 0
        notices += overwritten(int((bounds.start == 0).sum()), drop)
    return (bounds.only(keep) if drop else bounds), notices


def no_end(count: int, drop: bool) -> list[Notice]:
    """A notice of trajectories without an end flag."""
    text = f"{counted(count, 'trajectory')} without an end flag, where recording stopped or was overwritten; {_became(drop)}"
    return [Notice("no_end", text, count)] if count else []


def overwritten(count: int, drop: bool) -> list[Notice]:
    """A notice of the oldest trajectories of a ring."""
    text = f"a full ring: its oldest {counted(count, 'trajectory')} may lack the beginning; {_became(drop)}"
    return [Notice("cut_start", text, count)] if count else []


def final_lost(count: int, empty: int) -> list[Notice]:
    """A notice of trajectories that end by their id, in a form that keeps no observation there; `empty` ones had no other step."""
    text = (
        f"{counted(count, 'trajectory')} without an end flag before the id changes: this form keeps no observation "
        "after their last step, so that step is left out"
    )
    if empty:
        text += f"; {empty:,} of them had no other step and {'is' if empty == 1 else 'are'} left out whole"
    return [Notice("final_lost", text, count)] if count else []


def ids_return(ids: Array, columns: Array) -> list[Notice]:
    """A notice of trajectories [n] whose id an earlier one of the same column has, with others between them.

    >>> [notice.count for notice in ids_return(np.array([4, 7, 4, 4]), np.array([0, 0, 0, 1]))]
    [1]
    """
    numbers = np.unique(ids, return_inverse=True)[1].reshape(-1)
    _, places = np.unique(np.stack([columns, numbers]), axis=1, return_index=True)
    repeated = np.delete(ids, places)
    if not len(repeated):
        return []
    text = (
        f"{counted(len(repeated), 'trajectory')} with an id that came before, with others between them, first id {shortened(str(repeated[0]))}; each is read as "
        "a new trajectory. Where steps of several environments were stored in turn, these are pieces of the same one: store each "
        "environment's steps together. Where numbers began anew, all is as it should be; trajectories=done goes by end flags alone"
    )
    return [Notice("ids_return", text, len(repeated))]


def _became(drop: bool) -> str:
    return "left out" if drop else "incomplete=drop leaves these out"


def check_ids(name: str, key: str, shape: tuple[int | None, ...]) -> None:
    """Raises `SourceError` unless a step has one id."""
    if shape not in ((), (1,)):
        raise SourceError(
            f"{name}: {key}: has {list(shape)} for each step; expected one id; trajectories=done divides by end flags"
        )


def _typed(values: Array, dtype: np.dtype[Any]) -> Array:
    """Values of a leaf in its dtype: leaves hold bools as uint8, of which any byte but 0 is true."""
    return np.asarray(values != 0 if dtype == bool else values)


@dataclass(frozen=True)
class StorageGrid:
    """Where the rows of a storage are.

    Attributes:
      columns: number of parallel sequences of steps.
      rows: number of steps of each.
      valid: [columns] number of recorded steps.
      first: the row that was recorded first.
      time_first: whether leaves are [rows, columns, ...]; else [columns, rows, ...].
      held: allocated rows; allocated columns where time is last.
      dims: number of leading sizes of a leaf that rows and columns make.
      items_end: whether a trajectory ends with its column where nothing else says so.
      stops: of `Folder`.
    """

    columns: int
    rows: int
    valid: Array
    first: int = 0
    time_first: bool = True
    held: int = 0
    dims: int = 1
    items_end: bool = False
    stops: Array | None = None

    def steps_of(self, leaf: Leaf) -> Array | FileArray:
        """A leaf as [held * columns, ...], or [columns * rows, ...] where time is last."""
        return leaf.stored.reshape(
            self.held * (self.columns if self.time_first else self.rows), *leaf.shape[self.dims :]
        )

    def take(self, steps: Array | FileArray, column: int, start: int, stop: int) -> Array:
        """[stop - start, ...] of a column, in the order of recording; may be a view of values in memory."""
        if not self.time_first:
            return steps[column * self.rows + start : column * self.rows + stop]

        def of_rows(start: int, stop: int) -> Array:
            return steps[start * self.columns + column : stop * self.columns : self.columns]

        start, stop = start + self.first, stop + self.first
        if stop <= self.held:
            return of_rows(start, stop)
        if start >= self.held:
            return of_rows(start - self.held, stop - self.held)
        return np.concatenate([of_rows(start, self.held), of_rows(0, stop - self.held)])

    def take_with_last(
        self, steps: Array | FileArray, after: Array | FileArray, column: int, start: int, stop: int
    ) -> Array:
        """[stop - start + 1, ...]: as `take`, and the last one of `after` behind it."""
        last = self.take(after, column, stop - 1, stop)
        if not isinstance(steps, FileArray) or (self.time_first and (self.columns > 1 or self.first)):
            return np.concatenate([self.take(steps, column, start, stop), last])
        at = 0 if self.time_first else column * self.rows
        joined = steps.read(at + start, at + stop, spare=1)  # not copied once more: an episode may have gigabytes
        joined[-1:] = last
        return joined

    def all(self, steps: Array | FileArray) -> Array:
        """[columns, rows, ...] in the order of recording."""
        shaped = steps[:].reshape(self.held, self.columns if self.time_first else self.rows, *steps.shape[1:])
        if not self.time_first:
            return shaped[: self.columns]
        ordered = shaped[: self.rows] if not self.first else np.roll(shaped, -self.first, 0)
        return np.moveaxis(ordered, 0, 1)


class _FileTrajectories:
    """Trajectories in files that are read in pieces, and must not change meanwhile."""

    _leaves: Mapping[str, Leaf]
    _bounds: _Bounds

    @property
    def count(self) -> int:
        return len(self._bounds)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        with reading(self._leaves.values()):
            yield self


class RingTrajectories(_FileTrajectories):
    """The trajectories of a storage in TED's own form."""

    def __init__(
        self,
        name: str,
        folder: Folder,
        leaves: Mapping[str, Leaf],
        grid: StorageGrid,
        options: TedOptions,
        cut_start: bool,
        notices: Sequence[Notice] = (),
    ) -> None:
        self.grid, self._options, self._name = grid, options, name
        self._stored: dict[str, Array | FileArray] = {}
        self.constants = {key: value for key, value in folder.others.items() if not isinstance(value, PerRow)}
        per_row: dict[str, Leaf] = {}  # texts or numbers that are not tensors
        for key, held in folder.others.items():
            if isinstance(held, PerRow) and (len(held.values),) == folder.batch and grid.time_first:
                per_row[key] = leaf_of(as_column(held.values))
        self._leaves = {**leaves, **per_row}
        for key, leaf in self._leaves.items():
            if leaf.shape[: grid.dims] != folder.batch[: grid.dims]:
                raise SourceError(
                    f"{name}: {key}: has shape {list(leaf.shape)}; expected it to begin with {list(folder.batch)}"
                )
        self.id_key = id_key(name, options.trajectories, self._leaves)
        self._bounds, incomplete = self._cut(cut_start)
        self.notices = (*notices, *incomplete, *self._root_notices(), *self._differing_ends())

    @cached_property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys that are at the root and under `next` alike."""
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
        """All other keys, without the root's end flags."""
        steps = {}
        for key, leaf in self._leaves.items():
            if key.startswith(NEXT):
                is_step = self._options.next == KEEP or key[len(NEXT) :] not in self.observed
            else:
                is_copy = last_part(key) == REWARD and NEXT + key in self._leaves
                is_step = key not in self.observed and last_part(key) not in DONES and key != INDEX and not is_copy
            if is_step:
                steps[key] = self._spec(leaf)
        return steps

    def step(self, key: str, number: int) -> Array:
        return self._take(key, *self._place(number))

    def observe(self, key: str, number: int) -> Array:
        column, start, stop = self._place(number)
        joined = self.grid.take_with_last(self._steps(key), self._steps(NEXT + key), column, start, stop)
        return _typed(joined, self._leaves[key].dtype)

    def id(self, number: int) -> Any:
        column, start, _ = self._place(number)
        return self._take(self.id_key, column, start, start + 1).reshape(-1)[0]

    def differs(self, key: str, number: int, most: int | None = None) -> Array:
        """Steps of a trajectory whose `next` is not the observation of the following step; of the first `most` steps."""
        column, start, stop = self._place(number)
        stop = stop if most is None else min(stop, start + most + 1)
        after = self.grid.take(self._steps(NEXT + key), column, start, stop - 1)
        root = self.grid.take(self._steps(key), column, start + 1, stop)
        return np.flatnonzero((as_bytes(after) != as_bytes(root)).any(axis=1))

    def has_last(self, key: str, number: int) -> bool:
        """Whether any value of `next` of a trajectory's last step is not 0, or none is before that step."""
        column, _, stop = self._place(number)
        after, before = (self.grid.take(self._steps(at), column, stop - 1, stop) for at in (NEXT + key, key))
        return bool(after.any()) or not before.any()

    def _steps(self, key: str) -> Array | FileArray:
        if key not in self._stored:
            self._stored[key] = self.grid.steps_of(self._leaves[key])
        return self._stored[key]

    def _place(self, number: int) -> tuple[int, int, int]:
        bounds = self._bounds
        return int(bounds.column[number]), int(bounds.start[number]), int(bounds.stop[number])

    def _take(self, key: str, column: int, start: int, stop: int) -> Array:
        return _typed(self.grid.take(self._steps(key), column, start, stop), self._leaves[key].dtype)

    def _spec(self, leaf: Leaf) -> ArraySpec:
        return ArraySpec(leaf.shape[self.grid.dims :], leaf.dtype)

    def _any(self, key: str) -> Array:
        """[columns, rows] where a flag is set."""
        return any_of(self.grid.all(self._steps(key)), 2)

    def _flags(self) -> Array | None:
        """[columns, rows] where an episode ends; None if there are no end flags."""
        # `done` is where either of the two others is; TED need not have it.
        keys = [NEXT + "done"] if NEXT + "done" in self._leaves else []
        keys = keys or [NEXT + key for key in ("terminated", "truncated") if NEXT + key in self._leaves]
        return np.asarray(np.logical_or.reduce([self._any(key) for key in keys])) if keys else None

    def _root_notices(self) -> list[Notice]:
        """End flags at the root are False except after partial resets; TorchRL's other forms assume False."""
        keys = [key for key in sorted(self._leaves) if last_part(key) in DONES and not key.startswith(NEXT)]
        valid = np.arange(self.grid.rows) < self.grid.valid[:, None]
        counts = {key: int((self._any(key) & valid).sum()) for key in keys}
        if not any(counts.values()):
            return []
        named = [f"{key.replace('/', '.')} in {counted(count, 'step')}" for key, count in counts.items() if count]
        text = f"end flags at the root, {', '.join(named)}, are not read: steps that begin in a state that is over, as after a partial reset"
        return [Notice("root_done", text, max(counts.values()))]

    def _differing_ends(self) -> list[Notice]:
        """Steps whose end flags say different things: of agents beside each other, or `terminated` and `truncated` without `done`."""
        flags = {key: self._any(NEXT + key) for key in sorted(DONES) if NEXT + key in self._leaves}
        valid = np.arange(self.grid.rows) < self.grid.valid[:, None]
        partial = np.zeros(valid.shape, bool)
        for key, is_any in flags.items():
            values = flatten_tail(self.grid.all(self._steps(NEXT + key)), 2)
            if values.shape[-1] > 1:
                partial |= is_any & ~(values != 0).all(axis=-1)
        notices = []
        if count := int((partial & valid).sum()):
            text = (
                f"in {counted(count, 'step')} the end flags of some agents are set, and not of all: the flag of any of them counts for the step, as in "
                "TorchRL's collectors"
            )
            notices.append(Notice("ends_differ", text, count))
        others = [is_set for key, is_set in flags.items() if key != "done"]
        if "done" in flags and others:
            unmarked = np.logical_or.reduce(others) & ~flags["done"] & valid
            if count := int(unmarked.sum()):
                text = f"in {counted(count, 'step')} next.terminated or next.truncated is set, and next.done is not: trajectories end by done alone"
                notices.append(Notice("ends_differ", text, count))
        return notices

    def _cut(self, cut_start: bool) -> tuple[_Bounds, list[Notice]]:
        grid, options, flags = self.grid, self._options, self._flags()
        if options.trajectories == ROWS:
            return cut_each_row(grid.columns, grid.valid), []
        returning: list[Notice] = []
        if grid.stops is not None:
            ends = np.zeros((grid.columns, grid.rows), bool)
            ends[0, grid.stops - 1] = True
            bounds = cut_at_ends(ends)
        elif self.id_key:
            ids = grid.all(self._steps(self.id_key))
            check_ids(self._name, self.id_key, ids.shape[2:])
            ids = ids.reshape(ids.shape[:2])
            bounds = cut_at_ends(find_id_changes(ids), grid.valid)
            # Environments beside each other number their trajectories by themselves; items are parts of one recording.
            apart = bounds.column if grid.time_first else np.zeros_like(bounds.column)
            returning = ids_return(ids[bounds.column, bounds.start], apart)
        elif flags is not None:
            bounds = cut_at_ends(flags.copy(), grid.valid)
        elif grid.items_end:
            bounds = cut_at_ends(np.zeros((grid.columns, grid.rows), bool), grid.valid)
        else:
            items = "" if grid.time_first and grid.dims == 1 else "; items=trajectories makes each item an episode"
            raise SourceError(
                f"{self._name}: nothing says where trajectories end: neither {' nor '.join(TRAJECTORY_IDS)} nor next/done is there; "
                f"name a key by trajectories=KEY or done=KEY, or have every step as an episode by trajectories=rows{items}"
            )
        bounds, notices = _judge_incomplete(bounds, flags, cut_start, options.drop_incomplete)
        return bounds, notices + returning


def as_bytes(values: Array) -> Array:
    """[n, ...] -> [n, bytes of each], or [n, values of each] of objects."""
    flat = flatten_tail(np.ascontiguousarray(values))
    return flat if flat.dtype == object else flat.view(np.uint8)


_OF_THE_FORM = ("_storage_shape", "shift", "is_full")


def is_flat(folder: Folder) -> bool:
    """Whether a folder is of the Flat or the Nested form."""
    return all(key in folder.others for key in _OF_THE_FORM)


class FlatTrajectories(_FileTrajectories):
    """The trajectories of a buffer in the Flat or the Nested form; `valid` steps of all columns were recorded, if that is known."""

    def __init__(
        self,
        name: str,
        folder: Folder,
        leaves: Mapping[str, Leaf],
        valid: int | None,
        options: TedOptions,
        priorities: Priorities | None = None,
    ) -> None:
        self._name, self._options = name, options
        self.columns, self.rows, shift, is_full = self._read_form(folder)
        self.constants = {key: value for key, value in folder.others.items() if key not in _OF_THE_FORM}
        self._leaves = {
            (NEXT + key if last_part(key) in DONES | {REWARD} else key): leaf for key, leaf in leaves.items()
        }
        steps = self._count = self.columns * self.rows
        if priorities is not None:
            # The sampler's are in the order of the storage, [rows, columns]; here the oldest step of each column comes first.
            self._leaves[PRIORITY] = leaf_of(
                priorities.of_columns(name, self.rows, self.columns, shift if is_full else 0)
            )
        done = self._leaves.get(f"{NEXT}done")
        if done is None or done.dtype != bool or done.shape not in ((steps,), (steps, 1)):
            raise SourceError(f'{name}: expected a key "done" of {counted(steps, "step")}, as _storage_shape says')
        recorded = (done.read() != 0).reshape(self.columns, self.rows)
        last = self.rows if is_full else shift
        # TorchRL forces an end where recording stopped, when it writes and when it loads, and stores it nowhere.
        ends = recorded.copy()
        ends[:, last - 1] = True
        self._ends = np.flatnonzero(ends)
        self._check_sizes(steps - (self.rows - last))
        self.id_key = id_key(name, options.trajectories, self._leaves)
        valid = last if valid is None or is_full else min(last, valid // self.columns)
        self._bounds, notices = self._cut(recorded, ends, np.full(self.columns, valid), is_full and 0 < shift < last)
        self.notices = tuple(notices)

    @cached_property
    def observed(self) -> Mapping[str, ArraySpec]:
        """Keys with one row more for each end."""
        return {key: _row_spec(leaf) for key, leaf in self._leaves.items() if leaf.shape[0] != self._count}

    @cached_property
    def steps(self) -> Mapping[str, ArraySpec]:
        """All other keys."""
        return {
            key: _row_spec(leaf) for key, leaf in self._leaves.items() if leaf.shape[0] == self._count and key != INDEX
        }

    def step(self, key: str, number: int) -> Array:
        start, stop = self._place(number)
        return _typed(self._leaves[key].stored[start:stop], self._leaves[key].dtype)

    def observe(self, key: str, number: int) -> Array:
        start, stop = self._place(number)
        before, until = np.searchsorted(self._ends, [start, stop - 1]).tolist()
        rows = _typed(self._leaves[key].stored[start + before : stop + until + 1], self._leaves[key].dtype)
        # An end flag inside a trajectory of one id has an observation of its own, which no step follows.
        inside = self._ends[before:until]
        return np.delete(rows, inside - start + 1 + np.arange(len(inside)), 0) if len(inside) else rows

    def id(self, number: int) -> Any:
        return self._ids.reshape(-1)[self._place(number)[0]]

    def _place(self, number: int) -> tuple[int, int]:
        at = int(self._bounds.column[number]) * self.rows
        return at + int(self._bounds.start[number]), at + int(self._bounds.stop[number])

    def _read_form(self, folder: Folder) -> tuple[int, int, int, bool]:
        shape, shift, is_full = (folder.others[key] for key in _OF_THE_FORM)
        sizes = [shape] if isinstance(shape, int) else shape
        if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise SourceError(f"{self._name}: _storage_shape {shortened(repr(shape))}: expected sizes")
        if type(is_full) is not bool or type(shift) is not int or not (is_full or 0 < shift <= sizes[0]):
            raise SourceError(
                f"{self._name}: shift {shortened(repr(shift))}, is_full {shortened(repr(is_full))}: expected a row of {sizes[0]:,}"
            )
        return math.prod(sizes[1:]), sizes[0], shift, is_full

    def _check_sizes(self, recorded: int) -> None:
        """Steps have one row each, observations one more for each end that was marked when they were written.

        Rows after `shift` were never recorded, and may hold anything; `recorded` counts the steps before it.
        """
        least = recorded + int((self._ends < recorded).sum())
        for key, leaf in self._leaves.items():
            rows = leaf.shape[0] if leaf.shape else 0
            if not leaf.shape or (rows != self._count and (rows < least or key.startswith(NEXT))):
                raise SourceError(
                    f"{self._name}: {key}: has {counted(rows, 'row')}; expected {self._count:,} steps, or at least {least:,} observations"
                )

    def _cut(self, recorded: Array, ends: Array, valid: Array, is_overwritten: bool) -> tuple[_Bounds, list[Notice]]:
        if self._options.trajectories == ROWS:
            return cut_each_row(self.columns, valid), []
        lost: list[Notice] = []
        bounds = cut_at_ends(ends.copy(), valid)
        if self.id_key:
            ids = self._ids.reshape(ends.shape)
            bounds = cut_at_ends(find_id_changes(ids), valid)
            returning = ids_return(ids[bounds.column, bounds.start], bounds.column)
            # Behind a step without an end flag lies the first observation of the next trajectory: it has none after it.
            unmarked = ~ends[bounds.column, bounds.stop - 1]
            bounds.stop[unmarked] -= 1
            left = bounds.stop > bounds.start
            lost = final_lost(int(unmarked.sum()), int((~left).sum())) + returning
            bounds = bounds.only(left)
        bounds, notices = _judge_incomplete(bounds, recorded, is_overwritten, self._options.drop_incomplete)
        return bounds, notices + lost

    @cached_property
    def _ids(self) -> Array:
        """[columns * rows, ...] the id of each step. Ids that are also under `next` have one row more for each end."""
        leaf = self._leaves[self.id_key]
        check_ids(self._name, self.id_key, leaf.shape[1:])
        if leaf.shape[0] == self._count:
            return leaf.read()
        step = np.arange(self._count)
        return np.asarray(leaf.read()[np.minimum(step + np.searchsorted(self._ends, step), leaf.shape[0] - 1)])


def _row_spec(leaf: Leaf) -> ArraySpec:
    return ArraySpec(leaf.shape[1:], leaf.dtype)
