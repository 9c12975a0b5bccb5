"""Episodes rebuilt from the rows that items read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import EPISODE_ID, IS_LAST, Array
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest
from rlds2reverb.stored.index import Index
from rlds2reverb.stored.reads import Layout
from rlds2reverb.stored.rows import RowReader
from rlds2reverb.stored.runs import Runs
from rlds2reverb.stored.snapshot import Snapshot
from rlds2reverb.wording import counted

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
    def remarks(self) -> tuple[Remark, ...]:
        """How the table was read, of how many episodes rows are missing, and how many of those read by now have no end."""
        return *self._snapshot.remarks, *self._of_rows(), *self._of_ends()

    def _of_ends(self) -> Iterator[Remark]:
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
        yield Remark("no_end", text, len(self._without_end))

    def _of_rows(self) -> Iterator[Remark]:
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
        yield Remark("rows_in_no_item", text, int(missing))

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
        runs = self._runs
        return self._rows.columns(int(runs.sequences[run]), int(runs.firsts[run]), int(runs.stops[run]))
