"""The H5 form: a group `traj_<i>` for each trajectory; observations have one row more than steps.

`is_full`, `shift`, `_storage_shape` and `_len` say how many of the groups were recorded: in a storage that is not full, the rows
behind `shift` of each column are left over from earlier. TorchRL numbers groups with leading zeros, and reads them in the order of their
names; here they come in the order of their numbers, with or without zeros.

TorchRL divides groups by end flags, not by trajectory ids: a group holds several trajectories where recording stopped without an
end flag, as at the end of each environment's batch. Ids divide a group further. The observation after the last step of such a trajectory
is not in the file (the next row is the first observation of the next trajectory), so that step is left out, as in the Flat form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.agreement import agree, look_at
from rlds2reverb.formats.paths import by_number
from rlds2reverb.formats.recordings import BrokenEpisode, refuse_broken
from rlds2reverb.formats.ted.keys import DONES, NEXT, REWARD, ROWS, TedOptions, id_key, last_part, rename_keys
from rlds2reverb.formats.ted.sampler import PRIORITY, Priorities
from rlds2reverb.formats.ted.trajectories import check_ids, final_lost, ids_return, no_end, overwritten
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

_DONE = f"{NEXT}done"
_OF_THE_FORM = ("_storage_shape", "shift", "is_full", "_len")
_MOST_SIZES = 64


class _Segment(NamedTuple):
    """A trajectory: the steps [start, stop) of a group. The stop is None if ids do not give the number of steps; `is_cut` says that the
    last step was left out, because the trajectory ends by its id, before the group does.
    """

    group: str
    start: int = 0
    stop: int | None = None
    is_cut: bool = False

    @property
    def steps(self) -> slice:
        """Its rows; open at the group's end, so that surplus rows are noticed."""
        return slice(self.start, self.stop if self.is_cut else None)


class _GroupLook(NamedTuple):
    """What one group has: new key -> key in the file; the key that counts steps; key -> spec, of those with a row per step, and with one more."""

    paths: dict[str, str]
    rows_key: str
    steps: dict[str, ArraySpec]
    observed: dict[str, ArraySpec]

    @property
    def specs(self) -> dict[str, ArraySpec]:
        return {**self.steps, **self.observed}


