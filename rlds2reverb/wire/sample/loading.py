"""Chunks that samples need and the arena does not hold -> the arena, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.sample.arena import Arena
from rlds2reverb.wire.sample.chunks import decode_chunk
from rlds2reverb.wire.sample.entries import Sample
from rlds2reverb.wire.sample.pointers import read_trajectories
from rlds2reverb.wire.sample.rows import Rows, find_rows


class Loading:
    """The samples of one response.

    Args:
      samples: at least one.
      arena: where their chunks go.

    Raises:
      WireError: a trajectory cannot be read.
    """

    def __init__(self, samples: Sequence[Sample], arena: Arena) -> None:
        self._samples, self._arena = samples, arena
        self._pointers = read_trajectories([sample.trajectory for sample in samples])
        self._keys: list[int] = self._pointers.slices.keys.tolist()
        self._slice_items = self._pointers.items_of_slices()

    def load(self, first: int, end: int) -> int:
        """Loads what the samples [first, end) need; the first for which there is no room, or `end`.

        Raises:
          WireError: a chunk cannot be read.
        """
        begin, stop = self._slice_of(first), self._slice_of(end)
        missing = np.flatnonzero(self._arena.find(self._keys[begin:stop]) < 0)
        for number in np.unique(self._slice_items[begin + missing]).tolist():
            if not self._load_one(number):
                return int(number)
        return end

    def found(self, first: int, end: int) -> Iterator[Rows]:
        """Where the values of the loaded samples [first, end) are; those with equally many columns together.

        Raises:
          WireError: one points to what is not there.
        """
        counts = self._pointers.column_counts[first:end]
        borders = (first + 1 + np.flatnonzero(np.diff(counts))).tolist()
        for begin, stop in zip([first, *borders], [*borders, end]):
            numbers = self._arena.find(self._keys[self._slice_of(begin) : self._slice_of(stop)])
            yield find_rows(self._pointers.part(begin, stop), numbers, self._arena)

    def values(self, number: int) -> tuple[Array, ...]:
        """The columns of one sample, past the arena.

        Raises:
          WireError: a chunk cannot be read, or the sample points to what is not there.
        """
        sample, pointers = self._samples[number], self._pointers.part(number, number + 1)
        chunks = {one.chunk_key: Chunk(one.chunk_key, 0, 0, 0, decode_chunk(one)) for one in sample.chunks()}
        slices = iter([Slice(*values) for values in zip(*(field.tolist() for field in pointers.slices))])
        columns = tuple(
            ItemColumn(tuple(next(slices) for _ in range(count)), squeezed)
            for count, squeezed in zip(pointers.slice_counts.tolist(), pointers.squeezed.tolist())
        )
        return codec.item_values(Item(sample.told.key, "", sample.told.priority, columns), chunks)

    def _load_one(self, number: int) -> bool:
        """Whether there was room."""
        wanted = set(self._keys[self._slice_of(number) : self._slice_of(number + 1)])
        for chunk in self._samples[number].chunks():
            key = chunk.chunk_key
            if key in wanted and key not in self._arena and not self._arena.add(key, decode_chunk(chunk)):
                return False
        return True

    def _slice_of(self, number: int) -> int:
        """The first slice of a sample."""
        return int(np.searchsorted(self._slice_items, number))
