"""Files of JSON lines, plain or in zip files: one record a line, read in streams and by offset.

A record is RLlib's `SampleBatch` or `MultiAgentBatch`, or (the runners of the new stack) one step. Source: rllib/offline/json_writer.py.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

import xxhash

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.readers.rllib import names as n
from rlds2reverb.readers.rllib.batches import Part, part_of
from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found, Place
from rlds2reverb.readers.rllib.store import Settings, Troubles
from rlds2reverb.readers.rllib.values import Converter, Leaves, texts
from rlds2reverb.wording import shortened

_LONGEST_LINE = 128 << 20
"""Bytes. RLlib begins a new file after 64 MiB."""
_OPEN_FILES = 8
_ERRORS = (OSError, BadZipFile, EOFError, ValueError, ZlibError, NotImplementedError, RuntimeError)
"""What reading a damaged file or zip file raises."""
Raw = Mapping[str, Any]


class JsonLines:
    """Lines of JSON files."""

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        self._files, self._settings = files, settings
        self.troubles = Troubles()
        self._digest = xxhash.xxh3_128()

    @property
    def fingerprint(self) -> str:
        """Of the bytes of all lines, once they are scanned."""
        return self._digest.hexdigest()

    def scan(self) -> Iterator[Found]:
        """Every part of every line that is a record; what is none is counted."""
        for number, file in enumerate(self._files):
            for line_number, (at, line) in enumerate(_lines(file), 1):
                self._digest.update(line)
                if not line.strip():
                    self.troubles.empty += 1
                    continue
                try:
                    found = list(self._parts(line, f"{file}: line {line_number:,}"))
                except BrokenEpisode as broken:
                    self.troubles.add(f"{file}: line {line_number:,}", broken.why)
                    continue
                for place, part in enumerate(found):
                    yield Found(Place(number, at, place), file, part)

    def _parts(self, line: bytes, where: str) -> Iterator[Part]:
        for policy, raw, is_multi in _batches(line, self._settings.names):
            converter = Converter(where, self._settings.floats)
            names = self._settings.names

            def take(name: str, raw: Raw = raw, converter: Converter = converter) -> Any:
                value = raw.get(names.of(name))
                return converter.unpack(name, value) if isinstance(value, str) else value

            rows = _row_count(raw, take, names)
            columns = frozenset(
                key
                for key, value in raw.items()
                if isinstance(value, (str, dict)) or (isinstance(value, list) and len(value) == rows)
            )
            yield part_of(take, rows, policy, is_multi, columns, self._settings.done_means)

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
            columns = self._converted(place)
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

    def _converted(self, place: Place) -> dict[Any, Leaves | BrokenEpisode]:
        converter = Converter(self._where(place), self._settings.floats)
        made: dict[Any, Leaves | BrokenEpisode] = {}
        for part, (_, raw, _) in enumerate(_batches(self._line(place), self._settings.names)):
            rows = _row_count(
                raw,
                lambda name, raw=raw: _taken(converter, raw, self._settings.names.of(name), name),
                self._settings.names,
            )
            for name in self._wanted:
                value = raw.get(self._settings.names.of(name))
                if value is not None:
                    made[part, name] = _leaves(converter, name, value, rows)
        return made

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


def _leaves(converter: Converter, name: str, value: Any, rows: int) -> Leaves | BrokenEpisode:
    if name == n.INFOS and isinstance(value, list):
        return {"": texts(value)}
    try:
        return converter.leaves(name, value, rows)
    except BrokenEpisode as broken:
        return broken


def _taken(converter: Converter, raw: Raw, column: str, name: str) -> Any:
    value = raw.get(column)
    return converter.unpack(name, value) if isinstance(value, str) else value


def _batches(line: bytes, names: n.Names) -> list[tuple[str, Raw, bool]]:
    """Policy, columns, and whether there are other agents, of each batch of a line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError, MemoryError) as error:
        raise BrokenEpisode("", f"no JSON: {shortened(str(error))}") from error
    kind = record.get("type") if isinstance(record, dict) else None
    if kind == "SampleBatch":
        return [("", record, False)]
    if kind == "MultiAgentBatch":
        policies = record.get("policy_batches")
        if not isinstance(policies, dict) or not all(isinstance(one, dict) for one in policies.values()):
            raise BrokenEpisode("", "a MultiAgentBatch without policy_batches")
        return [(policy, columns, True) for policy, columns in policies.items()]
    if (
        isinstance(record, dict)
        and kind is None
        and isinstance(record.get(names.of(n.EPS_ID)), (str, int))
        and names.of(n.OBS) in record
    ):
        return [("", {key: [value] for key, value in record.items()}, False)]
    raise BrokenEpisode("", "expected a record of type SampleBatch or MultiAgentBatch, or a step")


def _row_count(raw: Raw, take: Any, names: n.Names) -> int:
    for name in (n.REWARDS, n.ACTIONS, n.TERMINATEDS, n.DONES, n.TRUNCATEDS, n.T, n.EPS_ID, n.OBS):
        value = raw.get(names.of(name))
        if isinstance(value, list):
            return len(value)
    for name in (n.REWARDS, n.ACTIONS, n.OBS):
        value = take(name)
        if hasattr(value, "__len__") and not isinstance(value, (dict, tuple)):
            return len(value)
    raise BrokenEpisode("", "no rewards, actions or observations, so its rows cannot be counted")


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
        return Path(file.path).open("rb")
    return ZipFile(file.path).open(file.member)
