"""Rows of an episode's columns, put together from chunks; every chunk is read once, however many items share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import WireError
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.stored.chunks import Chunks
from rlds2reverb.stored.index import Index


class RowReader:
    """Reads rows of a writer's sequences.

    Args:
      chunks: where they lie.
      index: which columns lie in which tensors.
      paths: of the items' columns, in their order.
    """

    def __init__(self, chunks: Chunks, index: Index, paths: Sequence[str]) -> None:
        self._chunks, self._index, self._paths = chunks, index, paths
        self._order = np.lexsort((chunks.starts, chunks.episodes))
        self._sequences, self._starts = chunks.episodes[self._order], chunks.starts[self._order]
        self._most_rows = int(chunks.rows.max(initial=0))

    def columns(self, sequence: int, first: int, stop: int, only: Collection[str] = ()) -> dict[str, Array]:
        """Path -> all rows of a column that items read whose first columns are the rows [first, stop).

        Args:
          sequence: its number.
          first, stop: rows of the first column.
          only: paths of the columns that are wanted; all by default.

        Raises:
          BrokenEpisode: rows are in no chunk, or chunks do not go together.
        """
        shifts, lengths = self._index.shifts, self._index.lengths
        begins = (first + shifts).tolist()
        ends = np.where(lengths > 0, stop - 1 + shifts + lengths, stop + shifts).tolist()
        pieces: dict[int, list[tuple[int, Array]]] = {
            column: [] for column, path in enumerate(self._paths) if not only or path in only
        }
        for number in self._chunks_of(sequence, min(begins), max(ends)):
            start = int(self._chunks.starts[number])
            stop_of_chunk = start + int(self._chunks.rows[number])
            tensors = self._index.tensors[number].tolist()
            wanted = [
                column
                for column in pieces
                if tensors[column] >= 0 and start < ends[column] and stop_of_chunk > begins[column]
            ]
            if wanted:
                decoded = self._tensors(number)
                for column in wanted:
                    pieces[column].append((start, self._checked(number, column, tensors[column], decoded)))
        return {
            self._paths[column]: joined(self._paths[column], found, begins[column], ends[column])
            for column, found in pieces.items()
        }

    def _chunks_of(self, sequence: int, first: int, stop: int) -> list[int]:
        """The numbers of the chunks of a sequence that may have some of these rows, by their first."""
        wanted = np.uint64(sequence)
        begin = int(np.searchsorted(self._sequences, wanted, side="left"))
        end = int(np.searchsorted(self._sequences, wanted, side="right"))
        starts = self._starts[begin:end]
        after, before = np.searchsorted(starts, np.array([first - self._most_rows + 1, stop])).tolist()
        found: list[int] = self._order[begin + after : begin + before].tolist()
        return found

    def _tensors(self, number: int) -> tuple[Array, ...]:
        try:
            return self._chunks.tensors(number)
        except WireError as error:
            raise BrokenEpisode("", f"chunk {self._chunks.keys[number]}: {error}") from error

    def _checked(self, number: int, column: int, tensor: int, decoded: Sequence[Array]) -> Array:
        rows = int(self._chunks.rows[number])
        if tensor >= len(decoded) or decoded[tensor].shape[:1] != (rows,):
            key = self._chunks.keys[number]
            raise BrokenEpisode(
                self._paths[column], f"chunk {key}: has no tensor {tensor} of {rows:,} rows, which items read"
            )
        return decoded[tensor]


def joined(path: str, pieces: Sequence[tuple[int, Array]], first: int, stop: int) -> Array:
    """The rows [first, stop) of a column.

    Args:
      path: the column's.
      pieces: (their first row, rows), by that row.
      first, stop: which rows.

    Raises:
      BrokenEpisode: some are in no piece, pieces have another dtype or shape, or two of them differ in a row that both have.
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


def _check_alike(path: str, one: tuple[int, Array], other: tuple[int, Array]) -> None:
    (start, rows), (later, more) = one, other
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
