"""Stored columns of an episode, from HDF5, Arrow or Parquet files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import h5py
import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats import hdf5
from rlds2reverb.formats.agreement import spread
from rlds2reverb.formats.arrow import read_arrow, read_parquet
from rlds2reverb.formats.minari.dataset import PARQUET, MinariFacts, read_json
from rlds2reverb.formats.minari.remote import MAIN_FILE, METADATA_FILE
from rlds2reverb.formats.minari.spaces import TEXT, Leaf
from rlds2reverb.formats.recordings import BrokenEpisode, refuse_broken
from rlds2reverb.formats.rows import scalars
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import line_of, shortened

OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
REWARDS, TERMINATIONS, TRUNCATIONS = "rewards", "terminations", "truncations"


@dataclass(frozen=True, eq=False)
class JpegFiles:
    """A column of images as the bytes of their JPEG files."""

    files: list[bytes]


_JPEG_BEGINS = b"\xff\xd8\xff"


def are_jpeg(files: Sequence[bytes]) -> bool:
    """Whether each of one or more files begins as JPEG does."""
    return bool(files) and all(file.startswith(_JPEG_BEGINS) for file in files)


class StoredEpisode(Protocol):
    """One episode. Each method raises `BrokenEpisode` for data that cannot be read."""

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | JpegFiles:
        """A column of "observations" or "actions"; broken unless it has that number of rows."""

    def plain(self, name: str) -> Array:
        """The column "rewards", "terminations" or "truncations", [T]."""

    def others(self, unread: Collection[str] = ()) -> Iterator[tuple[str, Array | JpegFiles | None]]:
        """Path and values of every further column that is not unread, `infos/...` first; None for values other than numbers, texts or images."""


Episodes = Callable[[int], StoredEpisode]  # an episode by its number, one of `Stored.numbers`


class Stored(Protocol):
    """The files of a dataset."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the episodes, ascending."""

    def open_episodes(self, unread: Collection[tuple[str, ...]] = ()) -> AbstractContextManager[Episodes]:
        """The files, open for reading episodes; `unread` are leaves that nobody asks for, as a field and the fields of structs below it."""

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """Feature -> value, as stored, of every episode; {} if they cannot be read."""


_GROUP = re.compile(r"episode_(0|[1-9]\d{0,11})", re.ASCII)
_KNOWN = frozenset((OBSERVATIONS, ACTIONS, REWARDS, TERMINATIONS, TRUNCATIONS))


class HdfStorage:
    """`main_data.hdf5` and the files that its links lead to: groups `episode_0`, `episode_1`, ...

    | group or dataset | content |
    | --- | --- |
    | `observations`, `actions` | a dataset, or groups by the keys of Dicts and by `_index_i` in Tuples |
    | an image | its pixels; or, since 0.5.3, JPEG files: bytes of any length, or rows of bytes if all have one length |
    | other uint8 values | as they are; or, by 0.5.3, JPEG files, too: its writer took all rows of one or two sizes, and 3 channels, for images |
    | `rewards`, `terminations`, `truncations` | a number per step |
    | `infos`, and any other | datasets in groups |

    Raises:
      SourceError: the main file cannot be read.
    """

    def __init__(self, facts: MinariFacts) -> None:
        self._path = facts.folder / MAIN_FILE
        with hdf5.open_file(self._path) as file, refuse_broken():
            matches = [_GROUP.fullmatch(name) for name in hdf5.list_names(file)]
        # HDF5 lists episode_10 before episode_2.
        self.numbers: Sequence[int] = sorted(int(match[1]) for match in matches if match is not None)

    @contextmanager
    def open_episodes(self, unread: Collection[tuple[str, ...]] = ()) -> Iterator[Episodes]:
        with hdf5.open_file(self._path) as file:
            yield lambda number: _HdfEpisode(_find_group(file, number))

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        """The attributes of each episode's group, and the statistics among those of its rewards, where Minari's document and 0.3 have them."""
        with hdf5.open_file(self._path) as file:
            looks_for_statistics = any(_read_statistics_of(file, number) for number in spread(self.numbers, _LOOKS))
            for number in self.numbers:
                try:
                    group = _find_group(file, number)
                    attributes = hdf5.read_attributes(group)
                except (BrokenEpisode, SourceError):  # reading the episode says why
                    yield {}
                    continue
                # Since 0.4 the group has them, if anything has; to open one more dataset in every episode takes time.
                if looks_for_statistics and "rewards_sum" not in attributes:
                    attributes = {**_read_statistics(group), **attributes}
                yield attributes

    def leaves(self, number: int, field: str) -> tuple[Leaf, ...]:
        """The leaves of a field in an episode, for datasets without spaces: groups are Dicts, or Tuples."""
        with hdf5.open_file(self._path) as file:
            group = _find_group(file, number)
            thing = hdf5.find(group, field)
            datasets = (
                hdf5.list_datasets(thing)
                if isinstance(thing, h5py.Group)
                else {"": hdf5.HdfColumn(group, field, field)}
            )
            if not datasets:
                raise BrokenEpisode(field, f"{hdf5.where(group)}/{field}: expected datasets, found none")
            leaves = []
            for path in datasets:
                name = f"{field}/{path}" if path else field
                spec = hdf5.HdfColumn(group, name, name).spec
                keys = tuple(path.split("/")) if path else ()
                leaves.append(
                    Leaf(keys, ArraySpec((), TEXT) if spec.dtype == object else spec, named=(True,) * len(keys))
                )
            return tuple(leaves)


