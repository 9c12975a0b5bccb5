"""The items and chunks of a table: spooled to disk, indexed, and read as rows of episodes.

Sources: checkpoint.proto, schema.proto and reverb_service.proto of dm-reverb 0.14. What is read later, or by numpy, stays bytes.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array, Notice
from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.protobuf import message_classes
from rlds2reverb.specs import Nest
from rlds2reverb.wire.sample.plain import decode_chunk
from rlds2reverb.wire.sample.trajectories import Pointers, read_trajectories, starts_of

_MESSAGES: dict[str, tuple[str, ...]] = {
    "RateLimiter": ("int64 insert_count = 7", "int64 delete_count = 8"),
    "Table": (
        "string table_name = 1",
        "repeated bytes items = 2",  # before items had a file of their own
        "RateLimiter rate_limiter = 3",
        "bytes signature = 9",
    ),
    "Timestamp": ("int64 seconds = 1", "int32 nanos = 2"),
    "Item": (
        "uint64 key = 1",
        "string table = 2",
        "double priority = 5",
        "int32 times_sampled = 6",
        "Timestamp inserted_at = 7",
        "bytes flat_trajectory = 8",
    ),
    "SequenceRange": ("uint64 episode_id = 1", "int32 start = 2", "int32 end = 3", "bool sparse = 4"),
    "Chunk": ("uint64 chunk_key = 1", "SequenceRange sequence_range = 2", "bool delta_encoded = 4", "bytes data = 5"),
    "SampleInfo": ("Item item = 1",),
    "Entry": ("SampleInfo info = 1", "repeated Chunk data = 2", "bool end_of_sequence = 3"),
    "Samples": ("repeated Entry entries = 1",),
}

_CLASSES = message_classes("rlds2reverb.stored", _MESSAGES)


def reader_of(name: str, where: str) -> Callable[[bytes], Any]:
    """A function that parses messages of a kind ("Table", "Item", "Chunk" or "Samples"), and raises `SourceError`, which begins with `where`."""
    parse = _CLASSES[name].FromString

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf without its C library
            raise SourceError(f"{where}: {len(data):,} bytes that are no {name} of Reverb's ({error})") from error

    return read


# A table as it was at one moment, wherever it was read from.


@dataclass(frozen=True, eq=False)
class Snapshot:
    name: str
    table: str
    signature: Nest | None
    chunks: Chunks
    items: Items
    notices: tuple[Notice, ...] = ()


# Bytes laid aside on disk, to be read again in any order. A checkpoint's chunks come in no order that helps, its files are one zlib stream,
# which cannot be entered in the middle, and a table may be larger than the memory.

_AT_ONCE_BYTES = 1 << 20  # written together: items and chunks of vectors are small
_PREAD: Any = getattr(os, "pread", None)  # Windows has none


class Spool:
    """A file without a name in the folder of temporary files; gone with the process, however that ends.

    Write everything first, then `close_writing`. Reading is thread-safe.
    """

    def __init__(self) -> None:
        with _explain_full_disk():
            self._file = tempfile.TemporaryFile(prefix="rlds2reverb-")  # noqa: SIM115 - lives as long as this object
        weakref.finalize(self, self._file.close)
        self.size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> int:
        """Writes at the end, and returns the offset. Raises `SourceError` if the disk is full."""
        at, size = self.size, len(data)
        self._waiting.append(data)
        self._waiting_bytes += size
        self.size = at + size
        if self._waiting_bytes > _AT_ONCE_BYTES:
            self.close_writing()
        return at

    def close_writing(self) -> None:
        """Writes what waits, so that everything can be read. Raises `SourceError` if the disk is full."""
        with _explain_full_disk():
            self._file.write(b"".join(self._waiting))
            self._file.flush()
        self._waiting.clear()
        self._waiting_bytes = 0

    def read(self, at: int, size: int) -> bytes:
        """Reads from an offset on. Raises `SourceError` if the disk fails."""
        with _explain_full_disk():
            if _PREAD is not None:
                return bytes(_PREAD(self._file.fileno(), size, at))
            with self._lock:
                self._file.seek(at)
                return self._file.read(size)


@contextmanager
def _explain_full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"temporary file in {tempfile.gettempdir()}: {error.strerror}; it takes what the chunks take without zlib. Have TMPDIR "
            "name a folder with more room"
        ) from error


_AT_ONCE = 4096  # items


class Items:
    """Items in the order of arrival: add all, call `close_writing`, then read. Messages say `where` they are from."""

    def __init__(self, where: str) -> None:
        self._spool, self._ends = Spool(), array("q", [0])
        self._read = reader_of("Item", where)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, data: bytes) -> None:
        self._spool.write(data)
        self._ends.append(self._spool.size)

    def close_writing(self) -> None:
        self._spool.close_writing()

    def one(self, number: int) -> Any:
        return self._messages(number, number + 1)[0]

    def parts(self) -> Iterator[list[Any]]:
        """All items as messages, a few thousand at a time."""
        for first in range(0, len(self), _AT_ONCE):
            yield self._messages(first, min(len(self), first + _AT_ONCE))

    def _messages(self, first: int, end: int) -> list[Any]:
        ends = self._ends[first : end + 1]
        data = self._spool.read(ends[0], ends[-1] - ends[0])
        return [self._read(data[start - ends[0] : stop - ends[0]]) for start, stop in pairwise(ends)]


# Chunks: where each lies in its writer's sequence of rows, and its tensors, read on demand.


class _Data(NamedTuple):
    chunk_key: int
    delta_encoded: bool
    data: bytes


@dataclass(frozen=True, eq=False)
class Chunks:
    """All chunks, numbered in the order of their keys; [n] each.

    Attributes:
      keys: uint64, rising.
      episodes: uint64, the number that their writer gave the sequence of rows: mostly an episode.
      starts: int64, the row of that sequence with which they begin.
      rows: int64, how many rows they have; 0 if their writer does not say which rows these are.
    """

    keys: Array
    episodes: Array
    starts: Array
    rows: Array
    _places: Array
    _sizes: Array
    _are_deltas: Array
    _spool: Spool

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Array) -> Array:
        """[m] int64: the numbers of the chunks with these keys; -1 for a key of no chunk."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    def tensors(self, number: int) -> tuple[Array, ...]:
        """One array [rows, ...] per tensor of a chunk. Raises `WireError` if they cannot be read."""
        data = self._spool.read(int(self._places[number]), int(self._sizes[number]))
        return decode_chunk(_Data(int(self.keys[number]), bool(self._are_deltas[number]), data))


