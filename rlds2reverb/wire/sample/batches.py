"""Responses of a sample stream -> batches of columns.

batch_builder      the compiled way where it was built, else the plain one
NativeBuilder    copies the rows of many samples at once from decoded chunks into the arrays of a batch
PlainBuilder     item by item, by `plain`
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlds2reverb.episode import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample import native, plain

Column = Array | list[Array]
"""[B, ...] where all items of the batch have one shape and dtype; else B arrays."""


class SampleInfo(NamedTuple):
    """The server's information on every sample, at the moment when it was taken."""

    key: Array  # [B] uint64, the item's
    probability: Array  # [B] float64, with which the sampler drew it; 1 for samplers without chance
    table_size: Array  # [B] int64, items in the table
    priority: Array  # [B] float64, the item's
    times_sampled: Array  # [B] int32, this time included


@dataclass(frozen=True, eq=False)
class FlatBatch:
    """Samples of one table."""

    columns: tuple[Column, ...]  # one per column of the items, in the order of the table's signature
    info: SampleInfo  # of every sample

    def __len__(self) -> int:
        return len(self.info.key)


def in_batches(parts: Sequence[FlatBatch], size: int) -> Iterator[FlatBatch]:
    """The samples of all parts, in their order, in batches of `size`; the last one may be shorter.

    Raises:
      WireError: the parts differ in their number of columns.
    """
    if not parts:
        return
    whole = join_batches(parts)
    if len(whole) <= size:
        yield whole
        return
    for start in range(0, len(whole), size):
        rows = slice(start, start + size)
        columns = (
            column[rows] if isinstance(column, np.ndarray) else stack_values(column[rows]) for column in whole.columns
        )
        yield FlatBatch(tuple(columns), SampleInfo(*(values[rows] for values in whole.info)))


class ChunkCache:
    """Decoded chunks, kept for later samples. The streams of a sampler share one: a chunk never changes.

    Args:
      most_bytes: of all chunks. The system gives the memory when it is first written: an arena larger than its table costs as much
        as the table.
      is_compiled: whether the compiled reader fills it.
    """

    def __init__(self, most_bytes: int, is_compiled: bool = native.LIBRARY is not None) -> None:
        _keep_freed_memory()
        self.lock, self.is_compiled = threading.Lock(), is_compiled
        # With an arena, `plain` reads the few unusual samples only, and keeps none of their chunks.
        self.native = native.Arena(most_bytes) if is_compiled else None
        self.chunks = plain.Chunks(0 if is_compiled else most_bytes)


@functools.cache
def _keep_freed_memory() -> None:
    """Responses of 2 MiB come and go; by default glibc gives their memory back each time, and the system zeroes the pages anew: a
    third of the processor time of sampling whole episodes. Once a large mapped block was freed, glibc keeps up to twice as much
    (mallopt(3), M_MMAP_THRESHOLD; the largest block that counts has 32 MiB). Nothing is written, so this costs no memory itself.
    """
    np.empty(30 << 20, np.uint8)


class BatchBuilder(Protocol):
    """Makes batches of the samples of one stream. Not thread-safe."""

    @property
    def waiting(self) -> int:
        """Samples that are in no batch yet."""

    def take(self, message: bytes, full: list[FlatBatch]) -> None:
        """Appends the batches that a response completes, also those before an error.

        Raises:
          WireError: it is no such response, its items point to what is not there, or there is no memory for them.
        """

    def rest(self) -> FlatBatch | None:
        """A batch of the remaining samples; None when there are none."""

    def lost(self) -> None:
        """The stream broke: the parts of an unfinished sample are dropped."""


def batch_builder(batch_size: int, cache: ChunkCache) -> BatchBuilder:
    """The compiled builder where it was built, else the plain one."""
    if cache.native is None:
        return PlainBuilder(batch_size, cache)
    return NativeBuilder(batch_size, cache, cache.native)


@contextmanager
def _needing_memory(message: bytes, batch_size: int) -> Iterator[None]:
    """Makes a `WireError` of a `MemoryError`: a small response can ask for more than there is."""
    try:
        yield
    except MemoryError as error:
        raise WireError(
            f"a response of {len(message):,} bytes: no memory for batches of {batch_size:,} of its samples ({error}); a smaller batch_size takes less"
        ) from error


