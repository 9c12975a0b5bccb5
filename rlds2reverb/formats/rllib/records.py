"""RLlib's files as records: what files of every kind share, and JSON lines.

`Store` scans the files once, for the index; a `Reader` of it reads columns by place. Of both there is one for JSON lines here, and two
for Parquet in `tables`.

A line, plain or in a zip file, is RLlib's `SampleBatch` or `MultiAgentBatch`, or (the runners of the new stack) one step. Lines are read
in streams and by offset. Source: rllib/offline/json_writer.py.

RLlib's runners of the new stack keep what they wrote, unless `output_max_rows_per_file` is set: each writing has all rows of the ones
before it. Of such writings only the last one is read. Source: rllib/offline/offline_env_runner.py of Ray 2.60 (`sample`, `stop`).
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lru import LRU
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib.index import (
    ACTIONS,
    DONES,
    EPS_ID,
    INFOS,
    NAMES,
    NEXT_OBS,
    OBS,
    REWARDS,
    TERMINATED,
    TERMINATEDS,
    TRUNCATEDS,
    DataFile,
    FoundRows,
    Names,
    PolicyRows,
    RecordPlace,
    T,
    policy_rows,
)
from rlds2reverb.formats.rllib.values import PACKED, Converter, Leaves, texts
from rlds2reverb.text import shortened

_CACHE_BYTES = 64 << 20
_KEPT_BYTES = 64 << 20
"""Of numbers; as text, they are two to three times as long."""
_OBJECT_BYTES, _TEXT_BYTES = 500, 33
"""Of what Python has around an array and its places in dicts, and around a text."""
_NAMED = 3


@dataclass(frozen=True)
class Settings:
    """How files are read.

    Attributes:
      names: what the dataset calls RLlib's columns.
      floats: the dtype of numbers of JSON with a point.
      done_means: `TERMINATED` or `TRUNCATED`: what `dones` mean without `terminateds`.
    """

    names: Names = field(default_factory=Names)
    floats: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    done_means: int = TERMINATED


Wanted = Callable[[str], bool]
"""RLlib's name of a column -> whether it may be read later."""

Columns = dict[tuple[int, str], Leaves | BrokenEpisode]
"""Of a record: (number of the part, RLlib's name) -> the column, or why there is none."""


@dataclass
class Troubles:
    """Records that were left out, and why."""

    empty: int = 0
    corrupt: int = 0
    named: list[str] = field(default_factory=list)
    repeated: int = 0

    def add(self, where: str, why: str) -> None:
        """Counts a corrupt record; the first few are named."""
        self.corrupt += 1
        if len(self.named) < _NAMED:
            self.named.append(f"{where}: {why}")


class Store(ABC):
    """Files of one kind, scanned once from the first to the last.

    Attributes:
      settings: how they are read.
      troubles: what was left out.
    """

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        self._files, self.settings, self.troubles = files, settings, Troubles()
        self._stamps = {file.path: _stamp(file.path) for file in files}

    def scan(self, wanted: Wanted) -> Iterator[FoundRows]:
        """All parts, in the order of the files, each once; what is no record is counted. Columns that are wanted later may be kept."""
        return _without_repeated(self._scan(wanted), self.troubles)

    def check(self) -> None:
        """Raises `SourceError` if a file has changed since it was opened."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise SourceError(f"{path}: was written anew after it was first looked at; open the source again")

    @abstractmethod
    def reader(self, wanted: frozenset[str]) -> Reader:
        """Reads the columns of these names; close it after use."""

    @abstractmethod
    def _scan(self, wanted: Wanted) -> Iterator[FoundRows]:
        """All parts; reads the files."""


class Reader(ABC):
    """Reads columns by place. Keeps those of the latest records, up to a number of bytes."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str]) -> None:
        self._files, self._settings, self._wanted = files, settings, wanted
        self._cache = LRU[tuple[int, ...], Columns](_CACHE_BYTES, size=_size_of)

    def column(self, place: RecordPlace, name: str) -> Leaves:
        """All rows of a column of a part.

        Raises:
          LookupError: the record has no such column; its argument is the place.
          BrokenEpisode: the record can no longer be read, or the value is not a column.
        """
        record, part = self._split(place)
        found = self._cache.get(record, lambda: self._columns(place)).get((part, name))
        if found is None:
            raise LookupError(self._where(place))
        if isinstance(found, BrokenEpisode):
            raise BrokenEpisode(found.path, found.why)
        return found

    def _split(self, place: RecordPlace) -> tuple[tuple[int, ...], int]:
        """The key of the record, and the number of the part in it."""
        return (place.file, place.at), place.part

    @abstractmethod
    def _columns(self, place: RecordPlace) -> Columns:
        """All wanted columns of the record; raises `BrokenEpisode`."""

    @abstractmethod
    def _where(self, place: RecordPlace) -> str:
        """The record's place, for messages."""

    @abstractmethod
    def close(self) -> None:
        """Closes the files."""


