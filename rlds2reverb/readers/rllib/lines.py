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
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.records import converted, parts
from rlds2reverb.readers.rllib.scanned import Scanned
from rlds2reverb.readers.rllib.store import Settings
from rlds2reverb.readers.rllib.values import Leaves
from rlds2reverb.wording import shortened

_LONGEST_LINE = 128 << 20
"""Bytes. RLlib begins a new file after 64 MiB."""
_OPEN_FILES = 8
_BUFFER_BYTES = 1 << 20
_ERRORS = (OSError, BadZipFile, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError)
"""What reading a damaged file or zip file raises."""


class JsonLines(Scanned):
    """Lines of JSON files; the fingerprint is of their bytes."""

    def _scan(self) -> Iterator[Found]:
        for number, file in enumerate(self._files):
            for line_number, (at, line) in enumerate(_lines(file), 1):
                self._digest.update(line)
                where = f"{file}: line {line_number:,}"
                if line.isspace():
                    self.troubles.empty += 1
                    continue
                try:
                    found = parts(parsed(line), self._settings, where, file.run is not None)
                except BrokenEpisode as broken:
                    self.troubles.add(where, broken.why)
                    continue
                for place, part in enumerate(found):
                    yield Found(Place(number, at, place), file, part)

    def reader(self, wanted: frozenset[str]) -> JsonReader:
        """Reads the columns of these names; close it after use."""
        return JsonReader(self._files, self._settings, wanted)


class JsonReader:
    """Columns of records, by place. Keeps the files of late open, and the lines that it converted, within a bound of bytes."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str]) -> None:
        self._files, self._settings, self._wanted = files, settings, wanted
        self._open: OrderedDict[int, IO[bytes]] = OrderedDict()
        self._cache = settings.cache()

    def column(self, place: Place, name: str) -> Leaves:
        """All rows of a column.

        Raises:
          LookupError: the record has no such column; with the place.
          BrokenEpisode: the record cannot be read any more, or the column is no column.
        """
        columns = self._cache.get((place.file, place.at))
        if columns is None:
            columns = converted(parsed(self._line(place)), self._settings, self._where(place), self._wanted)
            self._cache.put((place.file, place.at), columns)
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
        return f"{self._files[place.file]}: the line at byte {place.at:,}"

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
