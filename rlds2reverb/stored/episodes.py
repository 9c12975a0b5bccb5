"""A table's snapshot -> recordings: episodes rebuilt from the rows that items read, or every item as an episode.

Streams, sequences that hold several episodes, are cut into runs of rows of one episode each.

A sequence is cut before each of its first steps. Rows before the first of them are left out: what is left of an episode whose
beginning was removed, or, where `across_episodes` cut the items, rows of the episodes before that it stored once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from rlds2reverb.episode import EPISODE_ID, IS_FIRST, IS_LAST, Array, Notice, note
from rlds2reverb.errors import SourceError, WireError
from rlds2reverb.formats.lru import LRU
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.formats.rows import flags
from rlds2reverb.formats.source import columns_of
from rlds2reverb.specs import ArraySpec, Nest, nested
from rlds2reverb.stored.layouts import Layout, Reads, Trajectories, layout_of, why_no_steps
from rlds2reverb.stored.rows import Index, RowReader, Runs, Snapshot, index_of, runs_of
from rlds2reverb.text import counted
from rlds2reverb.views.trajectory import FIRST, STEP_TYPE
from rlds2reverb.wire.codec import item_values
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.schema import message_class


def episodes_in(name: str, runs: Runs, rows: RowReader) -> tuple[Runs, Notice]:
    """The runs, cut where episodes begin; reads the step types of all of them.

    Args:
      name: of the source, for messages.
      runs: of trajectories.
      rows: reads them.

    Raises:
      SourceError: step types cannot be read.
    """
    made: list[tuple[int, int, int]] = []
    left_out = 0
    for sequence, first, stop in zip(runs.sequences.tolist(), runs.firsts.tolist(), runs.stops.tolist()):
        try:
            kinds = rows.columns(sequence, first, stop, only=(STEP_TYPE,))[STEP_TYPE]
        except BrokenEpisode as broken:
            raise SourceError(f"{name}: sequence {sequence:016x}: {broken.path}: {broken.why}") from broken
        begins = (first + np.flatnonzero(kinds.reshape(len(kinds), -1)[:, :1].ravel() == FIRST)).tolist()
        left_out += (begins[0] if begins else stop) - first
        made += [(sequence, begin, end) for begin, end in zip(begins, [*begins[1:], stop])]
    sequences, firsts, stops = (np.array([one[at] for one in made], kind) for at, kind in enumerate("Qqq"))
    alone = np.ones(len(made), bool)
    text = (
        f"{counted(len(runs.sequences), 'sequence')} cut into {counted(len(made), 'episode')}; {counted(left_out, 'row')} before the "
        "first steps are left out"
    )
    return Runs(sequences, firsts, stops, alone, alone), note("streams_split", text, left_out)


# Episodes rebuilt from the rows that items read.

REFUSE, SPLIT = "refuse", "split"
GAPS = (REFUSE, SPLIT)
"""What becomes of an episode of which the items do not hold all rows."""

TRUNCATED, OPEN = "truncated", "open"
NO_ENDS = (TRUNCATED, OPEN)
"""What becomes of the last row of an episode where nothing that was recorded tells whether more were to come."""

CUT = "cut"
"""In place of one of `GAPS`: the runs were made into episodes already, see `streams`."""


@dataclass(frozen=True)
class Missing:
    """What becomes of episodes of which the items do not hold all.

    Attributes:
      gaps: one of `GAPS`: such an episode is a bad one, or each run of rows is an episode; or `CUT`.
      no_end: one of `NO_ENDS`: a last row of which nothing tells whether it is one is the last step, or is not.
    """

    gaps: str = REFUSE
    no_end: str = TRUNCATED


class StoredEpisodes(Recordings):
    """The episodes of a snapshot.

    Args:
      snapshot: of a table.
      index: of its items, which are windows.
      runs: of their rows.
      paths: of the items' columns, in their order.
      layout: how rows become steps.
      missing: what becomes of episodes that are not whole.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        index: Index,
        runs: Runs,
        paths: Sequence[str],
        layout: Layout,
        missing: Missing = Missing(),
    ) -> None:
        self.name, self._snapshot, self._index, self._runs = snapshot.name, snapshot, index, runs
        self._rows, self._layout, self._is_split = (
            RowReader(snapshot.chunks, index, paths),
            layout,
            missing.gaps != REFUSE,
        )
        self._are_cut, self._is_truncated = missing.gaps == CUT, missing.no_end == TRUNCATED
        self._without_end: set[int] = set()
        self._first_runs = np.arange(len(runs)) if self._is_split else np.flatnonzero(runs.is_first)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._first_runs)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """How the table was read, of how many episodes rows are missing, and how many of those read by now have no end."""
        return *self._snapshot.notices, *self._of_rows(), *self._of_ends()

    def _of_ends(self) -> Iterator[Notice]:
        if not self._without_end:
            return
        became = (
            "they are read as cut off at the last row that is there; no_end=open leaves it unmarked"
            if self._is_truncated
            else "their last row is not marked is_last"
        )
        text = (
            f"nothing in the items tells how {counted(len(self._without_end), 'episode')} ended: cut off, or going on in items that were "
            f"removed or never stored; {became}"
        )
        yield Notice("no_end", text, len(self._without_end))

    def _of_rows(self) -> Iterator[Notice]:
        runs, least = self._runs, self._least
        has_gap = runs.is_first & ~runs.is_last
        is_cut = runs.is_first & (runs.firsts != least)
        missing = (has_gap | is_cut)[runs.is_first].sum()
        if not missing or self._are_cut:
            return
        became = (
            "each run of rows is an episode"
            if self._is_split
            else "they are bad episodes; gaps=split makes an episode of each run of rows"
        )
        text = (
            f"{int(missing):,} of {int(runs.is_first.sum()):,} episodes are not whole, for the items hold only some of their rows: "
            f"{int(is_cut.sum()):,} lack their beginning, {int(has_gap.sum()):,} have gaps; {became}"
        )
        yield Notice("rows_in_no_item", text, int(missing))

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
            return Recording(self._steps(run), metadata, name)
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    def _steps(self, run: int) -> dict[str, Array]:
        begins, ends = bool(self._runs.firsts[run] <= self._least), not self._is_split or bool(self._runs.is_last[run])
        steps = self._layout.steps(self._columns(run), begins, ends)
        if ends and not self._layout.tells_ends and not steps[IS_LAST].any():
            self._without_end.add(run)
            steps[IS_LAST][-1:] = self._is_truncated
        return steps

    @property
    def _least(self) -> int:
        """The row at which an episode's first item begins; only its other columns read earlier rows."""
        return -min(0, int(self._index.shifts.min()))

    def _gap(self, run: int) -> str:
        """Why an episode is incomplete, and how to continue; "" if it is complete."""
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
        runs = self._runs
        return self._rows.columns(int(runs.sequences[run]), int(runs.firsts[run]), int(runs.stops[run]))


