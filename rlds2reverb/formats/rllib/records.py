"""RLlib's files as records: the base of all kinds of files, and JSON lines.

`Store` scans the files once, for the index; a `Reader` reads columns of it by place. `JsonLines` is the store of JSON lines; `tables` has
two for Parquet.

A line, plain or in a zip file, is RLlib's `SampleBatch` or `MultiAgentBatch`, or (the runners of the new stack) one step. Lines are read
in streams and by offset. Source: rllib/offline/json_writer.py.

Unless `output_max_rows_per_file` is set, RLlib's runners of the new stack write all earlier rows again with each writing. Of such writings
only the last one is read. Source: rllib/offline/offline_env_runner.py of Ray 2.60 (`sample`, `stop`).
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import for_library
from rlds2reverb.formats.lru import LRU
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib import keys
from rlds2reverb.formats.rllib.index import DataFile, FoundRows, PolicyRows, RecordPlace, policy_rows
from rlds2reverb.formats.rllib.values import PACKED, Converter, Leaves, encode_texts
from rlds2reverb.text import shortened

_CACHE_BYTES = 64 << 20
_KEPT_BYTES = 64 << 20  # of numbers; as text, they are two to three times as long
_OBJECT_BYTES, _TEXT_BYTES = 500, 33  # Python's overhead of an array with its places in dicts, and of a text
_NAMED = 3


@dataclass(frozen=True)
class ReadSettings:
    """How files are read: the dataset's names, the dtype of JSON's numbers with a point, and what `dones` mean without `terminateds`."""

    names: keys.ColumnNames = field(default_factory=keys.ColumnNames)
    floats: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    done_means: int = keys.TERMINATED


Wanted = Callable[[str], bool]  # RLlib's name of a column -> whether it may be read later

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
    """Files of one kind, scanned once from the first to the last; then read by place, as often as wanted."""

    def __init__(self, files: list[DataFile], settings: ReadSettings) -> None:
        self._files, self.settings, self.troubles = files, settings, Troubles()

    def scan(self, wanted: Wanted) -> Iterator[FoundRows]:
        """All parts, in the order of the files, without writings that the next one of the same worker repeats.

        Counts in `troubles` everything that is left out. Columns that are wanted later may be kept.
        """
        held: list[FoundRows] = []
        for run, parts in groupby(self._scan(wanted), lambda found_rows: found_rows.file.run):
            if run is None:
                yield from held
                held = []
                yield from parts
                continue
            now = list(parts)
            if held and _repeats(now, held):
                self.troubles.repeated += sum(found_rows.part.rows for found_rows in held)
            else:
                yield from held
            held = now
        yield from held

    @contextmanager
    def reader(self, wanted: frozenset[str]) -> Iterator[Reader]:
        """Reads the columns of these names."""
        with self._files_open() as files:
            yield Reader(self, lambda place: self._columns(files, place, wanted))

    @abstractmethod
    def where(self, place: RecordPlace) -> str:
        """The record's place, for messages."""

    @abstractmethod
    def _scan(self, wanted: Wanted) -> Iterator[FoundRows]: ...

    @abstractmethod
    def _files_open(self) -> AbstractContextManager[Any]:
        """The files for one pass over them, of which the latest stay open."""

    @abstractmethod
    def _columns(self, files: Any, place: RecordPlace, wanted: frozenset[str]) -> Columns:
        """The wanted columns of a record, from such files; raises `BrokenEpisode`."""


class Reader:
    """Reads columns by place. Keeps those of the latest records, up to a number of bytes."""

    def __init__(self, store: Store, columns_of: Callable[[RecordPlace], Columns]) -> None:
        self._store, self._columns_of = store, columns_of
        self._cache = LRU[tuple[int, int, int], Columns](_CACHE_BYTES, size=_size_of)

    def column(self, place: RecordPlace, name: str) -> Leaves:
        """All rows of a column of a part.

        Raises:
          LookupError: the record has no such column; its argument is the place.
          BrokenEpisode: the record can no longer be read, or the value is not a column.
        """
        record = self._cache.get((place.file, place.at, place.row), lambda: self._columns_of(place))
        leaves = record.get((place.part, name))
        if leaves is None:
            raise LookupError(self._store.where(place))
        if isinstance(leaves, BrokenEpisode):
            raise BrokenEpisode(leaves.path, leaves.why)
        return leaves


