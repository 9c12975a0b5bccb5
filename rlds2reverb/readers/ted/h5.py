"""The H5 form: a group `traj_<i>` for each trajectory; observations have one row more than steps.

`is_full`, `shift`, `_storage_shape` and `_len` say how many of the groups were recorded: in a storage that is not full, the rows
behind `shift` of each column are left overs. TorchRL numbers groups with zeros in front, and reads them in the order of their names;
here they come by their numbers, with or without zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.digests import content, sampled
from rlds2reverb.readers.paths import by_number
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.ted.incomplete import no_end, overwritten
from rlds2reverb.readers.ted.keys import (
    DONES,
    MOST_RESULTS,
    NEXT,
    REWARD,
    TRAJECTORY_IDS,
    TedOptions,
    is_result,
    last_part,
    renamed,
)
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec

PREFIX = "traj"
_OF_THE_FORM = ("_storage_shape", "shift", "is_full", "_len")
_MOST_SIZES = 64
_LOOKED_INTO, _TRAJECTORIES = 16, 256
"""Trajectories of which all values, or rewards and end flags, are looked at for the digest; each has to be looked up in the file."""


class H5Trajectories:
    """The trajectories of a file."""

    def __init__(self, name: str, path: Path, options: TedOptions) -> None:
        self._name, self._path, self._options = name, path, options
        self._moved: dict[str, tuple[int, int]] = {}
        self._held: list[tuple[str, int]] = []
        self._begins: list[str] = []
        if options.trajectories not in ("", "done"):
            raise SourceError(
                f"{name}: trajectories: the H5 form keeps trajectories as end flags part them; there is no other way"
            )
        with hdf5.opened(path) as file:
            self._stamp = hdf5.stamp_of(file)
            try:
                self._open(file)
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken

    @property
    def count(self) -> int:
        """How many trajectories."""
        return len(self._groups)

    @contextmanager
    def reading(self) -> Iterator[_H5Rows]:
        """Opens the file."""
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            yield _H5Rows(self, file)

    @cached_property
    def digest(self) -> str:
        """Of rewards and end flags of many trajectories, and of all values of some."""
        made = xxhash.xxh3_128(repr((len(self._groups), _spelled(self.steps), _spelled(self.observed))).encode())
        keys = sorted({*self.steps, *self.observed})
        looked_at = sampled(self.count, _TRAJECTORIES)
        looked_into = {looked_at[number] for number in sampled(len(looked_at), _LOOKED_INTO)}
        small = [key for key in keys if self._is_small(key)]
        with self.reading() as rows:
            for number in looked_at:
                for key in keys if number in looked_into else small:
                    try:
                        made.update(content(rows.step(key, number) if key in self.steps else rows.observe(key, number)))
                    except BrokenEpisode:
                        made.update(b"cannot be read")
        return made.hexdigest()

    def _is_small(self, key: str) -> bool:
        """Whether all values of a key are looked at for the digest."""
        return is_result(key) and math.prod(size or 1 for size in self.steps[key].shape) <= MOST_RESULTS

    def _open(self, file: h5py.File) -> None:
        there = hdf5.names(file)
        groups = sorted((name for name in there if name.startswith(PREFIX)), key=by_number)
        if not groups:
            raise SourceError(f'{self._path}: expected groups "traj_0" and so on, as H5StorageCheckpointer writes them')
        form = {name: _plain(file, name) for name in _OF_THE_FORM if name in there}
        self.constants = {name: _plain(file, name) for name in set(there) - {*groups, *_OF_THE_FORM}}
        first = _columns(file, groups[0])
        self.paths = renamed(self._name, {_next(key): key for key in first}, self._options.names)
        shapes = {new: first[old] for new, old in self.paths.items()}
        self.rows_key = next((key for key in (f"{NEXT}done", f"{NEXT}terminated", "action") if key in shapes), "")
        if not self.rows_key:
            raise SourceError(
                f'{self._path}: {groups[0]}: expected "done" or "action"; found {", ".join(sorted(first))}'
            )
        rows = shapes[self.rows_key].shape[0]
        self.steps = {
            key: ArraySpec(one.shape[1:], one.dtype)
            for key, one in shapes.items()
            if one.shape[0] == rows and key != "index"
        }
        self.observed = {
            key: ArraySpec(one.shape[1:], one.dtype) for key, one in shapes.items() if one.shape[0] == rows + 1
        }
        odd = sorted(set(shapes) - {*self.steps, *self.observed, "index"})
        if odd:
            raise SourceError(
                f"{self._path}: {groups[0]}/{self.paths[odd[0]]}: has {shapes[odd[0]].shape[0]:,} rows; expected {rows:,} or {rows + 1:,}"
            )
        self._groups, ends = self._valid(file, groups, form)
        self.id_key = next((key for key in TRAJECTORY_IDS if key in self.steps), "")
        sizes, shift, is_full = _told(self._path, form)
        oldest = set(self._begins) if is_full and 0 < shift < sizes[0] else set()
        self.remarks = (*self._of_ends(file, ends), *self._without(oldest, overwritten))

    def _valid(self, file: h5py.File, groups: list[str], form: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Groups of what was recorded, and those where recording stopped."""
        sizes, shift, is_full = _told(self._path, form)
        if sizes[0] <= 0 or (is_full and len(sizes) == 1):
            self._begins = groups[:1]
            return groups, groups[-1:]
        rows = sizes[0]
        last = rows if is_full else shift
        kept, stopped, at, ends, held = [], [], 0, 0, 0
        for group in groups:
            length, observations, has_end = self._measured(file, group)
            if at % rows == 0:
                self._begins.append(group)
            if at % rows < last:
                kept.append(group)
                if self.observed and at + ends != held:
                    self._moved[group] = (at + ends, length + 1)
            self._held.append((group, held))
            at, held = at + length, held + observations
            if at % rows == last % rows:
                stopped.append(group)
            ends += at % rows != 0 or last % rows == 0 or has_end
        return kept, stopped

    def _measured(self, file: h5py.File, group: str) -> tuple[int, int, bool]:
        """Steps and observations of a group, and whether its last step has an end flag."""
        keys = (self.rows_key, *list(self.observed)[:1])
        found = [hdf5.Column(file, f"{group}/{self.paths[key]}", key) for key in keys]
        length = len(found[0])
        tells = self.rows_key == f"{NEXT}done" and length > 0
        return length, len(found[-1]), tells and bool(found[0].rows(length - 1).any())

    def _of_ends(self, file: h5py.File, groups: list[str]) -> tuple[Remark, ...]:
        open_ends = set()
        for group in groups:
            try:
                done = hdf5.column(file, f"{group}/{self.paths.get(f'{NEXT}done', 'done')}", "done")[-1:]
            except BrokenEpisode:
                continue
            if done.size and not done.any():
                open_ends.add(group)
        return tuple(self._without(open_ends, no_end))

    def _without(self, groups: set[str], told: Callable[[int, bool], list[Remark]]) -> list[Remark]:
        """Leaves groups out where that is asked for."""
        drop = self._options.drop_incomplete
        if drop:
            self._groups = [group for group in self._groups if group not in groups]
        return told(len(groups), drop)

    def group(self, number: int) -> str:
        """The name of a trajectory's group."""
        return self._groups[number]

    def parts(self, number: int) -> list[tuple[str, slice]]:
        """The groups and the rows of them that hold a trajectory's observations: all of its own, as a rule.

        TorchRL's writer counts an end flag left over behind `shift` once too seldom, in storages of several columns: the rows of the
        columns after it then lie one further on, in the order of the file. Its reader puts all rows together first.
        """
        group = self._groups[number]
        if group not in self._moved:
            return [(group, slice(None))]
        first, count = self._moved[group]
        starts = [at for _, at in self._held]
        found = []
        for place in range(max(int(np.searchsorted(starts, first, "right")) - 1, 0), len(starts)):
            name, at = self._held[place]
            if at >= first + count:
                break
            found.append((name, slice(max(first - at, 0), first + count - at)))
        return found