class PlainBuilder:
    """A `BatchBuilder` that puts items together one by one."""

    def __init__(self, batch_size: int, cache: ChunkCache) -> None:
        self._batch_size, self._cache = batch_size, cache
        self._begun = b""  # of a sample whose end is still to come
        self._held: list[FlatBatch] = []

    @property
    def waiting(self) -> int:
        return len(self._held)

    def take(self, message: bytes, full: list[FlatBatch]) -> None:
        samples, self._begun = plain.read(self._begun + message)
        with _needing_memory(message, self._batch_size):
            for sample in samples:
                with self._cache.lock:
                    self._held.append(_batch_of_one(sample, self._cache.chunks))
                if len(self._held) == self._batch_size:
                    held, self._held = self._held, []
                    full.append(join_batches(held))

    def rest(self) -> FlatBatch | None:
        held, self._held = self._held, []
        return join_batches(held) if held else None

    def lost(self) -> None:
        self._begun = b""


class NativeBuilder:
    """A `BatchBuilder` whose rows the compiled reader copies. A sample that it finds unusual is read by `plain`."""

    def __init__(self, batch_size: int, cache: ChunkCache, arena: native.Arena) -> None:
        self._batch_size, self._cache = batch_size, cache
        self._reader = native.Reader(arena)
        self._begun: list[bytes] = []  # parts of a sample whose end is still to come
        self._parts: list[FlatBatch] = []  # of the next batch
        self._group: native.Group | None = None  # after these: takes more samples of one layout
        self._memory = _Memory()
        self._are_alike = True  # the samples of the last batch had one layout
        self.waiting = 0

    def take(self, message: bytes, full: list[FlatBatch]) -> None:
        # The streams of a sampler share the arena, which is for one thread at a time.
        with self._cache.lock, _needing_memory(message, self._batch_size):
            begin = 0
            # A sample that began before is completed first, and read apart: its parts are joined once, when its end is there.
            if self._begun:
                if (end := self._reader.first_end(message)) is None:
                    self._begun.append(message)
                    return
                begun, self._begun, begin = self._begun, [], end
                self._read(b"".join([*begun, message[:end]]), 0, full)
            if begin < len(message):
                self._read(message, begin, full)

    def rest(self) -> FlatBatch | None:
        return self._batch() if self.waiting else None

    def lost(self) -> None:
        self._begun = []

    def _read(self, message: bytes, begin: int, full: list[FlatBatch]) -> None:
        if (parsed := self._reader.parse(message, begin)) is None:
            samples, unfinished = plain.read(message[begin:])
            if unfinished:
                self._begun = [unfinished]
            for sample in samples:
                self._add_plain(sample, full)
            return
        count, whole = parsed
        if whole < len(message):
            self._begun = [message[whole:]]
        first = 0
        while first < count:
            group = self._group = self._group or self._next_group(first, count)
            done = (
                0 if group is None else self._reader.fill(group, first, min(count - first, group.room - group.filled))
            )
            if group is None or (not done and not group.filled):  # the reader finds the sample unusual
                (sample,), _ = plain.read(message[self._reader.span(first)])
                self._group, done = None, 1
                self._add_plain(sample, full)
            elif not done:
                # Of another layout than the group, or unusual: the next round finds out, with no group.
                self._end_group()
            else:
                self.waiting += done
                if group.filled == group.room:
                    self._end_group()
                self._hand_out(full)
            first += done

    def _next_group(self, first: int, count: int) -> native.Group | None:
        """A group for sample `first` and those after it; None when the reader finds that sample unusual."""
        if (layout := self._reader.layout(first)) is None:
            return None
        left = self._batch_size - self.waiting
        # Where the last batch had one layout, this one will too: a group of the whole batch goes on over responses, and nothing is joined.
        alike = self._reader.alike(first, left)
        is_open = self._are_alike and first + alike == count
        # Memory is kept for groups that begin a batch, nearly always whole ones. Parts of a batch have many sizes, and are let go when they are joined.
        empty: Any = self._memory.empty if left == self._batch_size else np.empty
        return native.Group(layout, left if is_open else alike, empty)

    def _add_plain(self, sample: plain.Sample, full: list[FlatBatch]) -> None:
        self._end_group()
        self._parts.append(_batch_of_one(sample, self._cache.chunks))
        self.waiting += 1
        self._hand_out(full)

    def _hand_out(self, full: list[FlatBatch]) -> None:
        if self.waiting == self._batch_size:
            full.append(self._batch())

    def _end_group(self) -> None:
        group, self._group = self._group, None
        if group is not None and group.filled:
            # Copied where the group is not full: a view would keep the memory of all of its room.
            own, is_full = slice(group.filled), group.filled == group.room
            columns, info = (
                tuple(values if is_full else values[own].copy() for values in arrays)
                for arrays in (group.columns, group.info)
            )
            self._parts.append(FlatBatch(columns, SampleInfo(*info)))

    def _batch(self) -> FlatBatch:
        self._end_group()
        parts, self._parts, self.waiting = self._parts, [], 0
        self._are_alike = len(parts) == 1
        return join_batches(parts)