class ChunkBuilder:
    """Collects chunks in any order; a repeated chunk is ignored."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._keys: set[int] = set()
        self._columns = tuple(array(kind) for kind in "QQqqqqb")

    def add(self, chunk: Any) -> None:
        """Takes a Chunk message."""
        if (key := chunk.chunk_key) in self._keys:
            return
        self._keys.add(key)
        sequence_range, data = chunk.sequence_range, chunk.data
        rows = sequence_range.end - sequence_range.start + 1
        is_known = (
            chunk.HasField("sequence_range") and not sequence_range.sparse and sequence_range.start >= 0 and rows > 0
        )
        values: Sequence[int] = (
            key, sequence_range.episode_id, sequence_range.start, rows if is_known else 0, self._spool.write(data), len(data), chunk.delta_encoded,
        )  # fmt: skip
        for column, value in zip(self._columns, values):
            column.append(value)

    def build(self) -> Chunks:
        self._keys.clear()
        self._spool.close_writing()
        keys, episodes, starts, rows, places, sizes, are_deltas = map(np.array, self._columns)
        order = np.argsort(keys, kind="stable")
        described = (keys[order], episodes[order], starts[order], rows[order])
        return Chunks(*described, places[order], sizes[order], are_deltas[order], self._spool)


# Rows of an episode's columns, put together from chunks; every chunk is read once, however many items share it.


class RowReader:
    """Reads rows of a writer's sequences; `paths` name the items' columns, in their order."""

    def __init__(self, chunks: Chunks, index: Index, paths: Sequence[str]) -> None:
        self._chunks, self._index, self._paths = chunks, index, paths
        self._order = np.lexsort((chunks.starts, chunks.episodes))
        self._sequences, self._starts = chunks.episodes[self._order], chunks.starts[self._order]
        self._most_rows = int(chunks.rows.max(initial=0))

    def columns(self, sequence: int, first: int, stop: int, only: Collection[str] = ()) -> dict[str, Array]:
        """Path -> all rows of a column that items read whose first columns are the rows [first, stop) of a sequence.

        Args:
          sequence: its number.
          first, stop: rows of the first column.
          only: paths of the columns to read; all by default.

        Raises:
          BrokenEpisode: rows are in no chunk, or chunks do not go together.
        """
        shifts, lengths = self._index.shifts, self._index.lengths
        begins = (first + shifts).tolist()
        ends = np.where(lengths > 0, stop - self._index.first_length + shifts + lengths, stop + shifts).tolist()
        pieces: dict[int, list[tuple[int, Array]]] = {
            column: [] for column, path in enumerate(self._paths) if not only or path in only
        }
        for number in self._chunks_of(sequence, min(begins), max(ends)):
            start = int(self._chunks.starts[number])
            stop_of_chunk = start + int(self._chunks.rows[number])
            tensors = self._index.tensors[number].tolist()
            readable = [
                column
                for column in pieces
                if tensors[column] >= 0 and start < ends[column] and stop_of_chunk > begins[column]
            ]
            if readable:
                key, rows = self._chunks.keys[number], int(self._chunks.rows[number])
                try:
                    decoded = self._chunks.tensors(number)
                except WireError as error:
                    raise BrokenEpisode("", f"chunk {key}: {error}") from error
                for column in readable:
                    tensor = tensors[column]
                    if tensor >= len(decoded) or decoded[tensor].shape[:1] != (rows,):
                        why = f"chunk {key}: has no tensor {tensor} of {rows:,} rows, which items read"
                        raise BrokenEpisode(self._paths[column], why)
                    pieces[column].append((start, decoded[tensor]))
        return {
            self._paths[column]: join_rows(self._paths[column], own_pieces, begins[column], ends[column])
            for column, own_pieces in pieces.items()
        }

    def _chunks_of(self, sequence: int, first: int, stop: int) -> list[int]:
        """The numbers of the chunks of a sequence that may have some of these rows, in the order of their first rows."""
        key = np.uint64(sequence)
        begin = int(np.searchsorted(self._sequences, key, side="left"))
        end = int(np.searchsorted(self._sequences, key, side="right"))
        starts = self._starts[begin:end]
        after, before = np.searchsorted(starts, np.array([first - self._most_rows + 1, stop])).tolist()
        numbers: list[int] = self._order[begin + after : begin + before].tolist()
        return numbers


def join_rows(path: str, pieces: Sequence[tuple[int, Array]], first: int, stop: int) -> Array:
    """Joins the rows [first, stop) of a column, from pieces (first row, rows) in ascending order.

    Raises:
      BrokenEpisode: a row is in no piece, pieces have another dtype or shape, or two of them differ in a row that both have.
    """
    parts: list[Array] = []
    at = first
    before: tuple[int, Array] | None = None
    for start, rows in pieces:
        if start > at:
            break
        if before is not None:
            _check_alike(path, before, (start, rows))
        before = (start, rows) if before is None or start + len(rows) >= before[0] + len(before[1]) else before
        if start + len(rows) > at and at < stop:
            parts.append(rows[at - start : stop - start])
            at += len(parts[-1])
    if at < stop:
        raise BrokenEpisode(path, f"its rows {at:,} to {stop - 1:,} are in no chunk that an item reads them from")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _check_alike(path: str, earlier: tuple[int, Array], later_piece: tuple[int, Array]) -> None:
    (start, rows), (later, more) = earlier, later_piece
    if rows.dtype != more.dtype or rows.shape[1:] != more.shape[1:]:
        kinds = f"{rows.dtype}{list(rows.shape[1:])} and {more.dtype}{list(more.shape[1:])}"
        raise BrokenEpisode(path, f"its chunks hold {kinds}")
    both = min(start + len(rows), later + len(more)) - later
    if both > 0:
        mine, theirs = rows[later - start :][:both], more[:both]
        is_same = bool((mine == theirs).all()) if rows.dtype == object else mine.tobytes() == theirs.tobytes()
        if not is_same:
            raise BrokenEpisode(
                path, f"two chunks hold its rows {later:,} to {later + both - 1:,}, and their values differ"
            )


# The rows that items read -> runs of rows without a gap, by episode.


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of rows, [n] each, sorted by when the first item of their episode was inserted, then by their rows.

    Attributes:
      sequences: uint64, the number that the writer gave to the episode.
      firsts, stops: int64, rows [first, stop) of the items' first column.
      is_first, is_last: whether it is the first, or the last, run of its episode.
    """

    sequences: Array
    firsts: Array
    stops: Array
    is_first: Array
    is_last: Array

    def __len__(self) -> int:
        return len(self.sequences)


