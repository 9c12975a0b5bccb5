"""Responses of a sample stream -> batches of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.wire.sample.arena import FREED_SHARE, Arena
from rlds2reverb.wire.sample.entries import Entries, ItemInfo
from rlds2reverb.wire.sample.loading import Loading
from rlds2reverb.wire.sample.rows import Column, Rows, gather, joined, stacked, unequal_columns
from rlds2reverb.wire.sample.templates import Templates

__all__ = ["BatchBuilder", "Column", "FlatBatch", "SampleInfo", "in_batches"]


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
        self._rows: list[Rows] = []  # where the others' are

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
