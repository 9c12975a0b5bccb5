"""A table's snapshot -> recordings: episodes rebuilt from the rows that items read, or every item as an episode.

Streams, sequences that hold several episodes, are cut before each of their first steps. Rows before the first of them are left out: the
rest of an episode whose beginning was removed, or, where `across_episodes` cut the items, repeated rows of the episodes before.
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
from rlds2reverb.formats.recordings import BrokenEpisode, Recording, Recordings, read_each
from rlds2reverb.formats.rows import flags
from rlds2reverb.formats.source import columns_of
from rlds2reverb.specs import ArraySpec, Nest, nested, view_in
from rlds2reverb.stored.layouts import Reads, StepLayout, Trajectories, layout_of, why_no_steps
from rlds2reverb.stored.rows import Index, RowReader, Runs, Snapshot, index_of, runs_of
from rlds2reverb.text import counted
from rlds2reverb.views.trajectory import FIRST, STEP_TYPE
from rlds2reverb.wire.codec import item_values
from rlds2reverb.wire.messages import Chunk, Item, ItemColumn, Slice
from rlds2reverb.wire.schema import message_class


def split_streams(name: str, runs: Runs, rows: RowReader) -> tuple[Runs, Notice]:
    """Cuts runs of trajectories where episodes begin; reads all their step types.

    Raises:
      SourceError: step types cannot be read.
    """
    episodes: list[tuple[int, int, int]] = []
    left_out = 0
    for sequence, first, stop in zip(runs.sequences.tolist(), runs.firsts.tolist(), runs.stops.tolist()):
        try:
            kinds = rows.columns(sequence, first, stop, only=(STEP_TYPE,))[STEP_TYPE]
        except BrokenEpisode as broken:
            raise SourceError(f"{name}: sequence {sequence:016x}: {broken.path}: {broken.why}") from broken
        begins = (first + np.flatnonzero(kinds.reshape(len(kinds), -1)[:, :1].ravel() == FIRST)).tolist()
        left_out += (begins[0] if begins else stop) - first
        episodes += [(sequence, begin, end) for begin, end in zip(begins, [*begins[1:], stop])]
    sequences, firsts, stops = (np.array([episode[at] for episode in episodes], kind) for at, kind in enumerate("Qqq"))
    alone = np.ones(len(episodes), bool)
    text = (
        f"{counted(len(runs.sequences), 'sequence')} cut into {counted(len(episodes), 'episode')}; {counted(left_out, 'row')} before the "
        "first steps are left out"
    )
    return Runs(sequences, firsts, stops, alone, alone), note("streams_split", text, left_out)


# Episodes rebuilt from the rows that items read.

REFUSE, SPLIT = "refuse", "split"
GAPS = (REFUSE, SPLIT)
"""What becomes of an episode if some of its rows are in no item."""

TRUNCATED, OPEN = "truncated", "open"
NO_ENDS = (TRUNCATED, OPEN)
"""What becomes of the last row of an episode if it is not recorded whether more would have followed."""

CUT = "cut"
"""In place of one of `GAPS`: the runs are episodes already, see `split_streams`."""


@dataclass(frozen=True)
class Missing:
    """What becomes of incomplete episodes.

    Attributes:
      gaps: one of `GAPS`: such an episode is a bad one, or each run of rows is an episode; or `CUT`.
      no_end: one of `NO_ENDS`: a last row that is not known to be an end is the last step, or is not marked.
    """

    gaps: str = REFUSE
    no_end: str = TRUNCATED


class StoredEpisodes(Recordings):
    """The episodes of a snapshot.

    Attributes:
      index: of its items.
      runs: of rows.
      layout: how they become steps.
      are_cut: sequences of several episodes were cut, see `split_streams`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        index: Index,
        runs: Runs,
        paths: Sequence[str],
        layout: StepLayout,
        missing: Missing = Missing(),
    ) -> None:
        self.name, self._snapshot, self.index, self.runs = snapshot.name, snapshot, index, runs
        self._rows, self.layout = RowReader(snapshot.chunks, index, paths), layout
        self._is_split = missing.gaps != REFUSE
        self.are_cut, self._is_truncated = missing.gaps == CUT, missing.no_end == TRUNCATED
        self._without_end: set[int] = set()
        self._first_runs = np.arange(len(runs)) if self._is_split else np.flatnonzero(runs.is_first)

    @property
    def count(self) -> int:
        return len(self._first_runs)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """How the table was read, and the number of episodes that lack rows, or (of those read so far) an end."""
        notices, runs = [*self._snapshot.notices], self.runs
        has_gap = runs.is_first & ~runs.is_last
        is_cut = runs.is_first & (runs.firsts != self.least)
        missing = int((has_gap | is_cut)[runs.is_first].sum())
        if missing and not self.are_cut:
            became = "they are bad episodes; gaps=split makes an episode of each run of rows"
            if self._is_split:
                became = "each run of rows is an episode"
            text = (
                f"{missing:,} of {int(runs.is_first.sum()):,} episodes are not whole, for the items hold only some of their rows: "
                f"{int(is_cut.sum()):,} lack their beginning, {int(has_gap.sum()):,} have gaps; {became}"
            )
            notices.append(Notice("rows_in_no_item", text, missing))
        if count := len(self._without_end):
            became = "their last row is not marked is_last"
            if self._is_truncated:
                became = "they are read as cut off at the last row that is there; no_end=open leaves it unmarked"
            text = (
                f"it is not recorded how {counted(count, 'episode')} ended: cut off, or continued in items that were "
                f"removed or never stored; {became}"
            )
            notices.append(Notice("no_end", text, count))
        return tuple(notices)

    def length_of(self, number: int) -> int | None:
        """The rows of one, where each row that items read is a step."""
        extra = self.layout.rows_behind(view_in(self._snapshot.signature))
        if extra is None or not self._is_split:
            return None
        run = int(self._first_runs[number])
        return int(self.runs.stops[run] - self.runs.firsts[run]) + extra

    def spec(self) -> Nest:
        return self.layout.spec()

    def metadata_spec(self) -> Nest:
        return {EPISODE_ID: ArraySpec((), np.dtype(np.uint64))}

    def metadata_of(self, number: int) -> Mapping[str, Any]:
        return {EPISODE_ID: self.runs.sequences[self._first_runs[number]]}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return read_each(self.one, numbers, self.name_of, self.metadata_of)

    def one(self, number: int) -> Recording:
        """Raises `BrokenEpisode` for an episode with gaps."""
        run = int(self._first_runs[number])
        if not self._is_split and (why := self._gap(run)):
            raise BrokenEpisode("", why)
        return Recording(self._steps(run), self.metadata_of(number), self.name_of(number))

    def name_of(self, number: int) -> str:
        run = int(self._first_runs[number])
        name = f"{int(self.runs.sequences[run]):016x}"
        return f"{name}.{int(self.runs.firsts[run])}" if self._is_split else name

    def _steps(self, run: int) -> dict[str, Array]:
        runs = self.runs
        begins, ends = bool(runs.firsts[run] <= self.least), not self._is_split or bool(runs.is_last[run])
        columns = self._rows.columns(int(runs.sequences[run]), int(runs.firsts[run]), int(runs.stops[run]))
        steps = self.layout.steps(columns, begins, ends)
        if ends and not self.layout.tells_ends and not steps[IS_LAST].any():
            self._without_end.add(run)
            steps[IS_LAST][-1:] = self._is_truncated
        return steps

    def has_end(self, run: int) -> bool:
        """Whether the last item of a run says that its episode ends there; True where it cannot be read, which `one` says why."""
        first, stop = int(self.runs.firsts[run]), int(self.runs.stops[run])
        first = max(first, stop - self.index.first_length)
        try:
            steps = self.layout.steps(self._rows.columns(int(self.runs.sequences[run]), first, stop), False, True)
        except BrokenEpisode:
            return True
        return bool(steps[IS_LAST][-1:].any())

    @property
    def least(self) -> int:
        """The row at which an episode's first item begins; only its other columns read earlier rows."""
        return -min(0, int(self.index.shifts.min()))

    def _gap(self, run: int) -> str:
        """Why an episode is incomplete, and how to continue; "" if it is complete."""
        firsts, stops = self.runs.firsts, self.runs.stops
        missing = [(self.least, int(firsts[run]))] if firsts[run] > self.least else []
        while not self.runs.is_last[run]:
            missing.append((int(stops[run]), int(firsts[run + 1])))
            run += 1
        if not missing:
            return ""
        rows = ", ".join(
            f"{begin:,}" if end == begin + 1 else f"{begin:,} to {end - 1:,}" for begin, end in missing[:4]
        )
        more = f" and in {len(missing) - 4:,} more gaps" if len(missing) > 4 else ""
        return (
            f'no item of table "{self._snapshot.table}" holds its rows {rows}{more}: they were removed, or never stored; '
            "gaps=split makes an episode of each run of rows"
        )


