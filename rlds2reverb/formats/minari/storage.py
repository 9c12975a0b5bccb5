"""Stored columns of an episode, from HDF5, Arrow or Parquet files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.arrow import read_arrow, read_parquet
from rlds2reverb.formats.minari.dataset import MAIN_FILE, METADATA_FILE, PARQUET, Facts, read_json
from rlds2reverb.formats.minari.spaces import TEXT, Leaf
from rlds2reverb.formats.paths import allowed
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import line_of, shortened

OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
REWARDS, TERMINATIONS, TRUNCATIONS = "rewards", "terminations", "truncations"


@dataclass(frozen=True, eq=False)
class Images:
    """A column of images as the bytes of their JPEG files."""

    files: list[bytes]


class StoredEpisode(Protocol):
    """One episode. Each method raises `BrokenEpisode` for what cannot be read."""

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        """A column of "observations" or "actions", with so many rows; what has more or fewer is broken."""

    def plain(self, name: str) -> Array:
        """The column "rewards", "terminations" or "truncations", [T]."""

    def others(self) -> Iterator[tuple[str, Array | None]]:
        """Path and values of every further column, `infos/...` first of all; None for what is no column of numbers or texts."""


Episodes = Callable[[int], StoredEpisode]
"""An episode by the number that it has among `Stored.numbers`."""


class Stored(Protocol):
    """The files of a dataset."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers that the episodes there have, ascending."""

    def opened(self) -> AbstractContextManager[Episodes]:
        """The files, open for reading episodes."""

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """Of every episode: feature -> value, as it is stored."""


_GROUP = re.compile(r"episode_(0|[1-9]\d{0,11})", re.ASCII)
_KNOWN = frozenset((OBSERVATIONS, ACTIONS, REWARDS, TERMINATIONS, TRUNCATIONS))


class HdfStorage:
    """`main_data.hdf5` and the files that its links lead to: groups `episode_0`, `episode_1`, ...

    | group or dataset | holds |
    | --- | --- |
    | `observations`, `actions` | a dataset, or groups by the keys of Dicts and by `_index_i` in Tuples |
    | an image | its pixels; or, since 0.5.3, JPEG files: bytes of any length, or rows of bytes where all have one length |
    | `rewards`, `terminations`, `truncations` | a number per step |
    | `infos`, and any other | datasets in groups |

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
        with self._main() as file:
            yield lambda number: _HdfEpisode(_group(file, number))

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


class _HdfEpisode:
    def __init__(self, group: h5py.Group) -> None:
        self._group = group

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
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
        try:
            if self._group.id.get_num_objs() == len(_KNOWN):
                return
        except hdf5.ERRORS as error:
            raise self._unreadable("", error) from error
        for name in sorted(set(hdf5.names(self._group)) - _KNOWN, key=lambda name: (name != INFOS, name)):
            found = hdf5.found(self._group, name)
            datasets = hdf5.leaves(found) if isinstance(found, h5py.Group) else {"": found}
            for below, dataset in datasets.items():
                if isinstance(dataset, h5py.Dataset):
                    path = f"{name}/{below}" if below else name
                    yield path, self._other(path, dataset)

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


_Stamp = tuple[str, int, int]
"""A file's name, its size in bytes, and the time of its last change in nanoseconds."""
_FOLDER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)
_SHAPE = b"shape"


