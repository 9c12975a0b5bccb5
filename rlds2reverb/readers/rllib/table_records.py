"""Parquet files with a row per record: a sample batch, or an episode of the new stack.

An episode is the state of a `SingleAgentEpisode`, as msgpack with the arrays of msgpack-numpy. Sources: rllib/env/single_agent_episode.py
(`get_state`), rllib/env/utils/infinite_lookback_buffer.py, msgpack_numpy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.arrow import ERRORS, ParquetFiles
from rlds2reverb.readers.rllib.batches import Part
from rlds2reverb.readers.rllib.cells import record_of
from rlds2reverb.readers.rllib.episode_states import episode_columns, episode_part, state_of
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.records import converted, parts
from rlds2reverb.readers.rllib.scanned import ScannedFiles
from rlds2reverb.readers.rllib.store import Reader, Settings, Wanted
from rlds2reverb.readers.rllib.values import Leaves
from rlds2reverb.wording import line_of

EPISODE = "item"
"""The column of episodes."""
_PARTS = 1 << 16
"""More than a record has parts."""


class RecordTables(ScannedFiles):
    """Files with a row per record."""

    def _scan(self, _: Wanted) -> Iterator[Found]:
        with closing(ParquetFiles(self._files)) as parquet:
            for number, file in enumerate(self._files):
                for group, row, where in self._rows(parquet, number):
                    try:
                        found = self._parts(parquet, number, group, row)
                    except BrokenEpisode as broken:
                        self.troubles.add(where, broken.why)
                        continue
                    for place, part in enumerate(found):
                        yield Found(Place(number, group, row * _PARTS + place), file, part)

    def _rows(self, parquet: ParquetFiles, number: int) -> Iterator[tuple[int, int, str]]:
        file = self._files[number]
        try:
            told = parquet.opened(number).metadata
            sizes = [told.row_group(group).num_rows for group in range(told.num_row_groups)]
        except (SourceError, *ERRORS) as error:
            self.troubles.add(str(file), line_of(error))
            return
        for group, rows in enumerate(sizes):
            try:
                record_at(parquet, number, group, 0, self.settings)
            except BrokenEpisode as broken:
                self.troubles.add(f"{file}: row group {group}", broken.why)
                continue
            for row in range(rows):
                yield group, row, f"{file}: row group {group}, row {row:,}"

    def _parts(self, parquet: ParquetFiles, number: int, group: int, row: int) -> list[Part]:
        file = self._files[number]
        record = record_at(parquet, number, group, row, self.settings)
        if isinstance(record, bytes):
            return [episode_part(state_of(record))]
        return parts(record, self.settings, str(file), file.run is not None)

    def reader(self, wanted: frozenset[str]) -> Reader:
        """Reads the columns of these names; close it after use."""
        return RecordReader(self._files, self.settings, wanted)


class RecordReader:
    """Columns of records."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str]) -> None:
        self._files, self._settings, self._wanted = files, settings, wanted
        self._parquet = ParquetFiles(files)
        self._cache = settings.cache()

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column; see `lines.JsonReader.column`."""
        row, part = divmod(place.part, _PARTS)
        key = place.file, place.at, row
        columns = self._cache.get(key)
        where = f"{self._files[place.file]}: row group {place.at}, row {row:,}"
        if columns is None:
            columns = self._converted(place, row, where)
            self._cache.put(key, columns)
        found = columns.get((part, name))
        if found is None:
            raise LookupError(where)
        if isinstance(found, BrokenEpisode):
            raise BrokenEpisode(found.path, found.why)
        leaves: Leaves = found
        return leaves

    def close(self) -> None:
        """Closes the files."""
        self._parquet.close()

    def _converted(self, place: Place, row: int, where: str) -> dict[Any, Any]:
        record = record_at(self._parquet, place.file, place.at, row, self._settings)
        if isinstance(record, bytes):
            return episode_columns(state_of(record), self._settings, where, self._wanted)
        return converted(record, self._settings, where, self._wanted)


def record_at(parquet: ParquetFiles, number: int, group: int, row: int, settings: Settings) -> Any:
    """A row: the bytes of an episode, or a record as `cells` makes it.

    Raises:
      BrokenEpisode: it cannot be read.
    """
    try:
        names = parquet.opened(number).schema_arrow.names
        if EPISODE in names:
            value = parquet.group(number, group, [EPISODE])[EPISODE][row].as_py()
            if not isinstance(value, bytes):
                raise BrokenEpisode("", f"expected an episode's bytes, found {type(value).__name__}")
            return value
        return record_of(parquet.group(number, group, names), row, settings.names.of(n.INFOS))
    except SourceError as error:
        raise BrokenEpisode("", str(error)) from error
    except ERRORS as error:
        raise BrokenEpisode("", line_of(error)) from error