# Every item as an episode: for items whose rows make no episodes together.

_KEPT_BYTES = 64 << 20  # of decoded chunks: neighbouring items share them, and a chunk of images is a few MB
_METADATA = {"item_key": np.uint64, "priority": np.float64, "times_sampled": np.int32}
_FLAG = ArraySpec((), np.dtype(bool))


def _cache_of_chunks() -> LRU[int, tuple[Array, ...]]:
    """For the tensors of chunks, which neighbouring items share."""
    return LRU(_KEPT_BYTES, lambda tensors: sum(tensor.nbytes for tensor in tensors))


class StoredItems(Recordings):
    """The items of a snapshot, in the order of their insertion.

    If the columns of every item are equally long, an item is an episode of these rows; otherwise each column is one row.

    Attributes:
      keys: [items] uint64, in the order in which they were read.
    """

    def __init__(self, snapshot: Snapshot, index: Index, leaves: dict[str, ArraySpec]) -> None:
        self.name, self._snapshot, self._leaves = snapshot.name, snapshot, leaves
        self._squeezed = index.squeezed.tolist()
        self._are_rows = not index.unlike and not (index.lengths > 0).any()
        self._order = np.lexsort((index.keys, index.inserted))
        self.keys = index.keys
        self._kept = _cache_of_chunks()

    def values_of(self, place: int) -> tuple[Array, ...]:
        """The columns of an item, by its place in `keys`; for one thread. Raises `WireError` if they cannot be read."""
        return self._values(self._snapshot.items.one(place), self._kept)

    @property
    def count(self) -> int:
        return len(self._order)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return self._snapshot.notices

    def spec(self) -> Nest:
        rows = {
            path: ArraySpec(leaf.shape[1:], leaf.dtype, leaf.name) if self._are_rows and not squeezed else leaf
            for (path, leaf), squeezed in zip(self._leaves.items(), self._squeezed)
        }
        return nested({**rows, **{name: _FLAG for name in (IS_FIRST, IS_LAST) if name not in rows}})

    def metadata_spec(self) -> Nest:
        return {name: ArraySpec((), np.dtype(kind)) for name, kind in _METADATA.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        cache = _cache_of_chunks()
        for number in numbers:
            item = self._snapshot.items.one(int(self._order[number]))
            fields = {name: getattr(item, "key" if name == "item_key" else name) for name in _METADATA}
            columns: dict[str, Array] = {}
            faults: tuple[tuple[str, str], ...] = ()
            try:
                columns = self._columns(self._values(item, cache))
            except (WireError, DecodeError) as error:
                faults = (("", str(error)),)
            except BrokenEpisode as broken:
                faults = ((broken.path, broken.why),)
            metadata = {name: kind(fields[name]) for name, kind in _METADATA.items()}
            yield Recording(columns, metadata, f"{item.key:016x}", faults)

    def _values(self, item: Any, cache: LRU[int, tuple[Array, ...]]) -> tuple[Array, ...]:
        trajectory = message_class("FlatTrajectory").FromString(item.flat_trajectory)
        columns = tuple(
            ItemColumn(
                tuple(Slice(s.chunk_key, s.offset, s.length, s.index) for s in column.chunk_slices), column.squeeze
            )
            for column in trajectory.columns
        )
        keys = {piece.chunk_key for column in columns for piece in column.slices}
        chunks = {key: Chunk(key, 0, 0, 0, cache.get(key, partial(self._tensors, key))) for key in keys}
        return item_values(Item(item.key, item.table, item.priority, columns), chunks)

    def _tensors(self, key: int) -> tuple[Array, ...]:
        chunks = self._snapshot.chunks
        number = int(chunks.find(np.array([key], np.uint64))[0])
        if number < 0:
            raise WireError(f"chunk {key} is not there")
        return chunks.tensors(number)

    def _columns(self, values: Sequence[Array]) -> dict[str, Array]:
        """An item's values as columns of steps."""
        if len(values) != len(self._leaves):
            raise BrokenEpisode("", f"the item has {len(values)} columns, expected {len(self._leaves)}")
        columns = {
            path: value if self._are_rows and not squeezed else value[None]
            for path, value, squeezed in zip(self._leaves, values, self._squeezed)
        }
        ends = flags(len(next(iter(columns.values()))), None)
        return {**columns, **{name: flag for name, flag in ends.items() if name not in columns}}


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
    """The episodes or items of a snapshot's table.

    Args:
      snapshot: of a table.
      kind: one of `KINDS`.
      missing: see `StoredEpisodes`.
      streams: one of `GAPS`, for sequences that hold several episodes: bad episodes, or cut, see `split_streams`.
      names: paths of the items' columns, in their order; None for the signature's paths, or numbers if there is no signature.

    Raises:
      SourceError: the table is empty, its items cannot be read, or they make no episodes; the message says why, and how to continue.
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
    rows = {
        path: leaf if is_squeezed else replace(leaf, shape=leaf.shape[1:])
        for (path, leaf), is_squeezed in zip(leaves.items(), index.squeezed.tolist())
    }
    view = view_in(snapshot.signature)
    layout = layout_of(Reads(rows, index.shifts.tolist(), index.lengths.tolist(), index.squeezed.tolist(), view))
    if isinstance(layout, str):
        raise SourceError(f"{where}: {layout}; {_WAY_OUT}")
    runs = runs_of(index)
    if len(runs) == len(index.keys) > 1 and (runs.stops - runs.firsts == 1).all():
        raise SourceError(f"{where}: each was written as a sequence of its own, so their order is unknown; {_WAY_OUT}")
    if streams == SPLIT:
        if not isinstance(layout, Trajectories):
            raise SourceError(
                f"{snapshot.name}: streams=split is for trajectories, whose step_type marks where episodes begin"
            )
        runs, notice = split_streams(snapshot.name, runs, RowReader(snapshot.chunks, index, list(leaves)))
        snapshot, missing = replace(snapshot, notices=(*snapshot.notices, notice)), replace(missing, gaps=CUT)
    return StoredEpisodes(snapshot, index, runs, list(leaves), layout, missing)


def _leaves(snapshot: Snapshot, index: Index, names: Sequence[str] | None) -> dict[str, ArraySpec]:
    """Path -> spec of an item's column, in the items' order. Raises `SourceError` if names or signature do not fit their number."""
    where = f'{snapshot.name}: table "{snapshot.table}"'
    if snapshot.signature is None:
        specs = _infer_specs(snapshot, index, where)
        if names is None:
            return {str(number): leaf for number, leaf in enumerate(specs)}
    else:
        signed: dict[str, ArraySpec] = columns_of(snapshot.signature, snapshot.name)
        if names is None and len(signed) == index.columns:
            for (path, leaf), squeezed in zip(signed.items(), index.squeezed.tolist()):
                if not squeezed and not leaf.shape:
                    raise SourceError(f'{where}: column "{path}" has rows in the items, and none in the signature')
            return signed
        specs = _infer_specs(snapshot, index, where) if len(signed) != index.columns else list(signed.values())
        if names is None:
            raise SourceError(
                f"{where}: its items have {index.columns} columns, its signature {len(signed)}; name them with columns=A+B+..."
            )
    if len(names) != index.columns or len(set(names)) != len(names):
        raise SourceError(
            f"{where}: its items have {index.columns} columns; columns names {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, specs))


def _infer_specs(snapshot: Snapshot, index: Index, where: str) -> list[ArraySpec]:
    """The spec of each column, from a chunk that holds it. Raises `SourceError` if that cannot be read."""
    specs = []
    for column in range(index.columns):
        number = int(np.argmax(index.tensors[:, column] >= 0))
        try:
            rows = snapshot.chunks.tensors(number)[int(index.tensors[number, column])]
        except (WireError, IndexError) as error:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]}: {error}") from error
        if not rows.ndim:
            raise SourceError(f"{where}: column {column}: chunk {snapshot.chunks.keys[number]} has no rows")
        row = ArraySpec(rows.shape[1:], rows.dtype)
        specs.append(row if index.squeezed[column] else row.with_leading(None))
    return specs
