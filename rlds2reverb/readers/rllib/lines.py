"""Files of JSON lines, plain or in zip files: one record a line, read in streams and by offset.

A record is RLlib's `SampleBatch` or `MultiAgentBatch`, or (the runners of the new stack) one step. Source: rllib/offline/json_writer.py.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.batches import Part
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.packed import PACKED
from rlds2reverb.readers.rllib.records import converted, parts
from rlds2reverb.readers.rllib.scanned import ScannedFiles
from rlds2reverb.readers.rllib.store import Kept, Settings, Wanted
from rlds2reverb.readers.rllib.values import Leaves
from rlds2reverb.wording import shortened

_LONGEST_LINE = 128 << 20
"""Bytes. RLlib begins a new file after 64 MiB."""
_OPEN_FILES = 8
_BUFFER_BYTES = 1 << 20
_ERRORS = (OSError, BadZipFile, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError)
"""What reading a damaged file or zip file raises."""


class JsonLines(ScannedFiles):
    """Lines of JSON files. Of the first lines, columns that are wanted are kept."""

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        super().__init__(files, settings)
        self._kept = settings.kept()

    def _scan(self, wanted: Wanted) -> Iterator[Found]:
        for number, file in enumerate(self._files):
            self._kept.begin(number, file.path)
            for line_number, (at, line) in enumerate(_lines(file), 1):
                where = f"{file}: line {line_number:,}"
                if line.isspace():
                    self.troubles.empty += 1
                    continue
                try:
                    record = parsed(line)
                    found = parts(record, self.settings, where, file.run is not None)
                    if not self._kept.is_full and PACKED not in line:
                        self._keep(record, Place(number, at, 0), found, wanted)
                except BrokenEpisode as broken:
                    self.troubles.add(where, broken.why)
                    continue
                for place, part in enumerate(found):
                    yield Found(Place(number, at, place), file, part)

    def _keep(self, record: Any, place: Place, found: list[Part], wanted: Wanted) -> None:
        names = frozenset(filter(wanted, frozenset(n.NAMES).union(*(part.columns for part in found))))
        columns = converted(record, self.settings, _where(self._files, place), names)
        self._kept.put((place.file, place.at), columns)

    def reader(self, wanted: frozenset[str]) -> JsonReader:
        """Reads the columns of these names; close it after use."""
        return JsonReader(self._files, self.settings, wanted, self._kept)


class JsonReader:
    """Columns of records, by place. Keeps the files of late open, and the lines that it converted, within a bound of bytes."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str], kept: Kept) -> None:
        self._files, self._settings, self._wanted, self._kept = files, settings, wanted, kept
        self._open: OrderedDict[int, IO[bytes]] = OrderedDict()
        self._cache = settings.cache()
        self._as_scanned: dict[int, bool] = {}

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column.

        Raises:
          LookupError: the record has no such column; with the place.
          BrokenEpisode: the record cannot be read any more, or the column is no column.
        """
        key = place.file, place.at
        columns = (self._kept.get(key) if self._is_as_scanned(place.file) else None) or self._cache.get(key)
        if columns is None:
            columns = converted(parsed(self._line(place)), self._settings, self._where(place), self._wanted)
            self._cache.put(key, columns)
        found = columns.get((place.part, name))
        if found is None:
            raise LookupError(self._where(place))
        if isinstance(found, BrokenEpisode):
            raise BrokenEpisode(found.path, found.why)
        return found

    def close(self) -> None:
        """Closes the files."""
        while self._open:
            self._open.popitem()[1].close()

    def _where(self, place: Place) -> str:
        return _where(self._files, place)

    def _is_as_scanned(self, number: int) -> bool:
        if number not in self._as_scanned:
            self._as_scanned[number] = self._kept.is_of(number, self._files[number].path)
        return self._as_scanned[number]

    def _line(self, place: Place) -> bytes:
        try:
            file = self._opened(place.file)
            file.seek(place.at)
            return file.readline(_LONGEST_LINE)
        except _ERRORS as error:
            raise BrokenEpisode("", f"{self._where(place)}: cannot be read: {shortened(str(error))}") from error

    def _opened(self, number: int) -> IO[bytes]:
        if number not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[number] = _opened(self._files[number])
        self._open.move_to_end(number)
        return self._open[number]


def _where(files: list[DataFile], place: Place) -> str:
    return f"{files[place.file]}: the line at byte {place.at:,}"


def parsed(line: bytes) -> Any:
    """What a line holds.

    Raises:
      BrokenEpisode: it is no JSON.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError, MemoryError) as error:
        raise BrokenEpisode("", f"no JSON: {shortened(str(error))}") from error


def _lines(file: DataFile) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each line.

    Raises:
      SourceError: the file cannot be read, or has a line that is too long.
    """
    try:
        with _opened(file) as stream:
            at = 0
            while line := stream.readline(_LONGEST_LINE):
                if len(line) >= _LONGEST_LINE:
                    raise SourceError(
                        f"{file}: a line of more than {_LONGEST_LINE >> 20} MiB at byte {at:,}; expected one record a line"
                    )
                yield at, line
                at += len(line)
    except _ERRORS as error:
        raise SourceError(f"{file}: cannot be read: {shortened(str(error))}") from error


def _opened(file: DataFile) -> IO[bytes]:
    if not file.member:
        return Path(file.path).open("rb", buffering=_BUFFER_BYTES)
    return ZipFile(file.path).open(file.member)
