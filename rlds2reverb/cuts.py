"""Cuts, the algebra of views: rows, anchors, windows.

A view says three things about an episode. Which *rows* to store: columns as they are, derived ones, padding rows. Which
*anchors* (row numbers) produce an item. And for every *field* of an item, which *windows* of which column it holds, relative to
the anchor. Windows become slices of stored chunks, so overlapping items and fields share rows, and nothing is stored twice.

Two examples on an episode of 4 rows, the 2-step view, and a transition whose two observations share one column::

    rows      r0 r1 r2 r3                        observation o0 o1 o2 o3
    anchors   0  1  2                            0  1  2
    fields    every column [0, 2)                observation [0, 1) squeezed, next [1, 2) of observation squeezed
    items     (r0 r1) (r1 r2) (r2 r3)            (o0, o1) (o1, o2) (o2, o3)

A field may have anchors of its own, one per item, where "relative to the anchor" is not enough: an n-step target near the
end of the episode, the goal that an episode reached later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlds2reverb.episode import Array, column_bytes
from rlds2reverb.errors import ViewError


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


@dataclass(frozen=True, eq=False)
class Field:
    """What one column of an item holds.

    Attributes:
      column: path of the stored column that it reads; several fields may read one.
      windows: their rows, joined in this order.
      anchors: [n] int64, the row that the windows are relative to, one per item; None for the item's own anchor.

    Raises:
      ViewError: no window, or a squeezed one among several.
    """

    column: str
    windows: tuple[Window, ...]
    anchors: Array | None = None

    def __post_init__(self) -> None:
        if not self.windows:
            raise ViewError(f'column "{self.column}": a field needs at least one window')
        if len(self.windows) > 1 and any(window.squeeze for window in self.windows):
            raise ViewError(f'column "{self.column}": {len(self.windows)} windows cannot be squeezed to one row')

    @property
    def squeeze(self) -> bool:
        """Whether the leading axis is dropped."""
        return self.windows[0].squeeze


@dataclass(frozen=True, eq=False)
class Cut:
    """What a view made of one episode.

    Attributes:
      rows: column path -> array [R, ...]; what is stored, once.
      fields: field path -> what it holds, in the order of the table's signature.
      anchors: [n] int64 row numbers, one per item, in the order in which items are stored.
      priorities: [n] float64.
      origin: row number of the episode's first step: how many rows the view put before it.
    """

    rows: Mapping[str, Array]
    fields: Mapping[str, Field]
    anchors: Array
    priorities: Array
    origin: int = 0

    @staticmethod
    def of_columns(
        rows: Mapping[str, Array], windows: Sequence[Window], anchors: Array, priorities: Array, origin: int = 0
    ) -> Cut:
        """Every column is a field of its own, with one window."""
        fields = {path: Field(path, (window,)) for path, window in zip(rows, windows, strict=True)}
        return Cut(rows, fields, anchors, priorities, origin)

    def in_order(self, fields: Sequence[str]) -> Cut:
        """The same cut with its fields in the table's order, and the columns in that of their first use.

        Raises:
          ViewError: the cut's fields are not these.
        """
        if set(fields) != set(self.fields):
            missing, extra = sorted(set(fields) - set(self.fields)), sorted(set(self.fields) - set(fields))
            raise ViewError(f"columns differ from the dataset's spec: missing {missing}, not in the spec {extra}")
        ordered = {path: self.fields[path] for path in fields}
        used = dict.fromkeys(field.column for field in ordered.values())
        return replace(self, rows={path: self.rows[path] for path in used}, fields=ordered)

    def field_rows(self, path: str) -> Array:
        """The column that a field reads."""
        return self.rows[self.fields[path].column]

    @property
    def steps(self) -> Array:
        """[n] int64 the episode's step that an item is anchored at; negative where a stream's item begins in an earlier episode."""
        return self.anchors - self.origin

    @property
    def row_count(self) -> int:
        """R, the rows to store."""
        return len(next(iter(self.rows.values()))) if self.rows else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns, the mean where there is text."""
        return sum(map(column_bytes, self.rows.values())) // max(1, self.row_count)

    @property
    def text_bytes(self) -> int:
        """Those of them that are text."""
        texts = (column for column in self.rows.values() if column.dtype == object)
        return sum(map(column_bytes, texts)) // max(1, self.row_count)
