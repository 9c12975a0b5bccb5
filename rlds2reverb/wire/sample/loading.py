"""Chunks that samples need and the arena does not hold -> the arena, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire import codec
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.sample.arena import Arena
from rlds2reverb.wire.sample.chunks import decode_chunk
from rlds2reverb.wire.sample.entries import Samples
from rlds2reverb.wire.sample.rows import Rows, find_rows
from rlds2reverb.wire.sample.spans import starts_of
from rlds2reverb.wire.sample.templates import Templates


class Loading:
    """The samples of one response.

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

    def found(self, first: int, end: int) -> Iterator[Rows]:
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
