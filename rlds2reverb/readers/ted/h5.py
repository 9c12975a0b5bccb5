"""The H5 form: a group `traj_<i>` for each trajectory; observations have one row more than steps.

`is_full`, `shift`, `_storage_shape` and `_len` say how many of the groups were recorded: in a storage that is not full, the rows
behind `shift` of each column are left overs. TorchRL reads groups in the order of their names, and so does this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from rlds2reverb.readers.ted.keys import DONES, NEXT, REWARD, TRAJECTORY_IDS, TedOptions, last_part, renamed
from rlds2reverb.readers.ted.ring import sampled
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec

PREFIX = "traj"
_OF_THE_FORM = ("_storage_shape", "shift", "is_full", "_len")
_MOST_NESTED = 16


class H5Trajectories:
    """The trajectories of a file."""

    def __init__(self, name: str, path: Path, options: TedOptions) -> None:
        self._name, self._path, self._options = name, path, options
        if options.trajectories not in ("", "done"):
            raise SourceError(f"{name}: trajectories: the H5 form keeps trajectories as end flags part them; there is no other way")
        with hdf5.opened(path) as file:
            try:
                self._open(file)
            except hdf5._ERRORS as error:
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
            raise SourceError(f'{self._path}: {groups[0]}: expected "done" or "action"; found {", ".join(sorted(first))}')
        rows = shapes[self.rows_key].shape[0]
        self._groups, ends = self._valid(file, groups, form)
        self.steps = {key: ArraySpec(one.shape[1:], one.dtype) for key, one in shapes.items() if one.shape[0] == rows and key != "index"}
        self.observed = {key: ArraySpec(one.shape[1:], one.dtype) for key, one in shapes.items() if one.shape[0] == rows + 1}
        odd = sorted(set(shapes) - {*self.steps, *self.observed, "index"})
        if odd:
            raise SourceError(
                f"{self._path}: {groups[0]}/{self.paths[odd[0]]}: has {shapes[odd[0]].shape[0]:,} rows; expected {rows:,} or {rows + 1:,}"
            )
        self.id_key = next((key for key in TRAJECTORY_IDS if key in self.steps), "")
        self.remarks = self._of_ends(file, ends)

    def _valid(self, file: h5py.File, groups: list[str], form: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Groups of what was recorded, and those where recording stopped."""
        if form.get("is_full", True) or "shift" not in form or "_storage_shape" not in form:
            return groups, groups[-1:]
        rows, shift = int(np.atleast_1d(form["_storage_shape"])[0]), int(form["shift"])
        kept, stopped, at = [], [], 0
        for group in groups:
            found = file[group].get(self.paths[self.rows_key])
            length = found.shape[0] if isinstance(found, h5py.Dataset) and found.ndim else 0
            if at % max(rows, 1) < shift:
                kept.append(group)
            at += length
            if at % max(rows, 1) == shift % max(rows, 1):
                stopped.append(group)
        return kept, stopped

    def _of_ends(self, file: h5py.File, groups: list[str]) -> tuple[Remark, ...]:
        open_ends = set()
        for group in groups:
            try:
                done = hdf5.column(file[group], self.paths.get(f"{NEXT}done", "done"), "done", slice(-1, None))
            except BrokenEpisode:
                continue
            if done.size and not done.any():
                open_ends.add(group)
        if not open_ends:
            return ()
        what = "incomplete=drop leaves them out"
        if self._options.drop_incomplete:
            self._groups = [group for group in self._groups if group not in open_ends]
            what = "they are left out"
        text = f"{len(open_ends):,} trajectories end without an end flag, where recording stopped or was overwritten; {what}"
        return (Remark("forced_end", text, len(open_ends)),)

    def group(self, number: int) -> str:
        """The name of a trajectory's group."""
        return self._groups[number]


class _H5Rows:
    """An open file."""

    def __init__(self, trajectories: H5Trajectories, file: h5py.File) -> None:
        self._of, self._file = trajectories, file

    def step(self, key: str, number: int) -> Array:
        """[T, ...]."""
        return self._read(key, number, self._of.steps[key], 0)

    def observe(self, key: str, number: int) -> Array:
        """[T + 1, ...]."""
        return self._read(key, number, self._of.observed[key], 1)

    def _read(self, key: str, number: int, spec: ArraySpec, more: int) -> Array:
        group = self._of.group(number)
        found = hdf5.column(self._group(group, key), self._of.paths[key], key)
        if found.dtype != spec.dtype or found.shape[1:] != spec.shape:
            wanted = f"{spec.dtype}{list(spec.shape)}"
            raise BrokenEpisode(key, f"{self._file.filename}: {group}: has {found.dtype}{list(found.shape[1:])}; expected {wanted} as traj 0")
        return found

    def _group(self, group: str, key: str) -> h5py.Group:
        try:
            found = self._file.get(group)
        except hdf5._ERRORS as error:
            raise BrokenEpisode(key, f"{self._file.filename}: {group}: cannot be read: {error}") from error
        if not isinstance(found, h5py.Group):
            raise BrokenEpisode(key, f"{self._file.filename}: {group}: expected a group")
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