def runs_of(index: Index) -> Runs:
    """Finds the runs of all items, which must be windows."""
    order = np.lexsort((index.starts, index.episodes))
    episodes, starts, stops = index.episodes[order], index.starts[order], index.stops[order]
    is_new = np.append(True, episodes[1:] != episodes[:-1])
    beyond = int(stops.max(initial=0)) + 1  # so that the largest stop of an episode does not reach the next one
    ends = np.maximum.accumulate(stops + episodes * beyond) - episodes * beyond
    begins = is_new.copy()
    begins[1:] |= starts[1:] > ends[:-1]
    at = np.flatnonzero(begins)
    firsts, run_stops, run_episodes = starts[at], ends[np.append(at[1:], len(starts)) - 1], episodes[at]
    since = np.full(len(index.sequences), np.iinfo(np.int64).max)
    np.minimum.at(since, index.episodes, index.inserted)
    rank = np.lexsort((firsts, index.sequences[run_episodes], since[run_episodes]))
    run_episodes = run_episodes[rank]
    is_first = np.append(True, run_episodes[1:] != run_episodes[:-1])
    return Runs(index.sequences[run_episodes], firsts[rank], run_stops[rank], is_first, np.append(is_first[1:], True))


# An item is a *window* when each of its columns is consecutive rows of one sequence of its writer's, and when all items read the rows of
# their columns in the same way: column c begins `shifts[c]` rows after the first column, and is as long, or always equally long. Only
# then do rows put together make the sequence that was cut. Three numbers are kept of an item.

