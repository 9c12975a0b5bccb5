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

`share` puts cuts of one episode on shared rows, so that what they have in common is stored once. They are laid side by side by
their `origin`, the row of the episode's first step. Two columns are one when they have the same dtype and shape and, to the byte,
the same values in all rows that both have; their names do not matter. Pairs of a `two_step` view and stacks of a
`frame_stack:frames=2` view, of an episode with observations o0 o1 o2::

    two_step       o0 o1 o2        origin 0
    frame_stack    o0 o0 o1 o2     origin 1
    shared rows    o0 o0 o1 o2     origin 1; the anchors of the pairs move by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from rlds2reverb.episode import Array, byte_view, column_bytes, place_of
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
        return Cut(rows, _fields_of_columns(tuple(rows), tuple(windows)), anchors, priorities, origin)

    def in_order(self, fields: Sequence[str]) -> Cut:
        """The same cut with its fields in the table's order, and the columns in that of their first use.

        Raises:
          ViewError: the cut's fields are not these.
        """
        if self.fields.keys() != set(fields):
            missing, extra = sorted(set(fields) - set(self.fields)), sorted(set(self.fields) - set(fields))
            raise ViewError(f"columns differ from the dataset's spec: missing {missing}, not in the spec {extra}")
        ordered = {path: self.fields[path] for path in fields}
        rows = {field.column: self.rows[field.column] for field in ordered.values()}
        return Cut(rows, ordered, self.anchors, self.priorities, self.origin)

    def field_rows(self, path: str) -> Array:
        """The column that a field reads."""
        return self.rows[self.fields[path].column]

    @property
    def steps(self) -> Array:
        """[n] int64 the episode's step at which each item is anchored; negative where a stream's item begins in an earlier episode."""
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
        """Bytes of text in a row, on average."""
        texts = (column for column in self.rows.values() if column.dtype == object)
        return sum(map(column_bytes, texts)) // max(1, self.row_count)


@lru_cache(16)  # few: of thousands of columns each takes megabytes, and some views have other windows for every length
def _fields_of_columns(paths: tuple[str, ...], windows: tuple[Window, ...]) -> Mapping[str, Field]:
    """Cached: all episodes of a dataset share these fields."""
    return MappingProxyType({path: Field(path, (window,)) for path, window in zip(paths, windows, strict=True)})


def zeros_like(column: Array, rows: int) -> Array:
    """[rows, ...] zeros, or empty text."""
    shape = (rows, *column.shape[1:])
    return np.full(shape, b"", object) if column.dtype == object else np.zeros(shape, column.dtype)


def groups(cuts: Sequence[Cut]) -> list[list[int]]:
    """Which cuts share rows, by their numbers.

    A stream's cut stays alone when it carries more rows of earlier episodes than this one has: beside it, every other column
    would need as many rows before its first that nothing reads.
    """
    own_rows = max((cut.row_count - cut.origin for cut in cuts), default=0)
    together = [number for number, cut in enumerate(cuts) if cut.origin <= own_rows]
    alone = [[number] for number, cut in enumerate(cuts) if cut.origin > own_rows]
    return [together, *alone] if together else alone


def share(cuts: Sequence[Cut]) -> list[Cut]:
    """The same cuts, all with one `rows` mapping; items and their order are unchanged.

    Rows that one column has and another lacks are zeros where nothing reads them.
    """
    if len(cuts) < 2:
        return list(cuts)
    before = max(cut.origin for cut in cuts)
    total = before + max(cut.row_count - cut.origin for cut in cuts)
    merged = _Merged(cuts, before)
    names = [merged.take_in(cut) for cut in cuts]
    rows = {name: column.pad(total) for name, column in merged.columns.items()}
    return [_move_cut(cut, rows, renamed, before - cut.origin) for cut, renamed in zip(cuts, names)]


def can_be_joined(episodes: Sequence[Sequence[Cut]]) -> bool:
    """Whether `join` takes these cuts: those of one view have the same fields, and their rows one dtype and shape."""
    first = episodes[0]
    return all(len(cuts) == len(first) and all(map(_is_like, cuts, first)) for cuts in episodes[1:])


def _is_like(cut: Cut, other: Cut) -> bool:
    if cut.fields is not other.fields and _kinds(cut) != _kinds(other):  # cuts of one view mostly share their fields
        return False
    pairs = zip(cut.rows.values(), other.rows.values())
    return [*cut.rows] == [*other.rows] and all(a.dtype == b.dtype and a.shape[1:] == b.shape[1:] for a, b in pairs)


def _kinds(cut: Cut) -> list[object]:
    return [(path, field.column, field.windows, field.anchors is None) for path, field in cut.fields.items()]


def join(episodes: Sequence[Sequence[Cut]], starts: Array) -> list[Cut]:
    """Cuts of episodes, which share rows within each episode, as the same number of cuts with the rows and items of all episodes.

    Rows follow each other, episode by episode, and so do items. `steps` of a joined cut has no meaning.

    Args:
      starts: [episodes] numbers that anchors count the first row of each episode as; there may be gaps between the episodes.
    """
    if len(episodes) == 1:
        return list(episodes[0])
    rows = {path: np.concatenate([cuts[0].rows[path] for cuts in episodes]) for path in episodes[0][0].rows}
    return [_join_cuts(own, rows, starts) for own in zip(*episodes)]


