"""The H5 form: a group `traj_<i>` for each trajectory; observations have one row more than steps.

`is_full`, `shift`, `_storage_shape` and `_len` say how many of the groups were recorded: in a storage that is not full, the rows
behind `shift` of each column are left overs. TorchRL numbers groups with zeros in front, and reads them in the order of their names;
here they come by their numbers, with or without zeros.

TorchRL parts groups by end flags, not by the ids of trajectories: a group holds several trajectories where recording stopped without an
end flag, as at the end of each environment's batch. Ids part a group further. The observation after the last step of such a trajectory
is not in the file (the next row is what the next trajectory saw first), so that step is left out, as in the Flat form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.paths import by_number
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.ted.keys import DONES, NEXT, REWARD, ROWS, TedOptions, id_key, last_part, renamed
from rlds2reverb.formats.ted.trajectories import final_lost, no_end, overwritten
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

PREFIX = "traj"
_OF_THE_FORM = ("_storage_shape", "shift", "is_full", "_len")
_MOST_SIZES = 64


class _Segment(NamedTuple):
    """A trajectory: the steps [start, stop) of a group.

    Attributes:
      stop: None where ids do not say how many steps the group has.
      is_cut: it ends by its id, before the group does; its last step is left out of [start, stop) already.
    """

    group: str
    start: int = 0
    stop: int | None = None
    is_cut: bool = False

    @property
    def steps(self) -> slice:
        """Its rows; open at the group's end, so that surplus rows are noticed."""
        return slice(self.start, self.stop if self.is_cut else None)