_MOST_COLUMNS = 1 << 14


@dataclass(frozen=True, eq=False)
class Index:
    """The items of a table.

    Attributes:
      keys: [n] uint64, of the items.
      inserted: [n] int64, ns since 1970; 0 where unknown.
      columns: number of columns, which all items share.
      squeezed: [columns] bool, which have no axis of rows.
      shifts: [columns] int64, rows from the first row of the first column to the first row of each.
      lengths: [columns] int64: of the columns that are equally long in all items; 0 for those as long as the item's first column.
      tensors: [chunks, columns] int16: in which tensor of a chunk a column lies; -1 where no item says so.
      episodes: [n] int64, numbers in `Chunks.episodes`' distinct values, see `sequences`.
      starts, stops: [n] int64, rows of the first column.
      sequences: distinct episode numbers of the chunks, uint64.
      unlike: why the items are no windows: an item, and what it reads; "" if they are windows.
      first_length: rows of the first column in every item; 1 where items differ in it.
    """

    keys: Array
    inserted: Array
    columns: int
    squeezed: Array
    shifts: Array
    lengths: Array
    tensors: Array
    episodes: Array
    starts: Array
    stops: Array
    sequences: Array
    unlike: str = ""
    first_length: int = 1


def index_of(name: str, items: Items, chunks: Chunks) -> Index:
    """Reads all items once: at least one.

    Raises:
      SourceError: an item cannot be read, points to a chunk that is not there, or has other columns than those before.
    """
    return IndexBuilder(name, chunks).of(items.parts())


class _Windows(NamedTuple):
    """The rows that columns of some items read. [items, columns] each.

    Attributes:
      episodes: number of the writer's sequence; -1 if the column is not consecutive rows of one sequence.
    """

    episodes: Array
    starts: Array
    lengths: Array