_LOOKS = 16
"""Episodes whose rewards are looked at for statistics, spread over all: where none of them has any, those of others are not read."""


def _read_statistics_of(file: h5py.File, number: int) -> dict[str, Any]:
    try:
        return _read_statistics(_find_group(file, number))
    except BrokenEpisode:
        return {}


def _read_statistics(group: h5py.Group) -> dict[str, Any]:
    """The attributes of an episode's rewards; {} if they cannot be read: the episode is then a bad one."""
    try:
        rewards = hdf5.find(group, REWARDS)
        attributes = {} if rewards is None else hdf5.read_attributes(rewards)
    except (BrokenEpisode, SourceError):
        return {}
    return {f"rewards_{name}": value for name, value in attributes.items()}


def _find_group(file: h5py.File, number: int) -> h5py.Group:
    name = f"episode_{number}"
    try:
        group = hdf5.find(file, name)
    except BrokenEpisode as broken:
        raise BrokenEpisode("", f"{name}: {broken.why}") from broken
    if not isinstance(group, h5py.Group):
        raise BrokenEpisode("", f"{hdf5.path_of(file)}: {name}: expected a group")
    return group


class _HdfEpisode:
    def __init__(self, group: h5py.Group) -> None:
        self._group = group

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | JpegFiles:
        path = "/".join((field, *leaf.keys))
        dataset = hdf5.find(self._group, path) if leaf.spec.dtype == np.uint8 else None
        if isinstance(dataset, h5py.Dataset):
            # Before 0.5.4 nothing says whether images are JPEG files; pixels have one axis more than their space, and files do not.
            if leaf.is_image and len(dataset.shape or ()) < 1 + len(leaf.spec.shape):
                return JpegFiles(self._files(path, rows, dataset))
            if _holds_bytes(dataset) and dataset.shape != (rows, *leaf.spec.shape):
                files = self._files(path, rows, dataset)
                if are_jpeg(files):
                    return JpegFiles(files)
        return _read_rows(hdf5.HdfColumn(self._group, path, path), rows)

    def plain(self, name: str) -> Array:
        """A dataset with a number per step; also (T, 1), as in the documentation of Minari 0.4."""
        return scalars(hdf5.HdfColumn(self._group, name, name).rows())

    def others(self, unread: Collection[str] = ()) -> Iterator[tuple[str, Array | JpegFiles | None]]:
        try:
            # All but a few datasets have the five fields alone, and counting costs less than listing their names.
            if self._group.id.get_num_objs() == len(_KNOWN):
                return
        except hdf5.ERRORS as error:
            raise self._unreadable("", error) from error
        for name in sorted(set(hdf5.list_names(self._group)) - _KNOWN, key=lambda name: (name != INFOS, name)):
            thing = hdf5.find(self._group, name)
            datasets = hdf5.list_datasets(thing) if isinstance(thing, h5py.Group) else {"": thing}
            for below, dataset in datasets.items():
                path = f"{name}/{below}" if below else name
                if isinstance(dataset, h5py.Dataset) and path not in unread:
                    yield path, self._other(path, dataset)

    def _other(self, path: str, dataset: h5py.Dataset) -> Array | JpegFiles | None:
        try:
            if _holds_bytes(dataset) and are_jpeg(files := self._files(path, len(dataset), dataset)):
                return JpegFiles(files)
            has_rows = bool(dataset.shape) and (
                dataset.dtype.kind in "biufcS" or h5py.check_string_dtype(dataset.dtype) is not None
            )
        except hdf5.ERRORS as error:
            raise self._unreadable(path, error) from error
        return hdf5.HdfColumn(self._group, path, path, dataset.id).rows() if has_rows else None

    def _files(self, path: str, rows: int, dataset: h5py.Dataset) -> list[bytes]:
        """Image files, stored as bytes of any length, or as rows of bytes."""
        try:
            if h5py.check_vlen_dtype(dataset.dtype) != np.uint8:
                column = hdf5.HdfColumn(self._group, path, path)
                if column.spec.dtype != np.uint8 or len(column.shape) != 2:
                    raise BrokenEpisode(path, f"{column.where}: expected the bytes of a JPEG file in every row")
                return [row.tobytes() for row in _read_rows(column, rows)]
            if dataset.shape != (rows,):
                raise BrokenEpisode(
                    path, f"{hdf5.where(dataset)}: has the shape {dataset.shape}; expected {rows:,} images"
                )
            return [file.tobytes() for file in dataset[()]]
        except hdf5.ERRORS as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: Exception) -> BrokenEpisode:
        return BrokenEpisode(path, f"{hdf5.where(self._group)}/{path}: cannot be read: {line_of(error)}")