def _stamp(path: Path) -> tuple[int, ...]:
    """A value that changes when the file is rewritten; () if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _size_of(columns: Columns) -> int:
    """Bytes of a record's columns, the overhead of Python objects included."""
    return _OBJECT_BYTES + sum(_bytes(leaves) for leaves in columns.values())


def _bytes(leaves: Any) -> int:
    if not isinstance(leaves, dict):
        return 2 * _OBJECT_BYTES
    return sum(
        _OBJECT_BYTES
        + column.nbytes
        + (sum(_TEXT_BYTES + len(text) for text in column.ravel()) if column.dtype == object else 0)
        for column in leaves.values()
    )


def _without_repeated(found: Iterator[FoundRows], troubles: Troubles) -> Iterator[FoundRows]:
    """The rows found, without writings that the next one of the same worker repeats; counts the rows left out."""
    held: list[FoundRows] = []
    for run, parts in groupby(found, lambda one: one.file.run):
        if run is None:
            yield from held
            held = []
            yield from parts
            continue
        now = list(parts)
        if held and _begins_with(now, held):
            troubles.repeated += sum(one.part.rows for one in held)
        else:
            yield from held
        held = now
    yield from held


def _begins_with(now: list[FoundRows], before: list[FoundRows]) -> bool:
    run, last = now[0].file.run, before[0].file.run
    if run is None or last is None or run[0] != last[0]:
        return False
    rows = sum(one.part.rows for one in before)
    first, end = before[0].part.ends[0], before[-1].part.ends[1]
    if rows == 0 or not first or now[0].part.ends[0] != first or first == end:
        return False
    old, new = _story(before), _story(now)
    return len(new) == len(old) and all(
        len(one) >= rows and np.array_equal(one[:rows], other) for one, other in zip(new, old)
    )


def _story(found: list[FoundRows]) -> list[Array]:
    """Ids, ends and rewards of the rows."""
    parts = [one.part for one in found if one.part.rows]
    return [
        np.concatenate([_ids(one) for one in parts]),
        np.concatenate([one.ended for one in parts]),
        np.concatenate([_rewards(one) for one in parts]),
    ]


def _ids(part: PolicyRows) -> Array:
    return np.full(part.rows, "") if part.episodes is None else part.episodes.astype(str)


def _rewards(part: PolicyRows) -> Array:
    return np.zeros(part.rows) if part.rewards is None else part.rewards.reshape(part.rows, -1)[:, 0]


_Raw = Mapping[str, Any]
_COUNTED = (
    REWARDS,
    ACTIONS,
    TERMINATEDS,
    DONES,
    TRUNCATEDS,
    T,
    EPS_ID,
    OBS,
)


