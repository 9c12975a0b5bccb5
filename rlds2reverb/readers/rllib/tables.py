"""Parquet files: a row per step, per sample batch, or per episode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.arrow import ParquetFiles, leaves_of
from rlds2reverb.readers.rllib.batches import Head, Part, part_of
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.scanned import ScannedFiles
from rlds2reverb.readers.rllib.store import Reader, Settings, Store, Wanted
from rlds2reverb.readers.rllib.table_records import EPISODE, RecordTables
from rlds2reverb.readers.rllib.values import Converter, Leaves

_KEYS = (n.EPS_ID, n.AGENT_ID, n.AGENT_INDEX, n.MODULE_ID, n.T, n.TERMINATEDS, n.TRUNCATEDS, n.DONES)

_TRIED = 100


def open_tables(files: list[DataFile], settings: Settings) -> Store:
    """The files, by what the first one's rows are.

    Raises:
      SourceError: it is none of RLlib's.
    """
    schema = _first_schema(files)
    if EPISODE in schema.names and pa.types.is_binary(schema.field(EPISODE).type):
        return RecordTables(files, settings)
    obs, eps = settings.names.of(n.OBS), settings.names.of(n.EPS_ID)
    if obs not in schema.names:
        raise SourceError(
            f'{files[0]}: no column "{obs}"; it has {", ".join(schema.names)}. columns=obs:NAME;actions:NAME;... says which are RLlib\'s'
        )
    if "type" in schema.names or (eps in schema.names and pa.types.is_nested(schema.field(eps).type)):
        return RecordTables(files, settings)
    return StepTables(files, settings)


def _first_schema(files: list[DataFile]) -> pa.Schema:
    """That of the first file that can be read; others are counted as they are scanned."""
    why: SourceError | None = None
    with closing(ParquetFiles(files)) as parquet:
        for number in range(min(len(files), _TRIED)):
            try:
                return parquet.opened(number).schema_arrow
            except SourceError as error:
                why = why or error
    raise why or SourceError(f"{files[0]}: no Parquet file")


class StepTables(ScannedFiles):
    """Files with a row per step; a part is a row group."""

    def _scan(self, _: Wanted) -> Iterator[Found]:
        with closing(ParquetFiles(self._files)) as parquet:
            for number, file in enumerate(self._files):
                try:
                    groups = parquet.opened(number).metadata.num_row_groups
                except SourceError as error:
                    self.troubles.add(str(file), str(error))
                    continue
                for group in range(groups):
                    try:
                        part = self._part(parquet, number, group)
                    except BrokenEpisode as broken:
                        self.troubles.add(f"{file}: row group {group}", broken.why)
                        continue
                    yield Found(Place(number, group, 0), file, part)

    def _part(self, parquet: ParquetFiles, number: int, group: int) -> Part:
        file, tells_ends = self._files[number], self._files[number].run is not None
        opened = parquet.opened(number)
        known = {self.settings.names.standard(name): name for name in opened.schema_arrow.names}
        keys = [name for name in (*_KEYS, n.REWARDS) if name in known]
        ends = [name for name in (n.OBS, n.NEXT_OBS) if tells_ends and name in known]
        table = parquet.read(number, group, [known[name] for name in (*keys, *ends)])
        rewards = _values(table, known.get(n.REWARDS)) if n.REWARDS in known else None
        where = Converter(f"{file}: row group {group}", self.settings.floats)
        head = Head(
            table.num_rows,
            "",
            False,
            frozenset(known),
            np.asarray(rewards) if tells_ends and rewards is not None else None,
            _ends(table, known, where) if tells_ends and table.num_rows else ("", ""),
        )
        return part_of(head, lambda name: _values(table, known.get(name)), self.settings.done_means)

    def reader(self, wanted: frozenset[str]) -> Reader:
        """Reads the columns of these names; close it after use."""
        return StepReader(self._files, self.settings, wanted)


class StepReader:
    """Columns of row groups."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str]) -> None:
        self._files, self._settings, self._wanted = files, settings, wanted
        self._parquet = ParquetFiles(files)
        self._cache = settings.cache()

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column; see `lines.JsonReader.column`."""
        key = place.file, place.at
        columns = self._cache.get(key)
        if columns is None:
            columns = self._read(place)
            self._cache.put(key, columns)
        if name not in columns:
            raise LookupError(self._where(place))
        if isinstance(columns[name], BrokenEpisode):
            raise BrokenEpisode(columns[name].path, columns[name].why)
        found: Leaves = columns[name]
        return found

    def close(self) -> None:
        """Closes the files."""
        self._parquet.close()

    def _where(self, place: Place) -> str:
        return f"{self._files[place.file]}: row group {place.at}"

    def _read(self, place: Place) -> dict[str, Any]:
        try:
            there = set(self._parquet.opened(place.file).schema_arrow.names)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        known = {name: self._settings.names.of(name) for name in self._wanted}
        known = {name: column for name, column in known.items() if column in there}
        table = self._parquet.read(place.file, place.at, sorted(known.values()))
        converter = Converter(self._where(place), self._settings.floats)
        made: dict[str, Any] = {}
        for name, column in known.items():
            try:
                made[name] = leaves_of(table.schema.field(column), table[column], name, converter)
            except BrokenEpisode as broken:
                made[name] = broken
        return made


def _values(table: pa.Table, column: str | None) -> Array | None:
    """A column of ids, numbers or flags; None where there is none or nothing in it."""
    if column is None:
        return None
    values = table[column]
    if values.null_count == table.num_rows:
        return None
    if values.null_count:
        raise BrokenEpisode(column, f'column "{column}": {values.null_count:,} rows without a value')
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        encoded = values.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        return np.asarray(np.asarray(encoded.dictionary.to_pylist(), str)[encoded.indices.to_numpy()])
    return np.asarray(values.to_numpy())


def _ends(table: pa.Table, known: dict[str, str], converter: Converter) -> tuple[str, str]:
    def row(name: str, at: int) -> str:
        if name not in known:
            return ""
        leaves = leaves_of(table.schema.field(known[name]), table[known[name]].slice(at, 1), name, converter)
        return repr({path: np.asarray(column[0]).tolist() for path, column in leaves.items()})

    return row(n.OBS, 0), row(n.NEXT_OBS, table.num_rows - 1)