class ArrowStorage:
    """Arrow or Parquet files: a folder for each episode, named by its number, with `metadata.json` beside the file.

    A file has a row more than the episode has actions: where a column is one shorter, its last row is a filling. Columns of numbers are lists of
    one length, images binary (JPEG), Dicts and Tuples structs.

    Args:
      facts: of the dataset.

    Raises:
      SourceError: pyarrow is not installed, or the folder cannot be listed.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts, self._folder, self._format = facts, facts.folder, facts.format
        with needing("reading Minari's Arrow and Parquet files", "parquet", SourceError):
            import pyarrow  # noqa: F401
        try:
            names = [one.name for one in os.scandir(facts.folder) if one.is_dir()]
        except OSError as error:
            raise SourceError(f"{facts.folder}: cannot be listed: {error.strerror}") from error
        self.numbers: Sequence[int] = sorted(int(name) for name in names if _FOLDER.fullmatch(name))

    @contextmanager
    def opened(self) -> Iterator[Episodes]:
        yield lambda number: _ArrowEpisode(*self._table(number))

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """The `metadata.json` of each episode; {} where that cannot be read."""
        for number in self.numbers:
            try:
                yield self._told(number)
            except SourceError:  # the episode is a bad one: `_table`
                yield {}

    def _told(self, number: int) -> dict[str, Any]:
        return read_json(self._facts.checked(self._folder / str(number) / METADATA_FILE))

    @cached_property
    def _stamps(self) -> dict[int, tuple[_Stamp, ...]]:
        """What the files of each episode were when they were first looked at."""
        return {number: self._stamps_of(number) for number in self.numbers}

    def _stamps_of(self, number: int) -> tuple[_Stamp, ...]:
        files = sorted((self._folder / str(number)).glob(f"*.{self._format}"))
        try:
            told = [file.stat() for file in files]
        except OSError as error:
            raise SourceError(f"{error.filename}: cannot be read: {error.strerror}") from error
        return tuple((file.name, one.st_size, one.st_mtime_ns) for file, one in zip(files, told))

    def _files(self, number: int) -> list[Path]:
        """The files of an episode.

        Raises:
          BrokenEpisode: one is a link that is not followed, or there is none.
          SourceError: they are not those that were first looked at.
        """
        folder, stamps = self._folder / str(number), self._stamps[number]
        if stamps != self._stamps_of(number):
            raise SourceError(f"{folder}: was written anew after it was first looked at; open the source again")
        if not stamps:
            raise BrokenEpisode("", f"{folder}: no .{self._format} file")
        try:
            return [self._facts.checked(folder / name) for name, _, _ in stamps]
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error

    def _table(self, number: int) -> tuple[Any, str]:
        from pyarrow import ArrowException, concat_tables

        folder = self._folder / str(number)
        files = self._files(number)
        try:
            self._told(number)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        try:
            table = concat_tables([self._read(file) for file in files]).combine_chunks()
        except (ArrowException, OSError, ValueError, MemoryError, KeyError) as error:
            raise BrokenEpisode("", f"{folder}: cannot be read as {self._format}: {shortened(str(error))}") from error
        return table, str(folder)

    def _read(self, file: Path) -> Any:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OSError(f"{file} is no regular file")
        return read_parquet(file) if self._format == PARQUET else read_arrow(file)


class _ArrowEpisode:
    def __init__(self, table: Any, where: str) -> None:
        self._table, self._where = table, where

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        path = "/".join((field, *leaf.keys))
        values = self._field(field, leaf.fields, path)
        if field == ACTIONS:
            values = values[:-1]
        if len(values) != rows:
            raise BrokenEpisode(
                path, f"{self._where}: {path}: has {len(values):,} rows; expected {rows:,}, as there are rewards"
            )
        return _values(values, leaf.spec.shape, leaf.is_image, path, self._where)

    def plain(self, name: str) -> Array:
        values = _values(self._field(name, (), name)[:-1], (), False, name, self._where)
        assert not isinstance(values, Images)  # only an image's column is
        return values

    def others(self) -> Iterator[tuple[str, Array | None]]:
        if INFOS in self._table.column_names:
            yield from _infos(INFOS, self._field(INFOS, (), INFOS), self._where)

    def _field(self, name: str, fields: Sequence[str], path: str) -> Any:
        from pyarrow import ArrowException, types

        try:
            values = self._table.column(name).chunk(0)
            for field in fields:
                if not types.is_struct(values.type):
                    raise BrokenEpisode(
                        path, f"{self._where}: {path}: expected a struct with {field}, found {values.type}"
                    )
                values = values.field(field)
        except (ArrowException, KeyError, IndexError) as error:
            raise BrokenEpisode(path, f"{self._where}: {path}: there is no such column") from error
        return values


def _values(values: Any, shape: tuple[int | None, ...], is_image: bool, path: str, where: str) -> Array | Images:
    from pyarrow import ArrowException, binary, types

    kind = values.type
    if values.null_count:
        raise BrokenEpisode(path, f"{where}: {path}: {values.null_count} rows have no value")
    try:
        if is_image and (types.is_binary(kind) or types.is_large_binary(kind)):
            return Images(values.to_pylist())
        if types.is_string(kind) or types.is_large_string(kind):
            return _objects(values.cast(binary()).to_pylist())
        rows, flat = len(values), values
        if types.is_fixed_size_list(kind):
            flat, kind = values.flatten(), kind.value_type
        if flat.null_count or not (types.is_primitive(kind) and not types.is_temporal(kind)):
            raise BrokenEpisode(path, f"{where}: {path}: expected numbers, found {values.type}")
        return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(rows, *shape)
    except (ArrowException, ValueError, TypeError, MemoryError) as error:
        raise BrokenEpisode(path, f"{where}: {path}: cannot be read: {shortened(str(error))}") from error


def _objects(texts: list[bytes]) -> Array:
    column = np.empty(len(texts), object)
    column[:] = texts
    return column


def _infos(path: str, values: Any, where: str) -> Iterator[tuple[str, Array | None]]:
    from pyarrow import types

    for number in range(values.type.num_fields):
        field, below = values.type.field(number), values.field(number)
        name = f"{path}/{field.name}"
        if types.is_struct(field.type):
            yield from _infos(name, below, where)
        elif types.is_fixed_size_list(field.type) or not types.is_nested(field.type):
            yield name, _info(name, field, below, where)
        else:
            yield name, None


def _info(path: str, field: Any, values: Any, where: str) -> Array | None:
    from pyarrow import types

    shape: tuple[int, ...] = (field.type.list_size,) if types.is_fixed_size_list(field.type) else ()
    told = (field.metadata or {}).get(_SHAPE)
    if told is not None and re.fullmatch(rb"(\d{1,9}(,\d{1,9})*)?", told):
        shape = tuple(int(size) for size in told.split(b",") if size)
    found = _values(values, shape, False, path, where)
    return None if isinstance(found, Images) else found
