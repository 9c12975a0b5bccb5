"""Storages in TED's own form: the row of a step holds what it saw, what it did, and under `next` what came of it.

A storage of [rows, ...] has time first; rows [0, len) are valid, and a full one is a ring: the row under the write cursor is the
oldest. What stands before the cursor was recorded last, so a trajectory always ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.ted.bounds import Bounds, any_of, cut, each_row, ends_of_ids, flattened
from rlds2reverb.readers.ted.folders import Folder, PerRow
from rlds2reverb.readers.ted.incomplete import without_incomplete
from rlds2reverb.readers.ted.keys import (
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
from rlds2reverb.readers.ted.leaves import HeldLeaf, Leaf, unchanged
from rlds2reverb.readers.ted.text import as_column
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import counted

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
        self._bounds, remarks = self._cut(cut_start)
        self.remarks = (*remarks, *self._root_remarks())

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
        """Nothing to open: files are mapped."""
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
        """[columns, rows] where an episode ends; None where nothing tells."""
        known = [key for key in (NEXT + "done",) if key in self._leaves]
        known = known or [NEXT + key for key in ("terminated", "truncated") if NEXT + key in self._leaves]
        if not known:
            return None
        return np.asarray(np.logical_or.reduce([any_of(self.grid.all(self._values(key)), 2) for key in known]))

    def _root_remarks(self) -> list[Remark]:
        """End flags at the root are False, but for partial resets; TorchRL's other forms take that for granted."""
        keys = [key for key in sorted(self._leaves) if last_part(key) in DONES and not key.startswith(NEXT)]
        valid = np.arange(self.grid.rows) < self.grid.valid[:, None]
        counts = {key: int((any_of(self.grid.all(self._values(key)), 2) & valid).sum()) for key in keys}
        told = [f"{key.replace('/', '.')} in {counted(count, 'step')}" for key, count in counts.items() if count]
        text = f"end flags at the root, {', '.join(told)}, are not read: steps that begin in a state that is over, as after a partial reset"
        return [Remark("root_done", text, max(counts.values()))] if told else []

    def _cut(self, cut_start: bool) -> tuple[Bounds, tuple[Remark, ...]]:
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
        return without_incomplete(bounds, flags, cut_start, options.drop_incomplete)


def _texts(folder: Folder, grid: Grid) -> dict[str, HeldLeaf]:
    """Values that are no tensors and stand for each row, where they are texts or numbers."""
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