def _read_rows(column: hdf5.HdfColumn, rows: int) -> Array:
    if len(column) != rows:
        raise BrokenEpisode(column.path, f"{column.where}: has {len(column):,} rows; expected {rows:,}, by the rewards")
    return column.rows()


def _holds_bytes(dataset: h5py.Dataset) -> bool:
    """Whether each row is a number of bytes, which may be a file."""
    if h5py.check_vlen_dtype(dataset.dtype) == np.uint8:
        return len(dataset.shape or ()) == 1
    return dataset.dtype == np.uint8 and len(dataset.shape or ()) == 2


_FOLDER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)
_SHAPE = b"shape"


class ArrowStorage:
    """Arrow or Parquet files: a folder for each episode, named by its number, with `metadata.json` beside the file.

    A file has one row more than the episode has actions; the last row of a column that is one shorter is a filling. Columns of numbers are
    lists of one length, images binary (JPEG), Dicts and Tuples structs.

    Raises:
      SourceError: pyarrow is not installed, or the folder cannot be listed.
    """

    def __init__(self, facts: MinariFacts) -> None:
        self._folder, self._format = facts.folder, facts.format
        with needing("reading Minari's Arrow and Parquet files", "parquet", SourceError):
            import pyarrow  # noqa: F401
        try:
            names = [path.name for path in facts.folder.iterdir() if path.is_dir()]
        except OSError as error:
            raise SourceError(f"{facts.folder}: cannot be listed: {error.strerror}") from error
        self.numbers: Sequence[int] = sorted(int(name) for name in names if _FOLDER.fullmatch(name))

    @contextmanager
    def open_episodes(self, unread: Collection[tuple[str, ...]] = ()) -> Iterator[Episodes]:
        yield lambda number: _ArrowEpisode(*self._table(number, unread))

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        for number in self.numbers:
            try:
                metadata = self._metadata_of(number)
            except SourceError:  # `_table` makes a broken episode of it
                metadata = {}
            yield metadata

    def _metadata_of(self, number: int) -> dict[str, Any]:
        return read_json(self._folder / str(number) / METADATA_FILE)

    def _table(self, number: int, unread: Collection[tuple[str, ...]]) -> tuple[Any, str]:
        """The rows of an episode, and its folder, for messages."""
        from pyarrow import ArrowException, concat_tables

        folder = self._folder / str(number)
        files = sorted(folder.glob(f"*.{self._format}"))
        if not files:
            raise BrokenEpisode("", f"{folder}: no .{self._format} file")
        try:
            self._metadata_of(number)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        try:
            read = read_parquet if self._format == PARQUET else read_arrow
            table = concat_tables([read(file, unread) for file in files]).combine_chunks()
        except (ArrowException, SourceError, OSError, ValueError, MemoryError, KeyError) as error:
            raise BrokenEpisode("", f"{folder}: cannot be read as {self._format}: {shortened(str(error))}") from error
        return table, str(folder)


