"""The algebra of views: rows, anchors, windows.

A view says for an episode which *rows* to store (columns as they are, derived ones, padding rows), which
*anchors* (row numbers) produce an item, and for every column a *window* of rows relative to the anchor.
Windows become slices of stored chunks, so overlapping items share rows and nothing is stored twice.

An example, the 2-step view of an episode of 4 rows::

    rows      r0 r1 r2 r3
    anchors   0  1  2
    window    [0, 2) for every column
    items     (r0 r1) (r1 r2) (r2 r3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import Nest


@dataclass(frozen=True)
class Window:
    """Which rows of one column an item holds, relative to its anchor.

    Attributes:
      start, stop: rows [anchor + start, anchor + stop); stop > start.
      squeeze: drop the leading axis; needs a window of one row.
    """

    start: int
    stop: int
    squeeze: bool = False

    def __post_init__(self) -> None:
        if self.stop <= self.start:
            raise ViewError(f"window [{self.start}, {self.stop}): expected at least one row")
        if self.squeeze and self.stop != self.start + 1:
            raise ViewError(f"window [{self.start}, {self.stop}): only a window of one row can be squeezed")


@dataclass(frozen=True)
class Cut:
    """What a view made of one episode.

    Attributes:
      rows: column path -> array [R, ...], in the order of the table's signature.
      windows: one window a column, in the same order.
      anchors: [n] int64 row numbers, one an item, in the order in which items are stored.
      priorities: [n] float64.
    """

    rows: Mapping[str, Array]
    windows: tuple[Window, ...]
    anchors: Array
    priorities: Array

    def in_order(self, columns: Sequence[str]) -> Cut:
        """The same cut with its columns in the table's order.

        Raises:
          ViewError: the cut's columns are not these.
        """
        if set(columns) != set(self.rows):
            missing, extra = sorted(set(columns) - set(self.rows)), sorted(set(self.rows) - set(columns))
            raise ViewError(f"columns differ from the dataset's spec: missing {missing}, not in the spec {extra}")
        windows = dict(zip(self.rows, self.windows))
        rows = {path: self.rows[path] for path in columns}
        return replace(self, rows=rows, windows=tuple(windows[path] for path in columns))

    @property
    def row_count(self) -> int:
        """R, the rows to store."""
        return len(next(iter(self.rows.values()))) if self.rows else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns; of text, a pointer's worth a value."""
        return sum(column.nbytes for column in self.rows.values()) // max(1, self.row_count)


def check_options(view: str, priority: float, **counts: int) -> None:
    """Refuses options that make no sense.

    Raises:
      ViewError: a count is no whole number of at least 1, or the priority no finite number of at least 0.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise ViewError(f"{view}: {name} {count}: expected a whole number of at least 1")
    if isinstance(priority, bool) or not isinstance(priority, (int, float, np.number)) or not 0 <= priority < np.inf:
        raise ViewError(f"{view}: priority {priority}: expected a finite number of at least 0")


class View(Protocol):
    """A way to cut episodes into items. Views hold options only, no state."""

    @property
    def label(self) -> str:
        """Name and options; part of the item keys, so equal labels must mean equal items."""

    def signature(self, step_spec: Nest) -> Nest:
        """The table signature of this view's items for steps of `step_spec`.

        Raises:
          ViewError: the spec lacks a field that the view needs.
        """

    def cut(self, episode: Episode) -> Cut:
        """Rows, anchors and windows for one valid episode; no anchors when it is too short.

        Raises:
          ViewError: the episode cannot be cut (too long, a column is missing).
        """