# Every item as an episode: for items whose rows make no episodes together.

_KEPT_BYTES = 64 << 20
_METADATA = {"item_key": np.uint64, "priority": np.float64, "times_sampled": np.int32}
_FLAG = ArraySpec((), np.dtype(bool))


class StoredItems(Recordings):
    """The items of a snapshot, in the order of their coming.

    Items whose columns all have equally many rows are episodes of those; of others each column is one row.

    Args:
      snapshot: of a table.
      index: of its items.
      leaves: path -> spec of an item's column as it is in the item, with its rows.
    """

    def __init__(self, snapshot: Snapshot, index: Index, leaves: dict[str, ArraySpec]) -> None:
        self.name, self._snapshot, self._leaves = snapshot.name, snapshot, leaves
        self._squeezed = index.squeezed.tolist()
        self._are_rows = not index.unlike and not (index.lengths > 0).any()
        self._order = np.lexsort((index.keys, index.inserted))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._order)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """How the table was read."""
        return self._snapshot.notices

    def spec(self) -> Nest:
        """The columns' rows, and the flags of the ends."""
        rows = {
            path: ArraySpec(leaf.shape[1:], leaf.dtype, leaf.name) if self._are_rows and not squeezed else leaf
            for (path, leaf), squeezed in zip(self._leaves.items(), self._squeezed)
        }
        return nested({**rows, **{name: _FLAG for name in (IS_FIRST, IS_LAST) if name not in rows}})

    def metadata_spec(self) -> Nest:
        """What the table knows of an item."""
        return {name: ArraySpec((), np.dtype(kind)) for name, kind in _METADATA.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The items of these numbers."""
        return each(_Reading(self), numbers)

    def item(self, number: int) -> Any:
        """One of them, as a message."""
        return self._snapshot.items.one(int(self._order[number]))

    def chunk(self, key: int) -> tuple[Array, ...]:
        """The tensors of a chunk.

        Raises:
          WireError: there is none, or it cannot be read.
        """
        number = int(self._snapshot.chunks.find(np.array([key], np.uint64))[0])
        if number < 0:
            raise WireError(f"chunk {key} is not there")
        return self._snapshot.chunks.tensors(number)

    def columns(self, values: Sequence[Array]) -> dict[str, Array]:
        """An item's values as columns of steps.

        Raises:
          BrokenEpisode: they are not as many as the table's columns, or of unequal lengths.
        """
        if len(values) != len(self._leaves):
            raise BrokenEpisode("", f"the item has {len(values)} columns, expected {len(self._leaves)}")
        made = {
            path: value if self._are_rows and not squeezed else value[None]
            for (path, value), squeezed in zip(zip(self._leaves, values), self._squeezed)
        }
        made.update(
            (name, flag) for name, flag in flags(len(next(iter(made.values()))), None).items() if name not in made
        )
        return made


class _Reading:
    """One pass: chunks decoded last are kept, for neighbours share them."""

    def __init__(self, items: StoredItems) -> None:
        self._items = items
        self._chunks = LRU[int, tuple[Array, ...]](
            _KEPT_BYTES, size=lambda tensors: sum(tensor.nbytes for tensor in tensors)
        )

    def one(self, number: int) -> Recording:
        item = self._items.item(number)
        metadata = {
            name: kind(getattr(item, name if name != "item_key" else "key")) for name, kind in _METADATA.items()
        }
        name = f"{item.key:016x}"
        try:
            return Recording(self._items.columns(self._values(item)), metadata, name)
        except (WireError, DecodeError) as error:
            return Recording({}, metadata, name, (("", str(error)),))
        except BrokenEpisode as broken:
            return Recording({}, metadata, name, ((broken.path, broken.why),))

    def _values(self, item: Any) -> tuple[Array, ...]:
        trajectory = message_class("FlatTrajectory").FromString(item.flat_trajectory)
        columns = tuple(
            ItemColumn(
                tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze
            )
            for column in trajectory.columns
        )
        keys = {piece.chunk_key for column in columns for piece in column.slices}
        chunks = {key: Chunk(key, 0, 0, 0, self._chunks.get(key, partial(self._items.chunk, key))) for key in keys}
        return item_values(Item(item.key, item.table, item.priority, columns), chunks)


# A snapshot -> the recordings that its table makes, or why it makes none.

EPISODES, ITEMS = "episodes", "items"
KINDS = (EPISODES, ITEMS)
"""What becomes an episode: the rows of an episode's items together, or each item."""

_NUMBERED = note(
    "columns_numbered",
    "the table has no signature, so its columns are called 0, 1, ...; name them with columns=A+B+..., in their order",
)
_WAY_OUT = "read each item as an episode with as=items"


def recordings_of(
    snapshot: Snapshot,
    kind: str = EPISODES,
    missing: Missing = Missing(),
    streams: str = REFUSE,
    names: Sequence[str] | None = None,
) -> StoredEpisodes | StoredItems:
    """What a snapshot's table makes.

    Args:
      snapshot: of a table.
      kind: one of `KINDS`.
      missing: see `StoredEpisodes`.
      streams: one of `GAPS`, of sequences that hold several episodes: bad episodes, or cut, see `streams`.
      names: paths of the items' columns, in their order; None for those of the signature, or their numbers without one.

    Raises:
      SourceError: the table is empty, its items cannot be read, or they make no episodes; says why, and how to go on.
    """
    index = index_of(snapshot.name, snapshot.items, snapshot.chunks)
    leaves = _leaves(snapshot, index, names)
    if snapshot.signature is None and names is None:
        snapshot = replace(snapshot, notices=(*snapshot.notices, _NUMBERED))
    if kind == ITEMS:
        return StoredItems(snapshot, index, leaves)
    where = f'{snapshot.name}: the items of table "{snapshot.table}" make no episodes'
    if why := why_no_steps(leaves) or index.unlike:
        raise SourceError(f"{where}: {why}; {_WAY_OUT}")
    layout = layout_of(Reads(_of_a_row(leaves, index), index.shifts.tolist(), index.lengths.tolist()))
    if isinstance(layout, str):
        raise SourceError(f"{where}: {layout}; {_WAY_OUT}")
    runs = runs_of(index)
    if _are_alone(index, runs):
        raise SourceError(
            f"{where}: each was written as a sequence of its own, so nothing tells their order; {_WAY_OUT}"
        )
    if streams == SPLIT:
        if not isinstance(layout, Trajectories):
            raise SourceError(
                f"{snapshot.name}: streams=split is for trajectories, whose step_type tells where episodes begin"
            )
        runs, remark = episodes_in(snapshot.name, runs, RowReader(snapshot.chunks, index, list(leaves)))
        snapshot, missing = replace(snapshot, notices=(*snapshot.notices, remark)), replace(missing, gaps=CUT)
    return StoredEpisodes(snapshot, index, runs, list(leaves), layout, missing)


def _of_a_row(leaves: Mapping[str, ArraySpec], index: Index) -> dict[str, ArraySpec]:
    """Path -> spec of one row of a column."""
    return {
        path: leaf if is_squeezed else replace(leaf, shape=leaf.shape[1:])
        for (path, leaf), is_squeezed in zip(leaves.items(), index.squeezed.tolist())
    }


def _are_alone(index: Index, runs: Runs) -> bool:
    """Whether every item is the only row of its sequence, and there are several."""
    return len(runs) == len(index.keys) > 1 and bool(((runs.stops - runs.firsts) == 1).all())


def _leaves(snapshot: Snapshot, index: Index, names: Sequence[str] | None) -> dict[str, ArraySpec]:
    """Path -> spec of an item's column, in the items' order.

    Raises:
      SourceError: they are not as many as the items' columns.
    """
    where = f'{snapshot.name}: table "{snapshot.table}"'
    if snapshot.signature is None:
        found = _seen(snapshot, index, where)
        if names is None:
            return {str(number): leaf for number, leaf in enumerate(found)}
    else:
        told: Mapping[str, ArraySpec] = columns_of(snapshot.signature, snapshot.name)
        if names is None and len(told) == index.columns:
            return _with_rows(told, index, where)
        found = _seen(snapshot, index, where) if len(told) != index.columns else list(told.values())
        if names is None:
            raise SourceError(
                f"{where}: its items have {index.columns} columns, its signature {len(told)}; name them with columns=A+B+..."
            )
    if len(names) != index.columns or len(set(names)) != len(names):
        raise SourceError(
            f"{where}: its items have {index.columns} columns; columns names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, found))


def _with_rows(told: Mapping[str, ArraySpec], index: Index, where: str) -> dict[str, ArraySpec]:
    for (path, leaf), squeezed in zip(told.items(), index.squeezed.tolist()):
        if not squeezed and not leaf.shape:
            raise SourceError(f'{where}: column "{path}" has rows in the items, and none in the signature')
    return dict(told)


def _seen(snapshot: Snapshot, index: Index, where: str) -> list[ArraySpec]:
    """The spec of each column, from a chunk that holds it.

    Raises:
      SourceError: that cannot be read.
    """
    found = []
    for column in range(index.columns):
        number = int(np.argmax(index.tensors[:, column] >= 0))
        try:
            rows = snapshot.chunks.tensors(number)[int(index.tensors[number, column])]
        except (WireError, IndexError) as error:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]}: {error}") from error
        if not rows.ndim:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]} has no rows")
        row = ArraySpec(rows.shape[1:], rows.dtype)
        found.append(row if index.squeezed[column] else row.with_leading(None))
    return found
