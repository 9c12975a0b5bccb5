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
from rlds2reverb.readers.hdf5_links import LinkedFiles
from rlds2reverb.readers.minari.facts import Facts
from rlds2reverb.readers.minari.places import MAIN_FILE
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
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

_GROUP = re.compile(r"episode_(\d{1,12})", re.ASCII)
_KNOWN = frozenset((OBSERVATIONS, ACTIONS, REWARDS, TERMINATIONS, TRUNCATIONS))
_MOST_DEEP = 32
_WAY_OUT = "; if you trust it, add links=follow behind the name"


class InHdf5:
    """The HDF5 files of a dataset.

    Args:
      facts: of the dataset.
      follow_links: whether links may lead to files outside of the dataset's folder.
    """

    def __init__(self, facts: Facts, follow_links: bool) -> None:
        self._path = facts.folder / MAIN_FILE
        self._inside = None if follow_links else facts.folder.parent
        with hdf5.opened(self._path) as file:
            self.numbers = _numbers(file)

    numbers: Sequence[int]

    def sizes(self) -> list[Any]:
        """Name and size of each HDF5 file in the folder."""
        return [[file.name, file.stat().st_size] for file in sorted(self._path.parent.glob("*.hdf5"))]

    @contextmanager
    def opened(self) -> Iterator[Episodes]:
        """The files."""
        with LinkedFiles(self._path, self._inside, _WAY_OUT) as files:
            yield lambda number: _Episode(files, _episode(files, number))

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """The attributes of each episode's group; {} of a group that cannot be read."""
        with LinkedFiles(self._path, self._inside) as files:
            for number in self.numbers:
                try:
                    yield _attributes(files, _episode(files, number))
                except (BrokenEpisode, SourceError):
                    yield {}


def stored_leaves(path: Path, follow_links: bool, number: int, field: str) -> tuple[Leaf, ...]:
    """The leaves of a field as they are stored, for datasets without spaces: groups are Dicts, or Tuples.

    Raises:
      BrokenEpisode: there are none.
    """
    with LinkedFiles(path / MAIN_FILE, None if follow_links else path.parent, _WAY_OUT) as files:
        group = files.found(_episode(files, number), [field], field)
        found = _datasets(files, group, field)
        if not found:
            raise BrokenEpisode(field, f"{path / MAIN_FILE}: episode_{number}/{field}: no dataset")
        return tuple(_leaf(keys, dataset) for keys, dataset in found)


def _leaf(keys: tuple[str, ...], dataset: h5py.Dataset) -> Leaf:
    is_text = dataset.dtype.kind in "OS"
    spec = ArraySpec((), TEXT) if is_text else ArraySpec(dataset.shape[1:], dataset.dtype)
    return Leaf(keys, spec, named=tuple(not key.startswith("_index_") for key in keys))


def _numbers(file: h5py.File) -> list[int]:
    with _as_source_error(file):
        found = [_GROUP.fullmatch(name) for name in file]
    return sorted(int(one[1]) for one in found if one is not None)


@contextmanager
def _as_source_error(file: h5py.File) -> Iterator[None]:
    try:
        with hdf5.told_as_broken("", file):
            yield
    except BrokenEpisode as broken:
        raise SourceError(broken.why) from broken


def _episode(files: LinkedFiles, number: int) -> h5py.Group:
    name = f"episode_{number}"
    group = files.found(files.main, [name], "")
    if not isinstance(group, h5py.Group):
        raise BrokenEpisode("", f"{files.main.filename}: {name}: expected a group")
    return group


def _attributes(files: LinkedFiles, group: h5py.Group) -> dict[str, Any]:
    """The episode's; and the statistics of its rewards, which Minari 0.3 has with these."""
    found = hdf5.attributes(group)
    rewards = files.found(group, [REWARDS], REWARDS)
    if rewards is not None and len(rewards.attrs):
        found |= {f"rewards_{name}": value for name, value in hdf5.attributes(rewards).items()}
    return found


class _Episode:
    """A group."""

    def __init__(self, files: LinkedFiles, group: h5py.Group) -> None:
        self._files, self._group = files, group

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        """The dataset under the leaf's keys."""
        path = "/".join((field, *leaf.keys))
        keys = [part for key in leaf.keys for part in key.split("/")]
        values = self._values([field, *keys], path, rows)
        if leaf.is_image and values.ndim < 1 + len(leaf.spec.shape):
            return Images(_files_of(values, path))
        return values

    def plain(self, name: str) -> Array:
        """A dataset of a number per step; (T, 1) as the documentation of Minari 0.4 has it is the same."""
        values = self._values([name], name)
        return values[:, 0] if values.shape[1:] == (1,) else values

    def others(self) -> Iterator[tuple[str, Array | None]]:
        """Every dataset that is none of the five."""
        with hdf5.told_as_broken("", self._group):
            names = sorted(set(self._group) - _KNOWN, key=lambda name: (name != INFOS, name))
        for name in names:
            found = self._files.found(self._group, [name], name)
            if isinstance(found, h5py.Dataset):
                yield name, self._column(found, name)
            elif found is not None:
                for keys, dataset in _datasets(self._files, found, name):
                    path = "/".join((name, *keys))
                    yield path, self._column(dataset, path)

    def _column(self, dataset: h5py.Dataset, path: str) -> Array | None:
        with hdf5.told_as_broken(path, self._group, path):
            has_rows = dataset.ndim and (dataset.dtype.kind in "biufcS" or h5py.check_string_dtype(dataset.dtype))
        return self._read(dataset, path) if has_rows else None

    def _values(self, keys: list[str], path: str, rows: int | None = None) -> Array:
        found = self._files.found(self._group, keys, path)
        if found is None:
            raise BrokenEpisode(path, f"{self._where(path)}: there is no such dataset")
        if isinstance(found, h5py.Dataset) and found.ndim and rows not in (None, len(found)):
            raise BrokenEpisode(
                path, f"{self._where(path)}: has {len(found):,} rows; expected {rows:,}, as there are rewards"
            )
        return self._read(found, path)

    def _read(self, found: Any, path: str) -> Array:
        with hdf5.told_as_broken(path, self._group, path):
            return hdf5.values_of(found, path, self._group, path)

    def _where(self, path: str) -> str:
        return hdf5.place(self._group, path)


def _datasets(files: LinkedFiles, group: Any, path: str) -> list[tuple[tuple[str, ...], h5py.Dataset]]:
    """Keys and dataset of everything below a group."""
    found: list[tuple[tuple[str, ...], h5py.Dataset]] = []
    waiting: list[tuple[tuple[str, ...], Any]] = [((), group)]
    while waiting:
        keys, one = waiting.pop()
        if isinstance(one, h5py.Dataset):
            found.append((keys, one))
        elif len(keys) > _MOST_DEEP:
            raise BrokenEpisode(path, f"{group.file.filename}: {group.name}: groups nested more than {_MOST_DEEP} deep")
        elif isinstance(one, h5py.Group):
            with hdf5.told_as_broken(path, one):
                names = sorted(one, reverse=True)
            waiting += [((*keys, name), files.found(one, [name], path)) for name in names]
    return found


def _files_of(values: Array, path: str) -> list[bytes]:
    """The bytes of each image's file; rows of one length are filled up by nothing, so they are these bytes."""
    rows = list(values)
    if not all(isinstance(row, np.ndarray) and row.dtype == np.uint8 and row.ndim == 1 for row in rows):
        raise BrokenEpisode(path, f"{path}: expected the bytes of a JPEG file in every row")
    return [row.tobytes() for row in rows]