class H5Trajectories:
    """The trajectories of a file."""

    def __init__(self, name: str, path: Path, options: TedOptions, priorities: Priorities | None = None) -> None:
        self._priorities = priorities
        self._name, self._path, self._options = name, path, options
        self.priorities_of: dict[str, Array] = {}
        self._moved: dict[str, tuple[int, int]] = {}
        self._held: list[tuple[str, int]] = []
        if options.trajectories == ROWS:
            raise SourceError(
                f"{name}: trajectories=rows: the H5 form keeps whole trajectories; expected ids, done or the key of ids"
            )
        with hdf5.open_file(path) as file, refuse_broken():
            self._open(file)

    @property
    def count(self) -> int:
        return len(self.segments)

    @contextmanager
    def reading(self) -> Iterator[_H5Rows]:
        with hdf5.open_file(self._path) as file:
            yield _H5Rows(self, file)

    def _open(self, file: h5py.File) -> None:
        names = hdf5.list_names(file)
        groups = sorted((name for name in names if name.startswith("traj")), key=by_number)
        if not groups:
            raise SourceError(f'{self._path}: expected groups "traj_0" and so on, as H5StorageCheckpointer writes them')
        form = {name: _read_plain(file, name) for name in _OF_THE_FORM if name in names}
        self.constants = {name: _read_plain(file, name) for name in set(names) - {*groups, *_OF_THE_FORM}}
        self._set_keys(file, groups)
        sizes, shift = np.atleast_1d(form.get("_storage_shape", 0)), form.get("shift", 0)
        if sizes.dtype.kind not in "iu" or sizes.ndim != 1 or type(shift) is not int or not len(sizes):
            raise SourceError(f"{self._path}: _storage_shape, shift: expected numbers of rows")
        rows, is_full = int(sizes[0]), bool(form.get("is_full", True))
        if rows <= 0 or (is_full and len(sizes) == 1):
            recorded, begins, stopped = groups, groups[:1], groups[-1:]
        else:
            recorded, begins, stopped = self._select_recorded(file, groups, rows, rows if is_full else shift)
        if self._priorities is not None:
            self._add_priorities(file, groups, [int(size) for size in sizes], shift if is_full else 0)
        self.segments, lost = self._divide(file, recorded)
        # `shift` behind the first row of a full ring says that older rows were overwritten there.
        oldest = set(begins) if is_full and 0 < shift < rows else set()
        open_ends = set()
        for group in stopped:
            try:
                done = hdf5.read_column(file, f"{group}/{self.paths.get(_DONE, 'done')}", "done")[-1:]
            except BrokenEpisode:
                continue
            if done.size and not done.any():
                open_ends.add(group)
        drop = self._options.drop_incomplete
        whole = [segment for segment in self.segments if not (segment.is_cut or segment.group in open_ends)]
        notices = no_end(len(self.segments) - len(whole), drop)
        self.segments = whole if drop else self.segments
        whole = [segment for segment in self.segments if not (segment.start == 0 and segment.group in oldest)]
        notices += overwritten(len(self.segments) - len(whole), drop)
        self.segments = whole if drop else self.segments
        self.notices = (*self.notices_of_keys, *notices, *lost)

    def _add_priorities(self, file: h5py.File, groups: list[str], sizes: list[int], shift: int) -> None:
        """Adds the column of a sampler's priorities. Groups are the rows of the storage, column by column, the oldest first."""
        assert self._priorities is not None
        lengths = [len(hdf5.HdfColumn(file, f"{group}/{self.paths[self.rows_key]}", self.rows_key)) for group in groups]
        rows, columns = (sizes[0], math.prod(sizes[1:])) if sizes[0] > 0 else (sum(lengths), 1)
        ordered = self._priorities.of_columns(self._name, rows, columns, shift)
        if len(ordered) != sum(lengths):
            raise SourceError(
                f"{self._path}: has {counted(sum(lengths), 'step')}; expected {len(ordered):,}, as _storage_shape says; priorities=drop reads it without the "
                "priorities of the sampler"
            )
        self.priorities_of = dict(zip(groups, np.split(ordered, np.cumsum(lengths)[:-1])))
        self.steps[PRIORITY] = ArraySpec((), ordered.dtype)

    def _set_keys(self, file: h5py.File, groups: list[str]) -> None:
        """The keys and their specs, of several groups (`agreement`)."""
        spec_from = self._options.spec_from
        looks = look_at(range(len(groups)), lambda number: self._look(file, groups[number]), self._name, spec_from)
        agreement = agree({number: look.specs for number, look in looks.items()}, spec_from)
        self.notices_of_keys = agreement.notices
        like_most = next((look for look in looks.values() if agreement.specs.items() <= look.specs.items()), None)
        if like_most is None:
            raise SourceError(f"{self._path}: no trajectory has all keys that most have: {', '.join(agreement.specs)}")
        self.paths, self.rows_key = like_most.paths, like_most.rows_key
        self.steps = {key: spec for key, spec in like_most.steps.items() if key in agreement.specs}
        self.observed = {key: spec for key, spec in like_most.observed.items() if key in agreement.specs}
        self.id_key = id_key(self._name, self._options.trajectories, {**self.steps, **self.observed})
        if self.id_key:
            check_ids(self._name, self.id_key, like_most.specs[self.id_key].shape)

    def _look(self, file: h5py.File, group: str) -> _GroupLook:
        held = hdf5.find(file, group)
        if not isinstance(held, h5py.Group):
            raise SourceError(f"{self._path}: {group}: expected a group")
        columns = {key: hdf5.HdfColumn(held, key, key) for key in hdf5.list_datasets(held)}
        keys = {(NEXT + key if last_part(key) in DONES | {REWARD} else key): key for key in columns}
        paths = rename_keys(self._name, keys, self._options.names)
        shapes = {new: columns[old] for new, old in paths.items()}
        rows_key = next((key for key in (_DONE, f"{NEXT}terminated", "action") if key in shapes), "")
        if not rows_key:
            raise SourceError(f'{self._path}: {group}: expected "done" or "action"; found {", ".join(sorted(columns))}')
        rows = len(shapes[rows_key])
        steps = {key: column.spec for key, column in shapes.items() if len(column) == rows and key != "index"}
        observed = {key: column.spec for key, column in shapes.items() if len(column) == rows + 1}
        odd = sorted(set(shapes) - {*steps, *observed, "index"})
        if odd:
            raise SourceError(
                f"{self._path}: {group}/{paths[odd[0]]}: has {len(shapes[odd[0]]):,} rows; expected {rows:,} or {rows + 1:,}"
            )
        return _GroupLook(paths, rows_key, steps, observed)

    def _divide(self, file: h5py.File, groups: list[str]) -> tuple[list[_Segment], list[Notice]]:
        """The trajectories of groups, and notices about those that ids divide."""
        if not self.id_key:
            return [_Segment(group) for group in groups], []
        segments: list[_Segment] = []
        firsts: list[Array] = []
        lost = empty = 0
        for group in groups:
            try:
                ids = _H5Rows(self, file).ids(_Segment(group)).reshape(-1)
            except BrokenEpisode:
                ids = np.empty(0)  # reading the episode will raise
            if not len(ids):
                segments.append(_Segment(group))
                continue
            stops = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
            firsts.append(ids[[0, *stops[:-1]]])
            for start, stop in zip([0, *stops], stops):
                is_cut = stop < len(ids)
                lost += is_cut
                if is_cut and stop - start == 1:
                    empty += 1
                else:
                    segments.append(_Segment(group, start, stop - is_cut, is_cut))
        numbers = np.concatenate(firsts) if firsts else np.empty(0)
        # An end flag divides groups of one id: these follow one another, and no id returns.
        numbers = numbers[np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)]]
        return segments, final_lost(lost, empty) + ids_return(numbers, np.zeros(len(numbers)))

    def _select_recorded(
        self, file: h5py.File, groups: list[str], rows: int, last: int
    ) -> tuple[list[str], list[str], list[str]]:
        """Of the columns of `rows` steps, of which `last` were recorded: all recorded groups, the first of each column, and
        those at which recording stopped.
        """
        kept, begins, stopped, at, ends, held = [], [], [], 0, 0, 0
        for group in groups:
            keys = (self.rows_key, *list(self.observed)[:1])
            columns = [hdf5.HdfColumn(file, f"{group}/{self.paths[key]}", key) for key in keys]
            length = len(columns[0])
            has_end = self.rows_key == _DONE and length > 0 and bool(columns[0].rows(length - 1).any())
            if at % rows == 0:
                begins.append(group)
            if at % rows < last:
                kept.append(group)
                if self.observed and at + ends != held:
                    self._moved[group] = (at + ends, length + 1)
            self._held.append((group, held))
            at, held = at + length, held + len(columns[-1])
            if at % rows == last % rows:
                stopped.append(group)
            ends += at % rows != 0 or last % rows == 0 or has_end
        return kept, begins, stopped

    def observations(self, segment: _Segment) -> list[tuple[str, slice]]:
        """The groups, and their rows, that hold a trajectory's observations: usually its own.

        In storages of several columns TorchRL's writer misses one end flag left over behind `shift`: the rows of the following columns
        then lie one further on, in the order of the file. Its reader joins all rows first.
        """
        if segment.group not in self._moved:
            stop = segment.stop + 1 if segment.is_cut and segment.stop is not None else None
            return [(segment.group, slice(segment.start, stop))]
        first, count = self._moved[segment.group]
        if segment.stop is not None:
            count = segment.stop + 1 - segment.start
        first += segment.start
        starts = [at for _, at in self._held]
        pieces = []
        for place in range(max(int(np.searchsorted(starts, first, "right")) - 1, 0), len(starts)):
            name, at = self._held[place]
            if at >= first + count:
                break
            pieces.append((name, slice(max(first - at, 0), first + count - at)))
        return pieces