class _ArrowEpisode:
    def __init__(self, table: Any, where: str) -> None:
        self._table, self._where = table, where

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | JpegFiles:
        from pyarrow import types

        path = "/".join((field, *leaf.keys))
        values = self._field(field, leaf.fields, path)
        if field == ACTIONS:
            values = values[:-1]
        if len(values) != rows:
            raise self._broken(path, f"has {len(values):,} rows; expected {rows:,}, as there are rewards")
        is_binary = types.is_binary(values.type) or types.is_large_binary(values.type)
        if leaf.spec.dtype == np.uint8 and is_binary and not values.null_count:
            files = values.to_pylist()
            if leaf.is_image or are_jpeg(files):
                return JpegFiles(files)
        return self._values(values, leaf.spec.shape, path)

    def plain(self, name: str) -> Array:
        return self._values(self._field(name, (), name)[:-1], (), name)

    def others(self, unread: Collection[str] = ()) -> Iterator[tuple[str, Array | JpegFiles | None]]:
        if INFOS in self._table.column_names:
            yield from self._infos(INFOS, self._field(INFOS, (), INFOS), unread)

    def _field(self, name: str, fields: Sequence[str], path: str) -> Any:
        from pyarrow import ArrowException, types

        try:
            values = self._table.column(name).chunk(0)
            for field in fields:
                if not types.is_struct(values.type):
                    raise self._broken(path, f"expected a struct with {field}, found {values.type}")
                values = values.field(field)
        except (ArrowException, KeyError, IndexError) as error:
            raise self._broken(path, "there is no such column") from error
        return values

    def _values(self, values: Any, shape: tuple[int | None, ...], path: str) -> Array:
        from pyarrow import ArrowException, binary, types

        kind = values.type
        if values.null_count:
            raise self._broken(path, f"{values.null_count} rows have no value")
        try:
            if types.is_string(kind) or types.is_large_string(kind):
                return np.array(values.cast(binary()).to_pylist(), object)
            rows, flat = len(values), values
            if types.is_fixed_size_list(kind):
                flat, kind = values.flatten(), kind.value_type
            if flat.null_count or not (types.is_primitive(kind) and not types.is_temporal(kind)):
                raise self._broken(path, f"expected numbers, found {values.type}")
            return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(rows, *shape)
        except (ArrowException, ValueError, TypeError, MemoryError) as error:
            raise self._broken(path, f"cannot be read: {shortened(str(error))}") from error

    def _infos(self, path: str, values: Any, unread: Collection[str]) -> Iterator[tuple[str, Array | JpegFiles | None]]:
        from pyarrow import types

        for number in range(values.type.num_fields):
            field, below = values.type.field(number), values.field(number)
            name, is_list = f"{path}/{field.name}", types.is_fixed_size_list(field.type)
            if types.is_struct(field.type):
                yield from self._infos(name, below, unread)
            elif name in unread:
                continue
            elif is_list or not types.is_nested(field.type):
                shape: tuple[int, ...] = (field.type.list_size,) if is_list else ()
                recorded = (field.metadata or {}).get(_SHAPE)
                if recorded is not None and re.fullmatch(rb"(\d{1,9}(,\d{1,9})*)?", recorded):
                    shape = tuple(int(size) for size in recorded.split(b",") if size)
                yield name, self._values(below, shape, name)
            else:
                yield name, None

    def _broken(self, path: str, why: str) -> BrokenEpisode:
        return BrokenEpisode(path, f"{self._where}: {path}: {why}")