class H5Trajectories:
    """The trajectories of a file."""

    def __init__(self, name: str, path: Path, options: TedOptions) -> None:
        self._name, self._path, self._options = name, path, options
        self._moved: dict[str, tuple[int, int]] = {}
        self._held: list[tuple[str, int]] = []
        self._begins: list[str] = []
        if options.trajectories == ROWS:
            raise SourceError(
                f"{name}: trajectories=rows: the H5 form keeps whole trajectories; expected ids, done or the key of ids"
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
        return len(self.segments)

    @contextmanager
    def reading(self) -> Iterator[_H5Rows]:
        """Opens the file."""
        with hdf5.opened(self._path, stamp=self._stamp) as file:
            yield _H5Rows(self, file)

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
        self.id_key = id_key(self._name, self._options.trajectories, {**self.steps, **self.observed})
        if self.id_key and shapes[self.id_key].shape[1:] not in ((), (1,)):
            raise SourceError(
                f"{self._name}: {self.id_key}: has {list(shapes[self.id_key].shape[1:])} for each step; expected one id; "
                "trajectories=done parts by end flags"
            )
        recorded, stopped = self._valid(file, groups, form)
        self.segments, lost = self._parted(file, recorded)
        sizes, shift, is_full = _told(self._path, form)
        oldest = set(self._begins) if is_full and 0 < shift < sizes[0] else set()
        open_ends = self._without_end(file, stopped)
        self.notices = (
            *self._without(lambda one: one.is_cut or one.group in open_ends, no_end),
            *self._without(lambda one: one.start == 0 and one.group in oldest, overwritten),
            *lost,
        )

    def _parted(self, file: h5py.File, groups: list[str]) -> tuple[list[_Segment], list[Notice]]:
        """The trajectories of groups, and notices about those that ids divide."""
        if not self.id_key:
            return [_Segment(group) for group in groups], []
        segments: list[_Segment] = []
        lost = empty = 0
        for group in groups:
            try:
                ids = _H5Rows(self, file).ids(_Segment(group)).reshape(-1)
            except BrokenEpisode:
                segments.append(_Segment(group))  # reading the episode will raise
                continue
            if not len(ids):
                segments.append(_Segment(group))
                continue
            stops = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
            for start, stop in zip([0, *stops], stops):
                is_cut = stop < len(ids)
                lost += is_cut
                if is_cut and stop - start == 1:
                    empty += 1
                else:
                    segments.append(_Segment(group, start, stop - is_cut, is_cut))
        return segments, final_lost(lost, empty)

    def _valid(self, file: h5py.File, groups: list[str], form: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The recorded groups, and those at which recording stopped."""
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
        """Number of steps and observations of a group, and whether its last step has an end flag."""
        keys = (self.rows_key, *list(self.observed)[:1])
        found = [hdf5.Column(file, f"{group}/{self.paths[key]}", key) for key in keys]
        length = len(found[0])
        tells = self.rows_key == f"{NEXT}done" and length > 0
        return length, len(found[-1]), tells and bool(found[0].rows(length - 1).any())

    def _without_end(self, file: h5py.File, groups: list[str]) -> set[str]:
        """Groups whose last step has no end flag."""
        open_ends = set()
        for group in groups:
            try:
                done = hdf5.column(file, f"{group}/{self.paths.get(f'{NEXT}done', 'done')}", "done")[-1:]
            except BrokenEpisode:
                continue
            if done.size and not done.any():
                open_ends.add(group)
        return open_ends

    def _without(
        self, is_incomplete: Callable[[_Segment], bool], notices_of: Callable[[int, bool], list[Notice]]
    ) -> list[Notice]:
        """Drops incomplete trajectories if the options ask for it."""
        drop, count = self._options.drop_incomplete, sum(map(is_incomplete, self.segments))
        if drop:
            self.segments = [one for one in self.segments if not is_incomplete(one)]
        return notices_of(count, drop)

    def observations(self, one: _Segment) -> list[tuple[str, slice]]:
        """The groups and the rows of them that hold a trajectory's observations: all of its own, as a rule.

        TorchRL's writer counts an end flag left over behind `shift` once too seldom, in storages of several columns: the rows of the
        columns after it then lie one further on, in the order of the file. Its reader puts all rows together first.
        """
        if one.group not in self._moved:
            return [(one.group, slice(one.start, one.stop + 1 if one.is_cut and one.stop is not None else None))]
        first, count = self._moved[one.group]
        if one.stop is not None:
            count = one.stop + 1 - one.start
        first += one.start
        starts = [at for _, at in self._held]
        found = []
        for place in range(max(int(np.searchsorted(starts, first, "right")) - 1, 0), len(starts)):
            name, at = self._held[place]
            if at >= first + count:
                break
            found.append((name, slice(max(first - at, 0), first + count - at)))
        return found


class _H5Rows:
    def __init__(self, trajectories: H5Trajectories, file: h5py.File) -> None:
        self._of, self._file = trajectories, file

    def step(self, key: str, number: int) -> Array:
        """[T, ...]."""
        one = self._of.segments[number]
        found = self._read(key, one.group, one.steps, self._of.steps[key])
        if one.stop is not None and len(found) != one.stop - one.start:
            raise BrokenEpisode(
                key,
                f"{hdf5.path_of(self._file)}: {one.group}: has {counted(one.start + len(found), 'step')}; expected {one.stop:,}, "
                f"as of {self._of.id_key}",
            )
        return found

    def observe(self, key: str, number: int) -> Array:
        """[T + 1, ...]."""
        return self._observed(key, self._of.segments[number])

    def id(self, number: int) -> Any:
        """What its id key has in its first step."""
        one = self._of.segments[number]
        found = self.ids(one, 1)
        if not len(found):
            raise BrokenEpisode(self._of.id_key, f"{hdf5.path_of(self._file)}: {one.group}: has no steps")
        return found.reshape(-1)[0]

    def ids(self, one: _Segment, most: int | None = None) -> Array:
        """[T] or [T, 1], those of the first `most` steps."""
        key = self._of.id_key
        if key in self._of.steps:
            rows = one.steps if most is None else slice(one.start, one.start + most)
            return self._read(key, one.group, rows, self._of.steps[key])
        return self._observed(key, one)[:-1][:most]

    def _observed(self, key: str, one: _Segment) -> Array:
        spec = self._of.observed[key]
        found = [self._read(key, group, rows, spec) for group, rows in self._of.observations(one)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _read(self, key: str, group: str, rows: slice, spec: ArraySpec) -> Array:
        found = hdf5.column(self._file, f"{group}/{self._of.paths[key]}", key, rows)
        if found.dtype != spec.dtype or found.shape[1:] != spec.shape:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            raise BrokenEpisode(
                key,
                f"{hdf5.path_of(self._file)}: {group}: has {found.dtype}{list(found.shape[1:])}; expected {wanted} as the first trajectory",
            )
        return found


def _next(key: str) -> str:
    """The key under `next` for rewards and end flags, which belong to the following step."""
    return NEXT + key if last_part(key) in DONES | {REWARD} else key


def _told(path: Path, form: Mapping[str, Any]) -> tuple[list[int], int, bool]:
    """The storage's shape ([0] if unknown), the row after the one written last, and whether it is full."""
    sizes, shift = np.atleast_1d(form.get("_storage_shape", 0)), form.get("shift", 0)
    if sizes.dtype.kind not in "iu" or sizes.ndim != 1 or type(shift) is not int or not len(sizes):
        raise SourceError(f"{path}: _storage_shape, shift: expected numbers of rows")
    return sizes.tolist(), shift, bool(form.get("is_full", True))


def _plain(file: h5py.File, name: str) -> Any:
    """A number, a few numbers, or text."""
    found = hdf5.found(file, name)
    if isinstance(found, h5py.Dataset) and found.shape:
        if found.size > _MOST_SIZES:
            raise SourceError(f"{hdf5.path_of(file)}: {name}: has {found.size:,} values; expected a number, or a few")
        return hdf5.column(file, name, name)
    value = hdf5.value(file, name)
    return value.item() if isinstance(value, np.generic) else value


def _columns(file: h5py.File, group: str) -> dict[str, hdf5.Column]:
    """'/'-joined key -> column of a group."""
    held = hdf5.found(file, group)
    if not isinstance(held, h5py.Group):
        raise SourceError(f"{hdf5.path_of(file)}: {group}: expected a group")
    return {key: hdf5.Column(held, key, key) for key in hdf5.leaves(held)}
