"""The H5 form: a group `traj_<i>` for each trajectory; observations have one row more than steps.

`is_full`, `shift`, `_storage_shape` and `_len` say how many of the groups were recorded: in a storage that is not full, the rows
behind `shift` of each column are left overs. TorchRL reads groups in the order of their names, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from rlds2reverb.episodes import Array, byte_view
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.ted.incomplete import forced_end, overwritten
from rlds2reverb.readers.ted.keys import DONES, NEXT, REWARD, TRAJECTORY_IDS, TedOptions, last_part, renamed
from rlds2reverb.readers.ted.ring import sampled
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec

PREFIX = "traj"
_OF_THE_FORM = ("_storage_shape", "shift", "is_full", "_len")
_MOST_NESTED = 16
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, UnicodeError, OverflowError, MemoryError)
"""What h5py raises over a damaged file."""


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
            try:
                self._open(file)
            except _DAMAGE as error:
                raise SourceError(f"{path}: cannot be read: {error}") from error

    @property
    def count(self) -> int:
        """How many trajectories."""
        return len(self._groups)

    @contextmanager
    def reading(self) -> Iterator[_H5Rows]:
        """Opens the file."""
        with hdf5.opened(self._path) as file:
            yield _H5Rows(self, file)

    @cached_property
    def digest(self) -> str:
        """Of the groups' names, and of all values of some."""
        made = xxhash.xxh3_128(repr((len(self._groups), self.steps, self.observed)).encode())
        with self.reading() as rows:
            for number in sampled(self.count, 16):
                for key in sorted({*self.steps, *self.observed}):
                    read = rows.step if key in self.steps else rows.observe
                    try:
                        made.update(byte_view(np.ascontiguousarray(read(key, number))))
                    except BrokenEpisode as broken:
                        made.update(broken.why.encode())
        return made.hexdigest()

    def _open(self, file: h5py.File) -> None:
        groups = sorted(name for name in file if name.startswith(PREFIX))
        if not groups:
            raise SourceError(f'{self._path}: expected groups "traj_0" and so on, as H5StorageCheckpointer writes them')
        form = {name: _plain(file, name) for name in _OF_THE_FORM if name in file}
        self.constants = {name: _plain(file, name) for name in file if name not in groups and name not in _OF_THE_FORM}
        first = _datasets(file[groups[0]], self._path)
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
        shift, rows = int(form.get("shift", 0)), int(np.atleast_1d(form.get("_storage_shape", 0))[0])
        oldest = set(self._begins) if form.get("is_full") and 0 < shift < rows else set()
        self.remarks = (*self._of_ends(file, ends), *self._without(oldest, overwritten))

    def _valid(self, file: h5py.File, groups: list[str], form: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Groups of what was recorded, and those where recording stopped."""
        sizes = np.atleast_1d(form.get("_storage_shape", 0)).tolist()
        is_full, shift = bool(form.get("is_full", True)), int(form.get("shift", 0))
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
        found = {key: file.get(f"{group}/{self.paths[key]}") for key in (self.rows_key, *list(self.observed)[:1])}
        for key, one in found.items():
            if not isinstance(one, h5py.Dataset) or one.ndim == 0:
                raise SourceError(f"{self._path}: {group}/{self.paths[key]}: expected a dataset with rows")
        lengths = [one.shape[0] for one in found.values()]
        done = found[self.rows_key] if self.rows_key == f"{NEXT}done" else None
        return lengths[0], lengths[-1], done is not None and lengths[0] > 0 and bool(done[-1:].any())

    def _of_ends(self, file: h5py.File, groups: list[str]) -> tuple[Remark, ...]:
        open_ends = set()
        for group in groups:
            try:
                done = hdf5.column(file, f"{group}/{self.paths.get(f'{NEXT}done', 'done')}", "done")[-1:]
            except BrokenEpisode:
                continue
            if done.size and not done.any():
                open_ends.add(group)
        return tuple(self._without(open_ends, forced_end))

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


def _plain(file: h5py.File, name: str) -> Any:
    found = file.get(name)
    if not isinstance(found, h5py.Dataset) or found.size is None or found.size > 64:
        raise SourceError(f"{file.filename}: {name}: expected a number, or a few")
    value = found[()]
    return value if not isinstance(value, (np.generic, np.ndarray)) or value.ndim else value.item()


def _datasets(group: h5py.Group, path: Path, depth: int = 0) -> dict[str, h5py.Dataset]:
    """'/'-joined key -> dataset of a group."""
    if not isinstance(group, h5py.Group) or depth > _MOST_NESTED:
        raise SourceError(f"{path}: {group.name}: expected a group of datasets, nested at most {_MOST_NESTED} deep")
    made: dict[str, h5py.Dataset] = {}
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise SourceError(f"{path}: {group.name}/{name}: a link; they are not followed")
        found = group[name]
        if isinstance(found, h5py.Dataset):
            if found.ndim == 0:
                raise SourceError(f"{path}: {found.name}: expected rows")
            made[name] = found
        else:
            made |= {f"{name}/{key}": one for key, one in _datasets(found, path, depth + 1).items()}
    return made
