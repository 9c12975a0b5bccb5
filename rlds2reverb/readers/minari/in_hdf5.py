"""Episodes in `main_data.hdf5` and in the files that its links lead to: groups `episode_0`, `episode_1`, ...

| group or dataset | holds |
| --- | --- |
| `observations`, `actions` | a dataset, or groups by the keys of Dicts and by `_index_i` in Tuples |
| an image | its pixels; or, since 0.5.3, JPEG files: bytes of any length, or rows of bytes where all have one length |
| `rewards`, `terminations`, `truncations` | a number per step |
| `infos`, and any other | datasets in groups |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers import hdf5
from rlds2reverb.readers.minari.facts import Facts
from rlds2reverb.readers.minari.places import MAIN_FILE, METADATA_FILE
from rlds2reverb.readers.minari.spaces import TEXT, Leaf
from rlds2reverb.readers.minari.stored import (
    ACTIONS,
    INFOS,
    OBSERVATIONS,
    REWARDS,
    TERMINATIONS,
    TRUNCATIONS,
    Episodes,
    Images,
)
from rlds2reverb.readers.paths import allowed
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.wording import line_of

_GROUP = re.compile(r"episode_(0|[1-9]\d{0,11})", re.ASCII)
_KNOWN = frozenset((OBSERVATIONS, ACTIONS, REWARDS, TERMINATIONS, TRUNCATIONS))


class InHdf5:
    """The HDF5 files of a dataset.

    Args:
      facts: of the dataset.

    Raises:
      SourceError: its main file cannot be read.
    """

    def __init__(self, facts: Facts) -> None:
        self._path = facts.checked(facts.folder / MAIN_FILE)
        self._is_old = not (facts.folder / METADATA_FILE).is_file()
        self._folder = Path(facts.folder.absolute().anchor) if facts.follow_links else allowed(facts.folder.parent)
        self._stamps = self._found_stamps()
        with self._main() as file:
            try:
                matches = [_GROUP.fullmatch(name) for name in hdf5.names(file)]
            except BrokenEpisode as broken:
                raise SourceError(broken.why) from broken
        self.numbers: Sequence[int] = sorted(int(one[1]) for one in matches if one is not None)

    @contextmanager
    def opened(self) -> Iterator[Episodes]:
        """The files."""
        with self._main() as file:
            yield lambda number: _Episode(_group(file, number))

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """The attributes of each episode's group; {} of a group that cannot be read."""
        with self._main() as file:
            for number in self.numbers:
                try:
                    yield _attributes(_group(file, number), self._is_old)
                except (BrokenEpisode, SourceError):
                    yield {}

    @contextmanager
    def _main(self) -> Iterator[h5py.File]:
        """The main file, as long as all files are those that were found first."""
        with hdf5.opened(self._path, self._folder, self._stamps.get(self._path)) as file:
            self._check_stamps()
            yield file
            self._check_stamps()

    def _found_stamps(self) -> dict[Path, hdf5.Stamp]:
        """Size and time of the last change of each HDF5 file in the folder."""
        try:
            told = {path: path.stat() for path in sorted(self._path.parent.glob("*.hdf5"))}
        except OSError as error:
            raise SourceError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return {path: (one.st_size, one.st_mtime_ns) for path, one in told.items()}

    def _check_stamps(self) -> None:
        if self._found_stamps() != self._stamps:
            raise SourceError(
                f"{self._path.parent}: its HDF5 files were written anew after they were first looked at; open the source again"
            )

    def leaves(self, number: int, field: str) -> tuple[Leaf, ...]:
        """The leaves of a field as an episode has them, for datasets without spaces: groups are Dicts, or Tuples.

        Raises:
          BrokenEpisode: there are none.
        """
        with self._main() as file:
            group = _group(file, number)
            found = hdf5.found(group, field)
            datasets = hdf5.leaves(found) if isinstance(found, h5py.Group) else {"": hdf5.Column(group, field, field)}
            if not datasets:
                raise BrokenEpisode(field, f"{hdf5.where(group)}/{field}: expected datasets, found none")
            return tuple(_leaf(group, field, path) for path in datasets)


def _leaf(group: h5py.Group, field: str, path: str) -> Leaf:
    name = f"{field}/{path}" if path else field
    spec = hdf5.Column(group, name, name).spec
    keys = tuple(path.split("/")) if path else ()
    return Leaf(keys, ArraySpec((), TEXT) if spec.dtype == object else spec, named=(True,) * len(keys))