def _size_of(columns: Columns) -> int:
    """Bytes of a record's columns, the overhead of Python objects included."""
    size = _OBJECT_BYTES
    for leaves in columns.values():
        if not isinstance(leaves, dict):
            size += 2 * _OBJECT_BYTES
            continue
        for column in leaves.values():
            size += _OBJECT_BYTES + column.nbytes
            if column.dtype == object:
                size += sum(_TEXT_BYTES + len(text) for text in column.ravel())
    return size


def _repeats(now: list[FoundRows], before: list[FoundRows]) -> bool:
    """Whether a writing begins with the one before it: the same ids, ends and rewards of rows."""
    run, last = now[0].file.run, before[0].file.run
    if run is None or last is None or run[0] != last[0]:
        return False
    rows = sum(found_rows.part.rows for found_rows in before)
    first, end = before[0].part.ends[0], before[-1].part.ends[1]
    if rows == 0 or not first or now[0].part.ends[0] != first or first == end:
        return False
    old, new = ([found_rows.part for found_rows in writing if found_rows.part.rows] for writing in (before, now))
    compared: tuple[Callable[[PolicyRows], Array], ...] = (
        lambda part: np.full(part.rows, "") if part.episodes is None else part.episodes.astype(str),
        lambda part: part.ended,
        lambda part: np.zeros(part.rows) if part.rewards is None else part.rewards.reshape(part.rows, -1)[:, 0],
    )
    for column_of in compared:
        earlier, later = (np.concatenate([column_of(part) for part in parts]) for parts in (old, new))
        if len(later) < rows or not np.array_equal(later[:rows], earlier):
            return False
    return True


_Raw = Mapping[str, Any]
_COUNTED = (keys.REWARDS, keys.ACTIONS, keys.TERMINATEDS, keys.DONES, keys.TRUNCATEDS, keys.T, keys.EPS_ID, keys.OBS)


class _PolicyBatch:
    """The columns of one policy in a record."""

    def __init__(self, raw: _Raw, settings: ReadSettings, where: str) -> None:
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
        for name in (keys.REWARDS, keys.ACTIONS, keys.OBS):
            value = self.take(name)
            if isinstance(value, (np.ndarray, list)) and np.ndim(value):
                return len(value)
        raise BrokenEpisode("", "no rewards, actions or observations, so its rows cannot be counted")

    def columns(self) -> frozenset[str]:
        """RLlib's names of columns that may have a value per row."""
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
        if name == keys.INFOS and isinstance(value, list):
            return {"": encode_texts(value)}
        if isinstance(value, np.ndarray) and len(value) != self.rows and _is_nest(value):
            value = list(value)
        try:
            return self.converter.leaves(name, value, self.rows)
        except BrokenEpisode as broken:
            return BrokenEpisode(broken.path, broken.why)  # by its traceback, `broken` holds on to the record


def _is_nest(value: list[Any] | Array) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 1 and len(value) > 0
    return bool(value) and all(isinstance(part, (list, dict)) for part in value)


