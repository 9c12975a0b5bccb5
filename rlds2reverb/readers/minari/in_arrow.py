"""Episodes in Arrow and Parquet files: a folder for each, named by its number, with `metadata.json` beside the file.

A file has a row more than the episode has actions: where a column is one shorter, its last row is a filling. Columns of numbers are lists
of one length, images binary (JPEG), Dicts and Tuples structs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.readers.arrow import read_arrow, read_parquet
from rlds2reverb.readers.minari.facts import PARQUET, Facts, read_json
from rlds2reverb.readers.minari.places import METADATA_FILE
from rlds2reverb.readers.minari.spaces import Leaf
from rlds2reverb.readers.minari.stored import ACTIONS, INFOS, Episodes, Images
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.wording import shortened

_Stamp = tuple[str, int, int]
"""A file's name, its size in bytes, and the time of its last change in nanoseconds."""
_FOLDER = re.compile(r"0|[1-9]\d{0,11}", re.ASCII)
_SHAPE = b"shape"


class InArrow:
    """The Arrow or Parquet files of a dataset.

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
        """Nothing stays open between episodes."""
        yield lambda number: _Episode(*self._table(number))

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


class _Episode:
    """A table."""

    def __init__(self, table: Any, where: str) -> None:
        self._table, self._where = table, where

    def leaf(self, field: str, leaf: Leaf, rows: int) -> Array | Images:
        """The values of the field, without its filling."""
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
        """The values of the column, without its filling."""
        values = _values(self._field(name, (), name)[:-1], (), False, name, self._where)
        assert not isinstance(values, Images)  # only an image's column is
        return values

    def others(self) -> Iterator[tuple[str, Array | None]]:
        """What is in `infos`."""
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
    """Values of Arrow as rows of a shape."""
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
    """Paths and values below a struct."""
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