class _Batch:
    """The columns of one policy in a record."""

    def __init__(self, raw: _Raw, settings: Settings, where: str) -> None:
        self.raw, self._names = raw, settings.names
        self.converter = Converter(where, settings.floats)
        self.rows = self._row_count()

    def take(self, name: str) -> Any:
        """A column by RLlib's name, unpacked; None if it is missing."""
        value = self.raw.get(self._names.of(name))
        return self.converter.unpack(name, value) if isinstance(value, str) else value

    def _row_count(self) -> int:
        for name in _COUNTED:
            value = self.raw.get(self._names.of(name))
            if isinstance(value, (list, np.ndarray)):
                return len(value)
        for name in (REWARDS, ACTIONS, OBS):
            value = self.take(name)
            if isinstance(value, (np.ndarray, list)) and np.ndim(value):
                return len(value)
        raise BrokenEpisode("", "no rewards, actions or observations, so its rows cannot be counted")

    def columns(self) -> frozenset[str]:
        """RLlib's names of what may have a value per row."""
        return frozenset(
            self._names.standard(key)
            for key, value in self.raw.items()
            if isinstance(value, (str, dict, tuple))
            or (isinstance(value, (list, np.ndarray)) and (len(value) == self.rows or _is_nest(value)))
        )

    def leaves(self, name: str) -> Leaves | BrokenEpisode | None:
        """A column, or the reason why it cannot be read; None if it is missing."""
        value = self.raw.get(self._names.of(name))
        if value is None:
            return None
        if name == INFOS and isinstance(value, list):
            return {"": texts(value)}
        if isinstance(value, np.ndarray) and len(value) != self.rows and _is_nest(value):
            value = list(value)
        try:
            return self.converter.leaves(name, value, self.rows)
        except BrokenEpisode as broken:
            return BrokenEpisode(broken.path, broken.why)  # the other one holds on to the record


def _is_nest(value: list[Any] | Array) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 1 and len(value) > 0
    return bool(value) and all(isinstance(one, (list, dict)) for one in value)


def parts(record: Any, settings: Settings, where: str, tells_ends: bool = False) -> list[PolicyRows]:
    """The parts of a record.

    Args:
      record: parsed JSON.
      settings: how it is read.
      where: the file and the place; for messages.
      tells_ends: whether rewards and the observations at both ends are kept.

    Raises:
      BrokenEpisode: it is no record of RLlib.
    """
    made = []
    for policy, raw, is_multi_agent in _batches(record, settings.names):
        batch = _Batch(raw, settings, where)
        rewards, ends = _ends(batch) if tells_ends else (None, ("", ""))
        made.append(
            policy_rows(
                batch.take,
                settings.done_means,
                rows=batch.rows,
                columns=batch.columns(),
                policy=policy,
                is_multi_agent=is_multi_agent,
                rewards=rewards,
                ends=ends,
            )
        )
    return made


def _ends(batch: _Batch) -> tuple[Array | None, tuple[str, str]]:
    first, last = batch.leaves(OBS), batch.leaves(NEXT_OBS)
    rewards = batch.leaves(REWARDS)
    ends = (_row(first, 0), _row(last, -1)) if batch.rows else ("", "")
    return rewards.get("") if isinstance(rewards, dict) else None, ends


def _row(leaves: Leaves | BrokenEpisode | None, at: int) -> str:
    return (
        repr({path: np.asarray(column[at]).tolist() for path, column in leaves.items()})
        if isinstance(leaves, dict)
        else ""
    )


def converted(record: Any, settings: Settings, where: str, wanted: frozenset[str]) -> Columns:
    """(number of the part, RLlib's name) -> the column, or why there is none.

    Raises:
      BrokenEpisode: it is no record of RLlib.
    """
    made: Columns = {}
    for number, (_, raw, _) in enumerate(_batches(record, settings.names)):
        batch = _Batch(raw, settings, where)
        for name in wanted:
            if (leaves := batch.leaves(name)) is not None:
                made[number, name] = leaves
    return made