class _H5Rows:
    """An open file."""

    def __init__(self, trajectories: H5Trajectories, file: h5py.File) -> None:
        self._of, self._file = trajectories, file

    def step(self, key: str, number: int) -> Array:
        """[T, ...]."""
        return self._read(key, self._of.group(number), self._of.steps[key], slice(None))

    def observe(self, key: str, number: int) -> Array:
        """[T + 1, ...]."""
        found = [self._read(key, group, self._of.observed[key], rows) for group, rows in self._of.parts(number)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def id(self, number: int) -> Any:
        """What its id key has in its first step."""
        key = self._of.id_key
        found = self._read(key, self._of.group(number), self._of.steps[key], slice(0, 1)).reshape(-1)
        if not len(found):
            raise BrokenEpisode(key, f"{self._file.filename}: {self._of.group(number)}: has no steps")
        return found[0]

    def _read(self, key: str, group: str, spec: ArraySpec, rows: slice) -> Array:
        found = hdf5.column(self._file, f"{group}/{self._of.paths[key]}", key, rows)
        if found.dtype != spec.dtype or found.shape[1:] != spec.shape:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            raise BrokenEpisode(
                key,
                f"{self._file.filename}: {group}: has {found.dtype}{list(found.shape[1:])}; expected {wanted} as the first trajectory",
            )
        return found


def _next(key: str) -> str:
    """Rewards and end flags are those of the step after."""
    return NEXT + key if last_part(key) in DONES | {REWARD} else key


def _told(path: Path, form: Mapping[str, Any]) -> tuple[list[int], int, bool]:
    """The storage's shape ([0] where it is not told), the row behind the one written last, and whether it is full."""
    sizes, shift = np.atleast_1d(form.get("_storage_shape", 0)), form.get("shift", 0)
    if sizes.dtype.kind not in "iu" or sizes.ndim != 1 or type(shift) is not int or not len(sizes):
        raise SourceError(f"{path}: _storage_shape, shift: expected numbers of rows")
    return sizes.tolist(), shift, bool(form.get("is_full", True))


def _plain(file: h5py.File, name: str) -> Any:
    """A number, a few of them, or text."""
    found = hdf5.found(file, name)
    if isinstance(found, h5py.Dataset) and found.shape:
        if found.size > _MOST_SIZES:
            raise SourceError(f"{file.filename}: {name}: has {found.size:,} values; expected a number, or a few")
        return hdf5.column(file, name, name)
    value = hdf5.value(file, name)
    return value.item() if isinstance(value, np.generic) else value


def _columns(file: h5py.File, group: str) -> dict[str, hdf5.Column]:
    """'/'-joined key -> column of a group."""
    held = hdf5.found(file, group)
    if not isinstance(held, h5py.Group):
        raise SourceError(f"{file.filename}: {group}: expected a group")
    return {key: hdf5.Column(held, key, key) for key in hdf5.leaves(held)}


def _spelled(specs: Mapping[str, ArraySpec]) -> list[tuple[str, tuple[int | None, ...], str]]:
    """Columns, for a digest. numpy shows equal dtypes in several ways: that of a file in another one than that of a pickled copy."""
    return [(path, spec.shape, spec.dtype.str) for path, spec in sorted(specs.items())]
