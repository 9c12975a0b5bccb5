"""Columns of rows that lie in a file, read in blocks: many short episodes cost few reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

_BLOCK_BYTES = 4 << 20
_TEXT_BYTES = 64
"""What a text is taken for, when a block's rows are counted."""


class Rows(Protocol):
    """A column of all episodes."""

    @property
    def spec(self) -> ArraySpec:
        """That of a row."""

    def __len__(self) -> int: ...

    def rows(self, start: int = 0, stop: int | None = None) -> Array:
        """Some rows, or all. Raises `BrokenEpisode` when they cannot be read."""


class Blocks:
    """Reads columns together; a block ahead where episodes come one after the other.

    Args:
      columns: path -> column; all of one length.
    """

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        self._columns = columns
        self._most_rows = _BLOCK_BYTES // max(1, sum(_row_bytes(column.spec) for column in columns.values()))
        self._start = self._stop = self._next = self._ahead = 0
        self._block: dict[str, Array] = {}

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """These rows of every column; views of the block that they are in.

        Raises:
          BrokenEpisode: one of the columns cannot be read there; names it.
        """
        if not self._start <= start <= stop <= self._stop:
            self._read(start, stop)
        self._next = stop
        return {path: column[start - self._start : stop - self._start] for path, column in self._block.items()}

    def _read(self, start: int, stop: int) -> None:
        """Reads a block: twice the rows of the one before, as long as episodes follow one another."""
        self._ahead = min(max(2 * self._ahead, 2 * (stop - start)), self._most_rows) if start == self._next else 0
        try:
            self._take(start, max(stop, start + self._ahead))
        except BrokenEpisode:
            self._take(start, stop)

    def _take(self, start: int, stop: int) -> None:
        self._start = self._stop = 0
        self._block = {path: column.rows(start, stop) for path, column in self._columns.items()}
        self._start, self._stop = start, min((start + len(one) for one in self._block.values()), default=start)


def _row_bytes(spec: ArraySpec) -> int:
    values = int(np.prod([size or 1 for size in spec.shape], dtype=object))
    return values * (_TEXT_BYTES if spec.dtype.kind == "O" else spec.dtype.itemsize)
