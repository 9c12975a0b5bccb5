"""Responses of a sample stream -> batches of columns.

    BatchBuilder     what a response brings, put into batches
      Loading        the chunks of a response that the arena does not hold yet, decoded into it
      find_rows      what items point to -> rows of the arena
      gather         rows of the arena -> columns

Source of the delta encoding of chunks: reverb/cc/support/trajectory_util, tensor_compression.cc; observed with 0.14: only the legacy
writer sets the flag, and it acts on tensors of whole numbers with at least two axes, the rows included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire import codec, tensors
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.sample.arena import FREED_SHARE, Arena
from rlds2reverb.wire.sample.stream import Entries, ItemInfo, Samples
from rlds2reverb.wire.sample.trajectories import Pointers, Templates, is_even, spread, starts_of
from rlds2reverb.wire.schema import message_class


class SampleInfo(NamedTuple):
    """What the server tells of every sample, at the moment when it was taken.

    Attributes:
      key: [B] uint64, the item's.
      probability: [B] float64, with which the sampler drew it; 1 of samplers that leave nothing to chance.
      table_size: [B] int64, items in the table.
      priority: [B] float64, the item's.
      times_sampled: [B] int32, this time included.
    """

    key: Array
    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array


@dataclass(frozen=True, eq=False)
class FlatBatch:
    """Samples of one table.

    Attributes:
      columns: one per column of the items, in the order of the table's signature.
      info: of every sample.
    """

    columns: tuple[Column, ...]
    info: SampleInfo

    def __len__(self) -> int:
        return len(self.info.key)


def in_batches(parts: Sequence[FlatBatch], size: int) -> Iterator[FlatBatch]:
    """The samples of all parts, in their order, in batches of `size`; the last one may be shorter.

    Raises:
      WireError: the parts differ in their number of columns.
    """
    if not parts:
        return
    numbers = sorted({len(part.columns) for part in parts})
    if len(numbers) > 1:
        raise WireError(f"samples of one table have {' and '.join(map(str, numbers))} columns")
    whole = parts[0]
    if len(parts) > 1:
        info = SampleInfo(*(np.concatenate(values) for values in zip(*(part.info for part in parts))))
        whole = FlatBatch(tuple(joined(columns) for columns in zip(*(part.columns for part in parts))), info)
    if len(whole) <= size:
        yield whole
        return
    for start in range(0, len(whole), size):
        some = slice(start, start + size)
        info = SampleInfo(*(values[some] for values in whole.info))
        yield FlatBatch(tuple(_rows_of(column, some) for column in whole.columns), info)


def _rows_of(column: Column, some: slice) -> Column:
    return column[some] if isinstance(column, np.ndarray) else stacked(column[some])


class BatchBuilder:
    """Makes batches of what one sample stream brings. Not thread-safe.

    A chunk is decoded once and stays in an arena; of a sample that waits for its batch only the rows there are known. Before chunks
    leave the arena, what waits is gathered. A sample that alone is larger than the arena is decoded by itself.

    Args:
      batch_size: samples of a batch.
      arena_bytes: most bytes of decoded chunks that are kept for later samples.
    """

    def __init__(self, batch_size: int, arena_bytes: int) -> None:
        self._batch_size = batch_size
        self._entries = Entries()
        self._arena, self._templates = Arena(arena_bytes), Templates()
        self._infos: list[ItemInfo] = []  # of samples in no batch yet
        self._gathered: list[tuple[Column, ...]] = []  # their columns, as far as they had to be gathered
        self._rows: list[ArenaRows] = []  # where the others' are

    @property
    def waiting(self) -> int:
        """Samples that came and are in no batch yet."""
        return len(self._infos)

    def take(self, message: bytes) -> list[FlatBatch]:
        """The batches that a response completes.

        Raises:
          WireError: it is no such response, or its items point to what is not there.
        """
        full: list[FlatBatch] = []
        samples = self._entries.samples(message)
        if not (count := len(samples.infos)):
            return full
        loading, first = Loading(samples, self._arena, self._templates), 0
        while first < count:
            end = loading.load(first, count)
            for rows in loading.found(first, end) if end > first else ():
                begin = 0
                while begin < len(rows):  # into each batch as many as it lacks
                    stop = min(len(rows), begin + self._batch_size - len(self._infos))
                    self._rows.append(rows.part(begin, stop))
                    self._infos += samples.infos[first : first + stop - begin]
                    first, begin = first + stop - begin, stop
                    if len(self._infos) == self._batch_size:
                        full.append(self._batch())
            if end < count and not self._make_room(loading, end):  # larger than the arena
                self._gathered.append(tuple(stacked([value]) for value in loading.values(end)))
                self._infos.append(samples.infos[end])
                first = end + 1
                if len(self._infos) == self._batch_size:
                    full.append(self._batch())
        return full

    def rest(self) -> FlatBatch | None:
        """A batch of the samples that are left; None when there are none."""
        return self._batch() if self._infos else None

    def lost(self) -> None:
        """The stream broke: what came of a sample in parts is dropped."""
        self._entries.lost()

    def _make_room(self, loading: Loading, number: int) -> bool:
        """Whether the sample of that number can be loaded then, with nothing else if need be."""
        self._gather()
        for make_room in (*repeat(self._arena.make_room, FREED_SHARE), self._arena.clear):
            make_room()
            loading.forget()
            if loading.load(number, number + 1) > number:
                return True
        return False

    def _gather(self) -> None:
        """Copies what waits out of the arena."""
        rows, self._rows = self._rows, []
        if rows:
            self._gathered.append(gather(rows, self._arena))

    def _batch(self) -> FlatBatch:
        self._gather()
        infos, self._infos = self._infos, []
        gathered, self._gathered = self._gathered, []
        if len(counts := {len(columns) for columns in gathered}) > 1:
            raise unequal_columns(counts)
        dtypes = (np.uint64, np.float64, np.int64, np.float64, np.int32)
        info = SampleInfo(*(np.array(values, dtype) for values, dtype in zip(zip(*infos), dtypes)))
        return FlatBatch(tuple(joined(parts) for parts in zip(*gathered)), info)


class Loading:
    """The samples of one response, and their chunks on the way into the arena, as far as there is room.

    Args:
      samples: at least one.
      arena: where their chunks go.
      templates: read their trajectories.

    Raises:
      WireError: a trajectory cannot be read.
    """

    def __init__(self, samples: Samples, arena: Arena, templates: Templates) -> None:
        self._samples, self._arena = samples, arena
        pointers = self._pointers = templates.read(samples.trajectories)
        counts = pointers.item_slice_counts()
        self._first_slices: list[int] = [*starts_of(counts).tolist(), int(counts.sum())]
        # Columns of an item mostly read the same chunks: of equal keys only one is looked up.
        like = pointers.first_of_equal_keys()
        is_first = like == np.arange(len(like))
        self._lookup_of_slice = (np.cumsum(is_first) - 1)[like]
        self._slice_of_lookup = np.flatnonzero(is_first)
        self._keys: list[int] = pointers.slices.keys[is_first].tolist()
        self._numbers = arena.find(self._keys)

    def load(self, first: int, end: int) -> int:
        """Loads what the samples [first, end) need; the first for which there is no room, or `end`.

        Raises:
          WireError: a chunk cannot be read.
        """
        begin, stop = self._lookups_of(first, end)
        if (self._numbers[begin:stop] >= 0).all():
            return end
        missing = begin + np.flatnonzero(self._numbers[begin:stop] < 0)
        items = np.searchsorted(self._first_slices, self._slice_of_lookup[missing], side="right") - 1
        for number in np.unique(items).tolist():
            if not self._load_one(number):
                end = int(number)
                break
        self._look_up(begin, stop)
        return end

    def forget(self) -> None:
        """The arena has dropped chunks."""
        self._look_up(0, len(self._keys))

    def found(self, first: int, end: int) -> Iterator[ArenaRows]:
        """Where the values of the loaded samples [first, end) are; those with equally many columns together.

        Raises:
          WireError: one points to what is not there.
        """
        counts = self._pointers.column_counts[first:end]
        borders = (first + 1 + np.flatnonzero(np.diff(counts))).tolist()
        for begin, stop in zip([first, *borders], [*borders, end]):
            lookups = self._lookup_of_slice[self._first_slices[begin] : self._first_slices[stop]]
            yield find_rows(self._pointers.part(begin, stop), self._numbers[lookups], self._arena)

    def values(self, number: int) -> tuple[Array, ...]:
        """The columns of one sample, past the arena.

        Raises:
          WireError: a chunk cannot be read, or the sample points to what is not there.
        """
        pointers = self._pointers.part(number, number + 1)
        protos = self._samples.chunks(number)
        chunks = {one.chunk_key: Chunk(one.chunk_key, 0, 0, 0, decode_chunk(one)) for one in protos}
        slices = iter([Slice(*values) for values in zip(*(field.tolist() for field in pointers.slices))])
        columns = tuple(
            ItemColumn(tuple(next(slices) for _ in range(count)), squeezed)
            for count, squeezed in zip(pointers.slice_counts.tolist(), pointers.squeezed.tolist())
        )
        key, _, _, priority, _ = self._samples.infos[number]
        return codec.item_values(Item(key, "", priority, columns), chunks)

    def _load_one(self, number: int) -> bool:
        """Whether there was room."""
        begin, stop = self._lookups_of(number, number + 1)
        wanted = set(self._keys[begin:stop])
        for chunk in self._samples.chunks(number):
            key = chunk.chunk_key
            if key in wanted and key not in self._arena and not self._arena.add(key, decode_chunk(chunk)):
                return False
        return True

    def _look_up(self, begin: int, stop: int) -> None:
        self._numbers[begin:stop] = self._arena.find(self._keys[begin:stop])

    def _lookups_of(self, first: int, end: int) -> tuple[int, int]:
        """Which keys are those of the samples [first, end)."""
        slices = (self._first_slices[first], self._first_slices[end])
        begin, stop = np.searchsorted(self._slice_of_lookup, slices).tolist()
        return begin, stop


Column = Array | list[Array]
"""[B, ...] where all items of the batch have one shape and dtype; else B arrays."""


_MOST_ROWS = 1 << 28
"""Of one response, all columns together. A few bytes can ask for any number: the same rows again and again, or rows without values."""


@dataclass(frozen=True, eq=False)
class ArenaRows:
    """Where the values of some items lie in the arena; all items have as many columns.

    Attributes:
      first_rows: [slices] int64, where each slice begins: item by item, column by column.
      slice_lengths: [slices] int64, rows of each.
      slice_counts: [items, columns] int64, slices of each column.
      lengths: [items, columns] int64, rows of each.
      kinds: [items, columns] int64, the arena's number of what the rows are.
      squeezed: [items, columns] bool.
    """

    first_rows: Array
    slice_lengths: Array
    slice_counts: Array
    lengths: Array
    kinds: Array
    squeezed: Array

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def columns(self) -> int:
        """How many each item has."""
        return int(self.lengths.shape[1])

    def part(self, first: int, end: int) -> ArenaRows:
        """Those of the items [first, end)."""
        if (first, end) == (0, len(self)):
            return self
        begin, stop = int(self.slice_counts[:first].sum()), int(self.slice_counts[:end].sum())
        return ArenaRows(
            *(values[begin:stop] for values in (self.first_rows, self.slice_lengths)),
            *(values[first:end] for values in (self.slice_counts, self.lengths, self.kinds, self.squeezed)),
        )


def find_rows(pointers: Pointers, numbers: Array, arena: Arena) -> ArenaRows:
    """Where the arena has what items point to.

    Args:
      pointers: of items with equally many columns.
      numbers: [slices] int64, as `arena.find` says for their keys.
      arena: holds the chunks.

    Raises:
      WireError: a slice points to a chunk, a tensor or rows that are not there, or a column's slices do not fit together.
    """
    slices = pointers.slices
    _check(numbers >= 0, pointers, "a chunk that did not come")
    is_there = (slices.tensors >= 0) & (slices.tensors < arena.tensor_counts(numbers))
    _check(is_there, pointers, "a tensor that the chunk does not have")
    first_rows, row_counts, kinds = arena.noted(numbers + slices.tensors)
    is_inside = (slices.offsets >= 0) & (slices.lengths >= 1) & (slices.offsets + slices.lengths <= row_counts)
    _check(is_inside, pointers, "rows that the chunk does not have")
    first_slices = starts_of(pointers.slice_counts)
    column_kinds = kinds[first_slices]
    _check(
        np.repeat(column_kinds, pointers.slice_counts) == kinds,
        pointers,
        "another dtype or shape than the slices before",
    )
    lengths = np.add.reduceat(slices.lengths, first_slices)
    if (total := int(lengths.sum())) > _MOST_ROWS:
        raise WireError(f"sampled items of one response have {total} rows, more than {_MOST_ROWS}")
    _check_squeezed(lengths, pointers.squeezed)
    by_item = (len(pointers), -1)
    return ArenaRows(
        first_rows + slices.offsets,
        slices.lengths,
        pointers.slice_counts.reshape(by_item),
        lengths.reshape(by_item),
        column_kinds.reshape(by_item),
        pointers.squeezed.reshape(by_item),
    )


def _check(is_right: Array, pointers: Pointers, wrong: str) -> None:
    if is_right.all():
        return
    at = int(np.flatnonzero(~is_right)[0])
    keys, offsets, lengths, tensors = (values[at] for values in pointers.slices)
    raise WireError(
        f"sampled item: a slice of {lengths} rows from row {offsets} on, of tensor {tensors} of chunk {keys}: it points to {wrong}"
    )


def _check_squeezed(lengths: Array, squeezed: Array) -> None:
    if np.any(wrong := squeezed & (lengths != 1)):
        raise WireError(f"sampled item: a squeezed column of {lengths[wrong][0]} rows, expected 1")


def gather(pieces: Sequence[ArenaRows], arena: Arena) -> tuple[Column, ...]:
    """The values of all items of the pieces, copied: one column for each of theirs.

    Raises:
      WireError: the items differ in their number of columns.
    """
    if len(counts := {piece.columns for piece in pieces}) > 1:
        raise unequal_columns(counts)
    whole = pieces[0] if len(pieces) == 1 else _joined_rows(pieces)
    first_slices = starts_of(whole.slice_counts.ravel()).reshape(whole.slice_counts.shape)
    return tuple(map(partial(_column, whole, first_slices, arena), range(whole.columns)))


def unequal_columns(counts: set[int]) -> WireError:
    """Of items that cannot be in one batch."""
    return WireError(f"sampled items of one batch have {sorted(counts)} columns; batch_size=1 takes them one by one")


def _joined_rows(pieces: Sequence[ArenaRows]) -> ArenaRows:
    return ArenaRows(*(np.concatenate([getattr(piece, one.name) for piece in pieces]) for one in fields(ArenaRows)))


def _column(whole: ArenaRows, first_slices_of: Array, arena: Arena, number: int) -> Column:
    first_slices = first_slices_of[:, number]
    counts, lengths = whole.slice_counts[:, number], whole.lengths[:, number]
    kinds, squeezed = whole.kinds[:, number], whole.squeezed[:, number]
    if is_even(lengths) and is_even(kinds) and is_even(squeezed):
        index = spread(first_slices, counts)
        rows = arena.take(int(kinds[0]), whole.first_rows[index], whole.slice_lengths[index])
        axes = (len(lengths),) if squeezed[0] else (len(lengths), int(lengths[0]))
        return rows.reshape(*axes, *rows.shape[1:])
    values = []
    for first, count, kind, is_squeezed in zip(*(one.tolist() for one in (first_slices, counts, kinds, squeezed))):
        own = slice(first, first + count)
        value = arena.take(kind, whole.first_rows[own], whole.slice_lengths[own])
        values.append(value.reshape(value.shape[1:]) if is_squeezed else value)
    return stacked(values)


def stacked(values: list[Array]) -> Column:
    """One array of them where they have one shape and dtype; else they stay a list."""
    return np.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else values


def joined(columns: Sequence[Column]) -> Column:
    """Parts of one column, one after the other."""
    if len(columns) == 1:
        return columns[0]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({(column.shape[1:], column.dtype) for column in arrays}) == 1:
        return np.concatenate(arrays)
    return stacked([value for column in columns for value in _values(column)])


def _values(column: Column) -> list[Array]:
    """One array per item, each in memory of its own."""
    return column if isinstance(column, list) else [column[number, ...].copy() for number in range(len(column))]


def placed(values: Sequence[Column], places: Sequence[Array], total: int) -> Column:
    """Columns of several groups of items -> one column in which each item stands in its place.

    Args:
      values: per group [m, ...], or m arrays.
      places: per group [m], where its items stand; together each of [0, total) once.
      total: number of items.
    """
    if all(isinstance(one, np.ndarray) for one in values) and len({one.shape[1:] for one in values}) == 1:  # type: ignore[union-attr]
        out = np.empty((total, *np.shape(values[0])[1:]), values[0].dtype)  # type: ignore[union-attr]
        for one, at in zip(values, places):
            out[at] = one
        return out
    items: list[Array] = [np.empty(0)] * total
    for one, at in zip(values, places):
        for place, item in zip(at, one):
            items[place] = item
    return np.stack(items) if len({item.shape for item in items}) == 1 else items


def decode_chunk(chunk: Any) -> tuple[Array, ...]:
    """A SampledChunk message -> one array [rows, ...] per tensor.

    Raises:
      WireError: the tensors cannot be read.
    """
    try:
        data = message_class("ChunkTensors").FromString(chunk.data)
    except DecodeError as error:
        raise WireError(f"chunk {chunk.chunk_key}: {len(chunk.data)} bytes that are no tensors ({error})") from error
    decoded = (tensors.decode_tensor(tensor) for tensor in data.tensors)
    return tuple(_summed(tensor) for tensor in decoded) if chunk.delta_encoded else tuple(decoded)


def _summed(tensor: Array) -> Array:
    """Undoes the delta encoding: sums that wrap, row by row."""
    if tensor.dtype.kind not in "iu" or tensor.ndim < 2:
        return tensor
    return np.cumsum(tensor, axis=0, dtype=tensor.dtype)


__all__ = ["BatchBuilder", "Column", "FlatBatch", "SampleInfo", "in_batches"]