class IndexBuilder:
    def __init__(self, name: str, chunks: Chunks) -> None:
        self._name, self._chunks = name, chunks
        self._sequences, self._sequence_of_chunk = np.unique(chunks.episodes, return_inverse=True)
        self._parts: list[tuple[Array, ...]] = []
        self._columns = 0
        self._squeezed = self._shifts = self._lengths = np.zeros(0, np.int64)
        self._tensors = np.zeros((0, 0), np.int16)
        self._is_like_first = self._is_even = np.zeros(0, bool)
        self._unlike = ""

    def of(self, parts: Iterable[Sequence[Any]]) -> Index:
        for items in parts:
            self._take(items)
        if not self._parts:
            raise SourceError(
                f"{self._name}: the table holds no items, so there is nothing to read, and its spec is unknown"
            )
        keys, inserted, episodes, starts, stops = map(np.concatenate, zip(*self._parts))
        return Index(
            keys,
            inserted,
            self._columns,
            self._squeezed,
            self._shifts,
            np.where(self._is_like_first, 0, self._lengths),
            self._tensors,
            episodes,
            starts,
            stops,
            self._sequences,
            self._unlike,
            int(self._lengths[0]) if self._is_even[0] else 1,
        )

    def _take(self, items: Sequence[Any]) -> None:
        keys = np.array([item.key for item in items], np.uint64)
        inserted = np.array([item.inserted_at.seconds * 10**9 + item.inserted_at.nanos for item in items], np.int64)
        try:
            pointers = read_trajectories([item.flat_trajectory for item in items])
        except WireError as error:
            raise SourceError(
                f"{self._name}: one of the items {keys[0]} to {keys[-1]} cannot be read: {error}"
            ) from error
        self._check_columns(keys, pointers)
        numbers = self._chunks.find(pointers.slices.keys)
        if (numbers < 0).any():
            at = int(np.flatnonzero(numbers < 0)[0])
            item = keys[np.searchsorted(np.cumsum(pointers.item_slice_counts()), at, side="right")]
            raise SourceError(
                f"{self._name}: item {item} points to chunk {pointers.slices.keys[at]}, which is not there"
            )
        self._note_tensors(numbers, pointers)
        windows = self._windows(numbers, pointers)
        if not self._unlike:
            self._compare(keys, windows)
        starts = windows.starts[:, 0]
        self._parts.append((keys, inserted, windows.episodes[:, 0], starts, starts + windows.lengths[:, 0]))

    def _check_columns(self, keys: Array, pointers: Pointers) -> None:
        if not self._columns:
            columns = self._columns = int(pointers.column_counts[0])
            if columns > _MOST_COLUMNS:
                raise SourceError(
                    f"{self._name}: item {keys[0]} has {columns:,} columns, expected at most {_MOST_COLUMNS:,}"
                )
            self._squeezed = pointers.squeezed[:columns]
            self._shifts = self._lengths = np.zeros(columns, np.int64)
            self._tensors = np.full((len(self._chunks), columns), -1, np.int16)
            self._is_like_first = self._is_even = np.ones(columns, bool)
        other = pointers.column_counts != self._columns
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise SourceError(
                f"{self._name}: item {keys[at]} has {pointers.column_counts[at]} columns, those before have {self._columns}"
            )
        squeezed = (pointers.squeezed.reshape(-1, self._columns) != self._squeezed).any(axis=1)
        if squeezed.any():
            self._refuse(keys[np.flatnonzero(squeezed)[0]], "has an axis of rows where others have none, or has none")

    def _note_tensors(self, numbers: Array, pointers: Pointers) -> None:
        column_of_slice = np.repeat(np.arange(len(pointers.slice_counts)) % self._columns, pointers.slice_counts)
        tensors = np.minimum(pointers.slices.tensors, np.iinfo(np.int16).max).astype(np.int16)
        before = self._tensors[numbers, column_of_slice]
        self._tensors[numbers, column_of_slice] = tensors
        changed = ((before >= 0) & (before != tensors)) | (self._tensors[numbers, column_of_slice] != tensors)
        if changed.any() and not self._unlike:
            self._unlike = (
                "a column lies in one tensor of a chunk for one item, and in another one of it for another item"
            )

    def _windows(self, numbers: Array, pointers: Pointers) -> _Windows:
        slices, counts = pointers.slices, pointers.slice_counts
        firsts = starts_of(counts)
        starts = self._chunks.starts[numbers] + slices.offsets
        stops = starts + slices.lengths
        sequences = self._sequence_of_chunk[numbers]
        is_known = (slices.offsets >= 0) & (slices.offsets + slices.lengths <= self._chunks.rows[numbers])
        continues = np.ones(len(starts), bool)
        continues[1:] = (starts[1:] == stops[:-1]) & (sequences[1:] == sequences[:-1])
        continues[firsts] = True
        is_window = np.logical_and.reduceat(is_known & continues, firsts)
        lengths = np.add.reduceat(slices.lengths, firsts)
        shape = (-1, self._columns)
        return _Windows(
            np.where(is_window, sequences[firsts], -1).reshape(shape),
            starts[firsts].reshape(shape),
            lengths.reshape(shape),
        )

    def _compare(self, keys: Array, windows: _Windows) -> None:
        """Checks that these items read their columns as the earlier items did."""
        shifts = windows.starts - windows.starts[:, :1]
        if not self._parts:
            self._shifts, self._lengths = shifts[0], windows.lengths[0]
        self._is_like_first = self._is_like_first & (windows.lengths == windows.lengths[:, :1]).all(axis=0)
        self._is_even = self._is_even & (windows.lengths == self._lengths).all(axis=0)
        is_no_window = (windows.episodes < 0) | (windows.episodes != windows.episodes[:, :1])
        shifted = shifts != self._shifts
        longer = np.broadcast_to(~(self._is_like_first | self._is_even), shifts.shape)
        for bad, what in (
            (is_no_window, "reads rows in an unknown order, or of several sequences"),
            (shifted, "begins at another row beside those of its first column than in other items"),
            (longer, "is as long as the first column in some items, and not in others"),
        ):
            if bad.any():
                item, column = np.argwhere(bad)[0]
                self._refuse(keys[item], what, int(column))
                return

    def _refuse(self, key: Any, what: str, column: int | None = None) -> None:
        where = "" if column is None else f", column {column},"
        self._unlike = self._unlike or f"item {key}{where} {what}"