def _batches(record: Any, names: Names) -> list[tuple[str, _Raw, bool]]:
    """For each batch of a record: policy, columns, and whether the record may have other agents."""
    kind = record.get("type") if isinstance(record, dict) else None
    if isinstance(kind, list):  # Ray Data writes it once per row
        kind = kind[0] if kind else None
    if kind == "SampleBatch":
        return [("", record, False)]
    if kind == "MultiAgentBatch":
        policies = record.get("policy_batches")
        if not isinstance(policies, dict) or not all(isinstance(one, dict) for one in policies.values()):
            raise BrokenEpisode("", "a MultiAgentBatch without policy_batches")
        return [(policy, columns, True) for policy, columns in policies.items()]
    is_step = isinstance(record, dict) and kind is None and isinstance(record.get(names.of(EPS_ID)), (str, int))
    if is_step and names.of(OBS) in record:
        return [("", {key: [value] for key, value in record.items()}, False)]
    raise BrokenEpisode("", "expected a record of type SampleBatch or MultiAgentBatch, or a step")


_LONGEST_LINE = 128 << 20
"""Bytes. RLlib begins a new file after 64 MiB."""
_OPEN_FILES = 8
_BUFFER_BYTES = 1 << 20
_ERRORS = (OSError, BadZipFile, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError)
"""What reading a damaged file or zip file raises."""


class JsonLines(Store):
    """Lines of JSON files. The wanted columns of the first records are kept, so that these are parsed once."""

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        super().__init__(files, settings)
        self._kept: dict[tuple[int, int], Columns] = {}
        self._left = _KEPT_BYTES

    def _scan(self, wanted: Wanted) -> Iterator[FoundRows]:
        for number, file in enumerate(self._files):
            for line_number, (at, line) in enumerate(_lines(file), 1):
                where = f"{file}: line {line_number:,}"
                if line.isspace():
                    self.troubles.empty += 1
                    continue
                try:
                    record = parsed(line)
                    found = parts(record, self.settings, where, file.run is not None)
                    if self._left > 0 and PACKED not in line:
                        self._keep(record, number, at, found, wanted)
                except BrokenEpisode as broken:
                    self.troubles.add(where, broken.why)
                    continue
                for place, part in enumerate(found):
                    yield FoundRows(RecordPlace(number, at, place), file, part)

    def _keep(self, record: Any, number: int, at: int, found: list[PolicyRows], wanted: Wanted) -> None:
        """Keeps the columns of a record; stops at the first record that does not fit."""
        names = frozenset(filter(wanted, frozenset(NAMES).union(*(part.columns for part in found))))
        columns = converted(record, self.settings, _line_at(self._files[number], at), names)
        self._left -= _size_of(columns)
        if self._left >= 0:
            self._kept[number, at] = columns

    def reader(self, wanted: frozenset[str]) -> JsonReader:
        """Reads the columns of these names; close it after use."""
        return JsonReader(self._files, self.settings, wanted, self._kept)


class JsonReader(Reader):
    """Columns of records in JSON lines. Keeps the latest files open."""

    def __init__(
        self,
        files: list[DataFile],
        settings: Settings,
        wanted: frozenset[str],
        kept: Mapping[tuple[int, int], Columns],
    ) -> None:
        super().__init__(files, settings, wanted)
        self._kept = kept
        self._open = LRU[int, IO[bytes]](_OPEN_FILES, close=lambda file: file.close())

    def _columns(self, place: RecordPlace) -> Columns:
        kept = self._kept.get((place.file, place.at))
        if kept is not None:
            return kept
        return converted(parsed(self._line(place)), self._settings, self._where(place), self._wanted)

    def _where(self, place: RecordPlace) -> str:
        return _line_at(self._files[place.file], place.at)

    def _line(self, place: RecordPlace) -> bytes:
        try:
            file = self._open.get(place.file, lambda: _opened(self._files[place.file]))
            file.seek(place.at)
            return file.readline(_LONGEST_LINE)
        except _ERRORS as error:
            raise BrokenEpisode("", f"{self._where(place)}: cannot be read: {shortened(str(error))}") from error

    def close(self) -> None:
        """Closes the files."""
        self._open.clear()


def _line_at(file: DataFile, at: int) -> str:
    return f"{file}: the line at byte {at:,}"


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
