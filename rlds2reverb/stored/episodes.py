"""Episodes rebuilt from the rows that items read: every chunk is read once for its episode, however many items share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import EPISODE_ID, Array
from rlds2reverb.errors import WireError
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.stored.fingerprints import fingerprint_of
from rlds2reverb.stored.index import Index
from rlds2reverb.stored.layouts import Layout
from rlds2reverb.stored.runs import Runs
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.wording import counted

REFUSE, SPLIT = "refuse", "split"
GAPS = (REFUSE, SPLIT)
"""What becomes of an episode of which the items do not hold all rows."""


class StoredEpisodes:
    """The episodes of a snapshot.

    Args:
      snapshot: of a table.
      index: of its items, which are windows.
      runs: of their rows.
      paths: of the items' columns, in their order.
      layout: how rows become steps.
      gaps: one of `GAPS`: such an episode is a bad one, or each run of rows is an episode.
    """

    def __init__(
        self, snapshot: Snapshot, index: Index, runs: Runs, paths: Sequence[str], layout: Layout, gaps: str = REFUSE
    ) -> None:
        self.name, self._snapshot, self._index, self._runs = snapshot.name, snapshot, index, runs
        self._paths, self._layout, self._is_split = paths, layout, gaps == SPLIT
        self._first_runs = np.arange(len(runs)) if self._is_split else np.flatnonzero(runs.is_first)
        self._sequence_of_chunk = np.searchsorted(index.sequences, snapshot.chunks.episodes)
        self._chunk_order = np.lexsort((snapshot.chunks.starts, self._sequence_of_chunk))
        self._chunk_sequences = snapshot.chunks.episodes[self._chunk_order]
        self.fingerprint = fingerprint_of(snapshot, index)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._first_runs)

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """How the table was read, and of how many episodes rows are missing."""
        runs, least = self._runs, self._least
        has_gap = runs.is_first & ~runs.is_last
        is_cut = runs.is_first & (runs.firsts != least)
        missing = (has_gap | is_cut)[runs.is_first].sum()
        if not missing:
            return self._snapshot.remarks
        became = (
            "each run of rows is an episode"
            if self._is_split
            else "they are bad episodes; gaps=split makes an episode of each run of rows"
        )
        text = (
            f"{counted(int(missing), 'episode')} of {int(runs.is_first.sum()):,} are not whole: of {int(is_cut.sum()):,} the beginning is in no item, "
            f"of {int(has_gap.sum()):,} rows in the middle; {became}"
        )
        return *self._snapshot.remarks, Remark("rows_in_no_item", text, int(missing))

    def spec(self) -> Nest:
        """The steps'."""
        return self._layout.spec()

    def metadata_spec(self) -> Nest:
        """The writer's number of the episode."""
        return {EPISODE_ID: ArraySpec((), np.dtype(np.uint64))}

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        """What `metadata_spec` says."""
        return {EPISODE_ID: self._runs.sequences[self._first_runs[number]]}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        return each(self, numbers)

    def one(self, number: int) -> Recording:
        """One episode. One with gaps has a fault, and no columns."""
        run = int(self._first_runs[number])
        name = f"{int(self._runs.sequences[run]):016x}"
        metadata = self.metadata_of(number)
        if self._is_split:
            name = f"{name}.{int(self._runs.firsts[run])}"
        elif why := self._gap(run):
            return Recording({}, metadata, name, (("", why),))
        try:
            return Recording(self._layout.steps(self._columns(run)), metadata, name)
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    @property
    def _least(self) -> int:
        """The row that an episode's first item begins at: those before it are read by its other columns."""
        return -min(0, int(self._index.shifts.min()))

    def _gap(self, run: int) -> str:
        """Why an episode is not whole, and how to go on; "" for a whole one."""
        firsts, stops = self._runs.firsts, self._runs.stops
        missing = [(self._least, int(firsts[run]))] if firsts[run] > self._least else []
        while not self._runs.is_last[run]:
            missing.append((int(stops[run]), int(firsts[run + 1])))
            run += 1
        if not missing:
            return ""
        told = ", ".join(
            f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}" for begin, end in missing[:4]
        )
        more = f" and in {len(missing) - 4:,} more gaps" if len(missing) > 4 else ""
        return (
            f'no item of table "{self._snapshot.table}" holds its rows {told}{more}: they were removed, or never stored; '
            "gaps=split makes an episode of each run of rows"
        )

    def _columns(self, run: int) -> dict[str, Array]:
        """Path -> all rows of a column that the items of a run read.

        Raises:
          BrokenEpisode: rows are in no chunk, or chunks do not go together.
        """
        first, stop = int(self._runs.firsts[run]), int(self._runs.stops[run])
        index, chunks = self._index, self._snapshot.chunks
        begins = (first + index.shifts).tolist()
        ends = np.where(index.lengths > 0, stop - 1 + index.shifts + index.lengths, stop + index.shifts).tolist()
        pieces: list[list[tuple[int, Array]]] = [[] for _ in self._paths]
        for number in self._chunks_of(run):
            start, rows = int(chunks.starts[number]), int(chunks.rows[number])
            wanted = [
                (column, tensor)
                for column, tensor in enumerate(index.tensors[number].tolist())
                if tensor >= 0 and start < ends[column] and start + rows > begins[column]
            ]
            if not wanted:
                continue
            tensors = self._tensors(number)
            for column, tensor in wanted:
                if tensor >= len(tensors) or tensors[tensor].shape[:1] != (rows,):
                    key = chunks.keys[number]
                    raise BrokenEpisode(
                        self._paths[column],
                        f"chunk {key}: has no tensor {tensor} of {rows:,} rows, of which items speak",
                    )
                pieces[column].append((start, tensors[tensor]))
        return {
            path: joined(path, pieces[column], begins[column], ends[column]) for column, path in enumerate(self._paths)
        }

    def _chunks_of(self, run: int) -> list[int]:
        """The numbers of an episode's chunks, by their rows."""
        sequence = self._runs.sequences[run]
        begin, end = (
            np.searchsorted(self._chunk_sequences, [sequence, sequence], side="left")[0],
            np.searchsorted(self._chunk_sequences, sequence, side="right"),
        )
        found: list[int] = self._chunk_order[begin:end].tolist()
        return found

    def _tensors(self, number: int) -> tuple[Array, ...]:
        try:
            return self._snapshot.chunks.tensors(number)
        except WireError as error:
            raise BrokenEpisode("", f"chunk {self._snapshot.chunks.keys[number]}: {error}") from error


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
