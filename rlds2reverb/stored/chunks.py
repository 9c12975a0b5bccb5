"""The chunks of a server: where each lies in its writer's sequence of rows, and its tensors when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.stored.spool import Spool
from rlds2reverb.wire.sample.chunks import decode_chunk


class _Data(NamedTuple):
    """What `decode_chunk` reads."""

    chunk_key: int
    delta_encoded: bool
    data: bytes


@dataclass(frozen=True, eq=False)
class Chunks:
    """All chunks, numbered in the order of their keys; [n] each.

    Attributes:
      keys: uint64, rising.
      episodes: uint64, the number that their writer gave the sequence of rows: mostly an episode.
      starts: int64, the row there that is their first.
      rows: int64, how many they have; 0 where their writer does not tell which rows they are.
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
        """[m] int64: the numbers of the chunks with these keys; -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    def tensors(self, number: int) -> tuple[Array, ...]:
        """One array [rows, ...] per tensor of a chunk.

        Raises:
          WireError: they cannot be read.
        """
        data = self._spool.read(int(self._places[number]), int(self._sizes[number]))
        return decode_chunk(_Data(int(self.keys[number]), bool(self._are_deltas[number]), data))


class ChunkBuilder:
    """Takes chunks in any order; one that comes again is passed over."""

    def __init__(self) -> None:
        self._spool = Spool()
        self._known: set[int] = set()
        self._columns = tuple(array(kind) for kind in "QQqqqqb")

    def add(self, chunk: Any) -> None:
        """Takes a Chunk message."""
        if (key := chunk.chunk_key) in self._known:
            return
        self._known.add(key)
        told, data = chunk.sequence_range, chunk.data
        rows = told.end - told.start + 1
        is_told = chunk.HasField("sequence_range") and not told.sparse and told.start >= 0 and rows > 0
        values: Sequence[int] = (
            key, told.episode_id, told.start, rows if is_told else 0, self._spool.write(data), len(data), chunk.delta_encoded,
        )  # fmt: skip
        for column, value in zip(self._columns, values):
            column.append(value)

    def built(self) -> Chunks:
        """All of them."""
        self._known.clear()
        self._spool.close_writing()
        keys, episodes, starts, rows, places, sizes, are_deltas = map(np.array, self._columns)
        order = np.argsort(keys, kind="stable")
        told = (keys[order], episodes[order], starts[order], rows[order])
        return Chunks(*told, places[order], sizes[order], are_deltas[order], self._spool)
