"""Which columns there is room for, and how wide each is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlds2reverb.cli.top.rows import COLUMNS, Column

_WIDE = 110
"""Cells of a terminal from which on numbers stand with all their digits."""

_LEAST_NAME = 8
_NAME = 20
"""Cells for names, where there is room; more for longer ones."""


@dataclass(frozen=True)
class Layout:
    """The columns of a view.

    Attributes:
      width: cells of the terminal.
      name: cells for names.
      columns: that there is room for beside them.
    """

    width: int
    name: int
    columns: Sequence[Column]

    @property
    def is_wide(self) -> bool:
        """Whether there is room for all digits."""
        return self.width >= _WIDE

    def cells(self, column: Column) -> int:
        """How many a column takes."""
        return column.wide if self.is_wide else column.width


def layout_of(width: int, longest: int) -> Layout:
    """The layout for a terminal of so many cells, of whose names the longest takes so many."""
    kept = list(COLUMNS)
    while kept and _left(width, kept) < _LEAST_NAME:
        kept.remove(max(kept, key=lambda column: column.rank))
    return Layout(width, max(0, min(_left(width, kept), max(_NAME, longest + 3))), tuple(kept))


def _left(width: int, columns: Sequence[Column]) -> int:
    """Cells that these columns leave."""
    whole = Layout(width, 0, columns)
    return width - sum(whole.cells(column) for column in columns)