def _join_cuts(cuts: Sequence[Cut], rows: Mapping[str, Array], starts: Array) -> Cut:
    """Anchors that fields share stay one array, as in `_move_cut`."""
    first = cuts[0]
    offsets = np.repeat(starts, [len(cut.anchors) for cut in cuts])
    own_anchors: list[Array] = []
    joined_anchors: list[Array] = []
    fields = dict(first.fields)
    for path, field in first.fields.items():
        if field.anchors is not None:
            place = place_of(field.anchors, own_anchors)
            if place == len(joined_anchors):
                joined_anchors.append(np.concatenate([cut.fields[path].anchors for cut in cuts]) + offsets)
            fields[path] = replace(field, anchors=joined_anchors[place])
    anchors = np.concatenate([cut.anchors for cut in cuts]) + offsets
    return Cut(rows, fields, anchors, np.concatenate([cut.priorities for cut in cuts]))


class _Merged:
    """The shared columns so far, by name."""

    def __init__(self, cuts: Sequence[Cut], before: int) -> None:
        self.columns: dict[str, _Column] = {}
        self._before = before
        self._same_memory: dict[tuple[object, ...], str] = {}
        self._alike: dict[tuple[object, ...], list[str]] = {}
        start = max(before - cut.origin for cut in cuts)
        stop = min(before - cut.origin + cut.row_count for cut in cuts)
        self._looked_at = (start + stop) // 2 if start < stop else None  # a row that all columns have

    def take_in(self, cut: Cut) -> dict[str, str]:
        """Path in the cut -> name of the shared column with its values."""
        start = self._before - cut.origin
        return {path: self._place(path, _Column(start, values)) for path, values in cut.rows.items()}

    def _place(self, path: str, column: _Column) -> str:
        values = column.values
        shape = (values.dtype.str, values.dtype.name, values.shape[1:])
        memory = (*shape, len(values), column.start, values.__array_interface__["data"][0], values.strides)
        if memory in self._same_memory:
            return self._same_memory[memory]
        look = (*shape, None if self._looked_at is None else column.row_bytes(self._looked_at))
        alike = self._alike.setdefault(look, [])
        name = next((name_before for name_before in alike if self.columns[name_before].takes(column)), None)
        if name is None:
            name = path if path not in self.columns else f"{path} ({len(self.columns)})"
            self.columns[name] = column
            alike.append(name)
        self._same_memory[memory] = name
        return name


@dataclass
class _Column:
    """A shared column: `values` stand in rows [start, stop); the rows around them are unknown."""

    start: int
    values: Array

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    def takes(self, other: _Column) -> bool:
        """Joins the other column to this one, if both have the same values in their common rows."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        if start >= stop or not _equal(self._between(start, stop), other._between(start, stop)):
            return False
        parts = [self.values]
        if other.start < self.start:
            parts.insert(0, other._between(other.start, self.start))
        if other.stop > self.stop:
            parts.append(other._between(self.stop, other.stop))
        if len(parts) > 1:
            self.start, self.values = min(self.start, other.start), np.concatenate(parts)
        return True

    def pad(self, total: int) -> Array:
        if len(self.values) == total:
            return self.values
        head, tail = zeros_like(self.values, self.start), zeros_like(self.values, total - self.stop)
        return np.concatenate((head, self.values, tail))

    def row_bytes(self, row: int) -> bytes:
        values = self._between(row, row + 1)
        return repr(values.tolist()).encode() if values.dtype.kind in "OSU" else values.tobytes()

    def _between(self, start: int, stop: int) -> Array:
        return self.values[start - self.start : stop - self.start]


def _equal(rows: Array, other_rows: Array) -> bool:
    if rows.dtype != other_rows.dtype or rows.shape != other_rows.shape:
        return False
    if rows.dtype.kind not in "OSU":  # by their bytes: NaN equals NaN, and -0.0 is not 0.0
        rows, other_rows = byte_view(np.ascontiguousarray(rows)), byte_view(np.ascontiguousarray(other_rows))
    return bool(np.array_equal(rows, other_rows))


def _move_cut(cut: Cut, rows: Mapping[str, Array], names: Mapping[str, str], by: int) -> Cut:
    """The cut on shared rows, `by` rows later. Anchors that fields share stay one array: the encoder writes their slices once."""
    anchors: list[Array] = []
    places = {path: place_of(field.anchors, anchors) for path, field in cut.fields.items() if field.anchors is not None}
    moved = [own + by for own in anchors]
    fields = {
        path: Field(names[field.column], field.windows, moved[places[path]] if path in places else None)
        for path, field in cut.fields.items()
    }
    return replace(cut, rows=rows, fields=fields, anchors=cut.anchors + by, origin=cut.origin + by)