def parse_parts(record: Any, settings: ReadSettings, where: str, keeps_ends: bool = False) -> list[PolicyRows]:
    """The parts of a record of parsed JSON; `keeps_ends` keeps rewards, and the observations at both ends. Raises `BrokenEpisode`."""
    parts = []
    for policy, raw, is_multi_agent in _split_batches(record, settings.names):
        batch = _PolicyBatch(raw, settings, where)
        rewards, ends = None, ("", "")
        if keeps_ends:
            first, last, recorded = (batch.leaves(name) for name in (keys.OBS, keys.NEXT_OBS, keys.REWARDS))
            rewards = recorded.get("") if isinstance(recorded, dict) else None
            ends = (row_text(first, 0), row_text(last, -1)) if batch.rows else ends
        parts.append(
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
    return parts


def row_text(leaves: Leaves | BrokenEpisode | None, at: int) -> str:
    """A row as text, to compare; "" of a column that is missing or cannot be read."""
    if not isinstance(leaves, dict):
        return ""
    return repr({path: np.asarray(column[at]).tolist() for path, column in leaves.items()})


def convert_record(record: Any, settings: ReadSettings, where: str, wanted: frozenset[str]) -> Columns:
    """The wanted columns of a record. Raises `BrokenEpisode` if it is not a record of RLlib."""
    columns: Columns = {}
    for number, (_, raw, _) in enumerate(_split_batches(record, settings.names)):
        batch = _PolicyBatch(raw, settings, where)
        for name in wanted:
            if (leaves := batch.leaves(name)) is not None:
                columns[number, name] = leaves
    return columns


def _split_batches(record: Any, names: keys.ColumnNames) -> list[tuple[str, _Raw, bool]]:
    """For each batch of a record: policy, columns, and whether the record may have other agents."""
    kind = record.get("type") if isinstance(record, dict) else None
    if isinstance(kind, list):  # Ray Data writes it once per row
        kind = kind[0] if kind else None
    if kind == "SampleBatch":
        return [("", record, False)]
    if kind == "MultiAgentBatch":
        policies = record.get("policy_batches")
        if not isinstance(policies, dict) or not all(isinstance(batch, dict) for batch in policies.values()):
            raise BrokenEpisode("", "a MultiAgentBatch without policy_batches")
        return [(policy, columns, True) for policy, columns in policies.items()]
    is_step = isinstance(record, dict) and kind is None and isinstance(record.get(names.of(keys.EPS_ID)), (str, int))
    if is_step and names.of(keys.OBS) in record:
        return [("", {key: [value] for key, value in record.items()}, False)]
    raise BrokenEpisode("", "expected a record of type SampleBatch or MultiAgentBatch, or a step")


_LONGEST_LINE = 128 << 20  # bytes. RLlib begins a new file after 64 MiB.
_OPEN_FILES = 8
_BUFFER_BYTES = 1 << 20
_ERRORS = (OSError, BadZipFile, EOFError, ValueError, zlib.error, NotImplementedError, RuntimeError)
"""Raised by reading a damaged file or zip file."""


class JsonLines(Store):
    """Lines of JSON files. The wanted columns of the first records are kept, so that these are parsed once."""

    def __init__(self, files: list[DataFile], settings: ReadSettings) -> None:
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
                    record = parse_line(line)
                    parts = parse_parts(record, self.settings, where, file.run is not None)
                    if self._left > 0 and PACKED not in line:
                        self._keep(record, number, at, parts, wanted)
                except BrokenEpisode as broken:
                    self.troubles.add(where, broken.why)
                    continue
                for place, part in enumerate(parts):
                    yield FoundRows(RecordPlace(number, at, part=place), file, part)

    def _keep(self, record: Any, number: int, at: int, parts: list[PolicyRows], wanted: Wanted) -> None:
        """Keeps the wanted columns of a record, so that its JSON is not parsed again; the first record that does not fit is the last tried."""
        names = frozenset(filter(wanted, frozenset(keys.NAMES).union(*(part.columns for part in parts))))
        columns = convert_record(record, self.settings, self.where(RecordPlace(number, at)), names)
        self._left -= _size_of(columns)
        if self._left >= 0:
            self._kept[number, at] = columns

    @contextmanager
    def _files_open(self) -> Iterator[LRU[int, IO[bytes]]]:
        files = LRU[int, IO[bytes]](_OPEN_FILES, close=lambda file: file.close())
        try:
            yield files
        finally:
            files.clear()

    def _columns(self, files: LRU[int, IO[bytes]], place: RecordPlace, wanted: frozenset[str]) -> Columns:
        kept = self._kept.get((place.file, place.at))
        if kept is not None:
            return kept
        where = self.where(place)
        try:
            file = files.get(place.file, lambda: _open_stream(self._files[place.file]))
            file.seek(place.at)
            line = file.readline(_LONGEST_LINE)
        except _ERRORS as error:
            raise BrokenEpisode("", f"{where}: cannot be read: {shortened(str(error))}") from error
        return convert_record(parse_line(line), self.settings, where, wanted)

    def where(self, place: RecordPlace) -> str:
        return f"{self._files[place.file]}: the line at byte {place.at:,}"


def parse_line(line: bytes) -> Any:
    """The JSON of a line; raises `BrokenEpisode`."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError, MemoryError) as error:
        raise BrokenEpisode("", f"no JSON: {shortened(str(error))}") from error


def _lines(file: DataFile) -> Iterator[tuple[int, bytes]]:
    try:
        with _open_stream(file) as stream:
            at = 0
            # With a bound: a file without line ends must not fill the memory.
            while line := stream.readline(_LONGEST_LINE):
                if len(line) >= _LONGEST_LINE:
                    raise SourceError(
                        f"{file}: a line of more than {_LONGEST_LINE >> 20} MiB at byte {at:,}; expected one record a line"
                    )
                yield at, line
                at += len(line)
    except _ERRORS as error:
        raise SourceError(f"{file}: cannot be read: {shortened(str(error))}") from error


def _open_stream(file: DataFile) -> IO[bytes]:
    if not file.member:
        return file.path.open("rb", buffering=_BUFFER_BYTES)
    return ZipFile(for_library(file.path)).open(file.member)
