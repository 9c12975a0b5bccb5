"""What the items of a table read, and what a layout makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlds2reverb.episodes import DISCOUNT, Array, columns_under, is_under
from rlds2reverb.specs import ArraySpec, Nest

Columns = Mapping[str, Array]
Leaves = Mapping[str, ArraySpec]

FLAG = ArraySpec((), np.dtype(bool))


@dataclass(frozen=True)
class Reads:
    """What the items of a table read.

    Attributes:
      leaves: path -> spec of one row, in the order of the items' columns.
      shifts, lengths: of each column, as in `index.Index`.
    """

    leaves: Leaves
    shifts: Sequence[int]
    lengths: Sequence[int]

    def shift(self, path: str) -> int:
        """Rows between the first of an item's first column and the first of this one."""
        return self.shifts[list(self.leaves).index(path)]

    def offsets(self, names: Sequence[str]) -> set[tuple[int, int]]:
        """The distinct shifts and lengths of the columns under some names."""
        return {
            (shift, length)
            for path, shift, length in zip(self.leaves, self.shifts, self.lengths)
            if any(is_under(path, name) for name in names)
        }


class Layout(Protocol):
    """How the rows of items become steps.

    Attributes:
      tells_ends: whether what was recorded tells of every last step that it is one.
    """

    @property
    def tells_ends(self) -> bool:
        """See there."""

    def spec(self) -> Nest:
        """Of the steps."""

    def steps(self, columns: Columns, begins: bool, ends: bool) -> dict[str, Array]:
        """The steps of one run of rows. A step is the last one only where that was recorded.

        Args:
          columns: path -> all rows that the run's items read of a column.
          begins, ends: whether no rows of the episode were before these, and behind them; for flags that were not recorded.

        Raises:
          BrokenEpisode: they make no one episode.
        """


def are_zero(columns: Columns) -> Array:
    """[T] bool: every discount of a row is 0."""
    discounts = [column for column in columns_under(columns, DISCOUNT).values() if column.dtype != object]
    zero: Array = np.logical_and.reduce([(column == 0).reshape(len(column), -1).all(axis=1) for column in discounts])
    return zero