class _H5Rows:
    def __init__(self, trajectories: H5Trajectories, file: h5py.File) -> None:
        self._of, self._file = trajectories, file

    def step(self, key: str, number: int) -> Array:
        segment = self._of.segments[number]
        if key == PRIORITY and self._of.priorities_of:
            return self._of.priorities_of[segment.group][segment.steps]
        rows = self._read(key, segment.group, segment.steps, self._of.steps[key])
        if segment.stop is not None and len(rows) != segment.stop - segment.start:
            raise BrokenEpisode(
                key,
                f"{hdf5.path_of(self._file)}: {segment.group}: has {counted(segment.start + len(rows), 'step')}; expected {segment.stop:,}, "
                f"as of {self._of.id_key}",
            )
        return rows

    def observe(self, key: str, number: int) -> Array:
        return self._observed(key, self._of.segments[number])

    def id(self, number: int) -> Any:
        segment = self._of.segments[number]
        ids = self.ids(segment, 1)
        if not len(ids):
            raise BrokenEpisode(self._of.id_key, f"{hdf5.path_of(self._file)}: {segment.group}: has no steps")
        return ids.reshape(-1)[0]

    def ids(self, segment: _Segment, most: int | None = None) -> Array:
        """[T] or [T, 1] the ids of the first `most` steps."""
        key = self._of.id_key
        if key in self._of.steps:
            rows = segment.steps if most is None else slice(segment.start, segment.start + most)
            return self._read(key, segment.group, rows, self._of.steps[key])
        return self._observed(key, segment)[:-1][:most]

    def _observed(self, key: str, segment: _Segment) -> Array:
        spec = self._of.observed[key]
        pieces = [self._read(key, group, rows, spec) for group, rows in self._of.observations(segment)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _read(self, key: str, group: str, rows: slice, spec: ArraySpec) -> Array:
        values = hdf5.read_column(self._file, f"{group}/{self._of.paths[key]}", key, rows)
        if values.dtype != spec.dtype or values.shape[1:] != spec.shape:
            expected = f"{spec.dtype}{list(spec.shape)}"
            raise BrokenEpisode(
                key,
                f"{hdf5.path_of(self._file)}: {group}: has {values.dtype}{list(values.shape[1:])}; expected {expected} as most trajectories",
            )
        return values


def _read_plain(file: h5py.File, name: str) -> Any:
    thing = hdf5.find(file, name)
    if isinstance(thing, h5py.Dataset) and thing.shape:
        if thing.size > _MOST_SIZES:
            raise SourceError(f"{hdf5.path_of(file)}: {name}: has {thing.size:,} values; expected a number, or a few")
        return hdf5.read_column(file, name, name)
    value = hdf5.read_value(file, name)
    return value.item() if isinstance(value, np.generic) else value