def _group(file: h5py.File, number: int) -> h5py.Group:
    name = f"episode_{number}"
    try:
        group = hdf5.found(file, name)
    except BrokenEpisode as broken:
        way_out = "; if you trust it, add links=follow behind the name" if "not followed" in broken.why else ""
        raise BrokenEpisode("", f"{name}: {broken.why}{way_out}") from broken
    if not isinstance(group, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.path_of(file)}: {name}: expected a group")
    return group


def _attributes(group: h5py.Group, is_old: bool) -> dict[str, Any]:
    """The episode's; and the statistics of its rewards, which Minari 0.3 has with these."""
    told = hdf5.attributes(group)
    rewards = hdf5.found(group, REWARDS) if is_old else None
    if rewards is not None:
        told |= {f"rewards_{name}": value for name, value in hdf5.attributes(rewards).items()}
    return told


class _Episode:
    """A group."""

    def __init__(self, group: h5py.Group) -> None:
        self._group = group

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        """The dataset under the leaf's keys."""
        path = "/".join((field, *leaf.keys))
        if leaf.is_image and self._is_encoded(path, leaf):
            return Images(self._files(path, rows))
        return self._rows(hdf5.Column(self._group, path, path), rows)

    def plain(self, name: str) -> Array:
        """A dataset of a number per step; (T, 1) as the documentation of Minari 0.4 has it is the same."""
        column = hdf5.Column(self._group, name, name)
        values = column.rows()
        return values[:, 0] if values.shape[1:] == (1,) else values

    def others(self) -> Iterator[tuple[str, Array | None]]:
        """Every dataset that is none of the five, which are there, for all of them have been read."""
        if self._count() == len(_KNOWN):
            return
        for name in sorted(set(hdf5.names(self._group)) - _KNOWN, key=lambda name: (name != INFOS, name)):
            found = hdf5.found(self._group, name)
            datasets = hdf5.leaves(found) if isinstance(found, h5py.Group) else {"": found}
            for below, dataset in datasets.items():
                if isinstance(dataset, h5py.Dataset):
                    path = f"{name}/{below}" if below else name
                    yield path, self._other(path, dataset)

    def _count(self) -> int:
        try:
            return int(self._group.id.get_num_objs())
        except hdf5.ERRORS as error:
            raise self._unreadable("", error) from error

    def _other(self, path: str, dataset: h5py.Dataset) -> Array | None:
        try:
            has_rows = bool(dataset.shape) and (
                dataset.dtype.kind in "biufcS" or h5py.check_string_dtype(dataset.dtype) is not None
            )
        except hdf5.ERRORS as error:
            raise self._unreadable(path, error) from error
        return hdf5.Column(self._group, path, path, dataset.id).rows() if has_rows else None

    def _rows(self, column: hdf5.Column, rows: int) -> Array:
        if len(column) != rows:
            raise BrokenEpisode(
                column.path, f"{column.where}: has {len(column):,} rows; expected {rows:,}, by the rewards"
            )
        return column.rows()

    def _is_encoded(self, path: str, leaf: Leaf) -> bool:
        """Whether an image is stored as files: bytes of any length, or rows of bytes."""
        found = hdf5.found(self._group, path)
        return isinstance(found, h5py.Dataset) and len(found.shape or ()) < 1 + len(leaf.spec.shape)

    def _files(self, path: str, rows: int) -> list[bytes]:
        dataset: Any = hdf5.found(self._group, path)
        try:
            if h5py.check_vlen_dtype(dataset.dtype) != np.uint8:
                column = hdf5.Column(self._group, path, path)
                if column.spec.dtype != np.uint8 or len(column.shape) != 2:
                    raise BrokenEpisode(path, f"{column.where}: expected the bytes of a JPEG file in every row")
                return [row.tobytes() for row in self._rows(column, rows)]
            if dataset.shape != (rows,):
                raise BrokenEpisode(
                    path, f"{hdf5.where(dataset)}: has the shape {dataset.shape}; expected {rows:,} images"
                )
            return [file.tobytes() for file in dataset[()]]
        except hdf5.ERRORS as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> BrokenEpisode:
        return BrokenEpisode(path, f"{hdf5.where(self._group)}/{path}: cannot be read: {line_of(error)}")
