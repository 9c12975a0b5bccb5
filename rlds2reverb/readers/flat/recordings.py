"""Rows and ends as recordings; who knows the keys of a format derives its own from this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import ACTION, DISCOUNT, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, Array, columns_below
from rlds2reverb.readers.alignment import MARK, NEXT, NEXT_OBSERVATION, marked, steps, with_last
from rlds2reverb.readers.flat.columns import Blocks, Rows
from rlds2reverb.readers.flat.cutting import Cuts
from rlds2reverb.readers.nests import nested, value_spec
from rlds2reverb.readers.recordings import BrokenEpisode, Recording, Recordings, each
from rlds2reverb.remarks import Remark
from rlds2reverb.specs import ArraySpec, Nest

ROWS = "rows"

_FEW_ROWS = 256
"""Of so short an episode all next observations are read with those of its neighbours; of a longer one the last only."""

Opened = Callable[[], AbstractContextManager[Mapping[str, Rows]]]
"""Opens the columns for one pass over them: path (as of RLDS; `next_observation` beside them) -> column."""


@dataclass(frozen=True)
class Description:
    """What is known of a dataset of rows.

    Attributes:
      name: for messages.
      last_step: what becomes of an episode's end: `NEXT`, or of `alignment.LAST_STEPS`; `ROWS` for rows that are RLDS' own.
      specs: path -> spec of a row.
      metadata: of every episode.
      remarks: of the data.
    """

    name: str
    last_step: str
    specs: Mapping[str, ArraySpec]
    metadata: Mapping[str, Any]
    remarks: tuple[Remark, ...]


class FlatRecordings(Recordings):
    """Episodes of a dataset of rows; messages name each by its first row and the one after its last."""

    remarks: tuple[Remark, ...] = ()

    def __init__(self, about: Description, cuts: Cuts, opened: Opened) -> None:
        self._about, self._cuts, self._opened = about, cuts, opened
        self.name, self.remarks = about.name, about.remarks

    @property
    def count(self) -> int:
        """How many episodes the ends make."""
        return len(self._cuts)

    def length_of(self, number: int) -> int:
        """Its rows, and the one that is added."""
        rows = int(self._cuts.stops[number] - self._cuts.starts[number])
        return rows + (rows > 0 and self._about.last_step not in (ROWS, MARK))

    def spec(self) -> Nest:
        """The columns', discount and the flags."""
        flag, number = ArraySpec((), np.dtype(bool)), ArraySpec((), np.dtype(np.float32))
        if self._about.last_step == ROWS:
            return nested(self._about.specs, self.name)
        kept = {path: one for path, one in self._about.specs.items() if not _is_next(path)}
        return nested({DISCOUNT: number, **kept, **dict.fromkeys(("is_first", IS_LAST, IS_TERMINAL), flag)}, self.name)

    def metadata_spec(self) -> Nest:
        """That of what is known of every episode."""
        return {key: value_spec(value) for key, value in self._about.metadata.items()}

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        """The episodes of these numbers."""
        if not numbers:
            return
        with self._opened() as columns:
            passing = _Pass(self._about, self._cuts, columns)
            yield from each(passing, numbers, passing.name_of, lambda _: self._about.metadata)


class _Pass:
    """One pass over the episodes."""

    def __init__(self, about: Description, cuts: Cuts, columns: Mapping[str, Rows]) -> None:
        self._about, self._cuts = about, cuts
        self._blocks = Blocks({path: column for path, column in columns.items() if not _is_next(path)})
        self._next = Blocks({path: column for path, column in columns.items() if _is_next(path)})

    def one(self, number: int) -> Recording:
        """One episode."""
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        if start == stop:
            raise BrokenEpisode("", f"no steps: it ends at row {stop:,}, as the one before it")
        columns = self._blocks.rows(start, stop)
        made = self._made(columns, (start, stop), bool(self._cuts.terminal[number]))
        return Recording(made, self._about.metadata, self.name_of(number))

    def name_of(self, number: int) -> str:
        """The first row and the one after the last; several episodes without rows may lie at the same place."""
        start, stop = int(self._cuts.starts[number]), int(self._cuts.stops[number])
        return f"{start}-{stop}" if start < stop else f"{start}-{stop}~{number}"

    def _made(self, columns: dict[str, Array], rows: tuple[int, int], is_terminal: bool) -> dict[str, Array]:
        if self._about.last_step == ROWS:
            return columns
        if self._about.last_step == MARK:
            return marked(columns, is_terminal)
        observation = columns_below(columns, OBSERVATION)
        last = {path: column[-1] for path, column in observation.items()}
        if self._about.last_step == NEXT:
            start, stop = rows
            after = self._next.rows(stop - 1 if stop - start > _FEW_ROWS else start, stop)
            last = {path: one[-1] for path, one in columns_below(after, NEXT_OBSERVATION).items()}
        fields = {path: column for path, column in columns.items() if path.split("/")[0] not in (OBSERVATION, ACTION)}
        reward, discount = fields.pop(REWARD, None), fields.pop(DISCOUNT, None)
        closed = {path: with_last(column, last[path]) for path, column in observation.items()}
        return steps(closed, columns_below(columns, ACTION), reward, is_terminal, fields, discount)


def _is_next(path: str) -> bool:
    return path.split("/")[0] == NEXT_OBSERVATION