class _Memory:
    """The memory of batches, used again once nobody holds an array of it: the system zeroes new memory, page by page."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Array]] = {}  # bytes -> blocks

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As `numpy.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALL_BYTES:
            return np.empty(shape, dtype)
        if size not in self._kept and len(self._kept) == _MOST_SIZES:
            self._kept.clear()
        blocks = self._kept.setdefault(size, [])
        free = [at for at in range(len(blocks)) if _holders(blocks, at) == _FREE]
        if free:
            block = blocks[free[0]]
            if len(free) > _MOST_FREE:  # a learner held more batches once
                del blocks[free[-1]]
        else:
            block = np.empty(size, np.uint8)
            blocks.append(block)
        out: Array = block.view(dtype).reshape(shape)  # numpy has all views of it refer to the block
        return out


_SMALL_BYTES = 1 << 15
"""Smaller arrays are numpy's own: malloc gives such memory again without the system."""

_MOST_SIZES, _MOST_FREE = 16, 16
"""Sizes of blocks that are kept, and unused blocks of each."""


def _holders(blocks: list[Array], at: int) -> int:
    return sys.getrefcount(blocks[at])


# Measured, not written down: how many references a call itself holds differs between versions of Python.
_FREE = _holders([np.empty(1)], 0)


def _batch_of_one(sample: plain.Sample, chunks: plain.Chunks) -> FlatBatch:
    values = chunks.values(sample)
    info = SampleInfo(*(np.array([value], dtype) for value, dtype in zip(sample.info, native.INFO_DTYPES)))
    return FlatBatch(tuple(stack_values([value]) for value in values), info)


def join_batches(parts: Sequence[FlatBatch]) -> FlatBatch:
    """All samples of the parts, in their order.

    Raises:
      WireError: they differ in their number of columns.
    """
    if len(parts) == 1:
        return parts[0]
    if len(counts := {len(part.columns) for part in parts}) > 1:
        raise unequal_columns(counts)
    info = SampleInfo(*(np.concatenate(values) for values in zip(*(part.info for part in parts))))
    return FlatBatch(tuple(join_columns(columns) for columns in zip(*(part.columns for part in parts))), info)


def take_rows(batch: FlatBatch, rows: Array) -> FlatBatch:
    """The samples at these rows [n], each as often as it is named, in memory of their own."""
    columns = (
        column[rows] if isinstance(column, np.ndarray) else stack_values([column[row] for row in rows.tolist()])
        for column in batch.columns
    )
    return FlatBatch(tuple(columns), SampleInfo(*(values[rows] for values in batch.info)))


def unequal_columns(counts: set[int]) -> WireError:
    return WireError(f"sampled items of one batch have {sorted(counts)} columns; batch_size=1 takes them one by one")


def stack_values(values: list[Array]) -> Column:
    """One array where all values have one shape and dtype; else the list."""
    return np.stack(values) if len({(value.shape, value.dtype) for value in values}) == 1 else values


def join_columns(columns: Sequence[Column]) -> Column:
    """Parts of one column, one after the other."""
    if len(columns) == 1:
        return columns[0]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({(column.shape[1:], column.dtype) for column in arrays}) == 1:
        return np.concatenate(arrays)
    values: list[Array] = []
    for column in columns:  # each value in memory of its own: a view of one would keep the memory of a whole batch
        if isinstance(column, list):
            values += column
        else:
            values += [column[0, ...]] if len(column) == 1 else [column[at, ...].copy() for at in range(len(column))]
    return stack_values(values)


def place_columns(values: Sequence[Column], places: Sequence[Array], total: int) -> Column:
    """Columns of groups of items -> one column with each item at its place.

    Args:
      values: per group [m, ...], or m arrays.
      places: per group [m], the places of its items; together each of [0, total) once.
      total: number of items.
    """
    arrays = [group for group in values if isinstance(group, np.ndarray)]
    if len(arrays) == len(values) and len({group.shape[1:] for group in arrays}) == 1:
        out = np.empty((total, *arrays[0].shape[1:]), arrays[0].dtype)
        for group, at in zip(arrays, places):
            out[at] = group
        return out
    items: list[Array] = [np.empty(0)] * total
    for group_items, at in zip(values, places):
        for place, item in zip(at, group_items):
            items[place] = item
    return np.stack(items) if len({item.shape for item in items}) == 1 else items
