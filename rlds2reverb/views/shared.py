"""Several cuts of one episode -> the same cuts on shared rows, so that what they have in common is stored once.

Cuts are laid side by side by their `origin`, the row of the episode's first step. Two columns are one when they have the same
dtype and shape and, to the byte, the same values in all rows that both have; their names do not matter. Pairs of a `two_step`
view and stacks of a `frame_stack:frames=2` view, of an episode with observations o0 o1 o2::

    two_step       o0 o1 o2        origin 0
    frame_stack    o0 o0 o1 o2     origin 1
    shared rows    o0 o0 o1 o2     origin 1; the anchors of the pairs move by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds2reverb.cuts import Cut, Field
from rlds2reverb.episode import Array, byte_view, place_of
from rlds2reverb.views.steps import zeros_like


def groups(cuts: Sequence[Cut]) -> list[list[int]]:
    """Which cuts share rows, by their numbers.

    A stream's cut goes alone when it carries more rows of earlier episodes than this one has: beside it, every other column
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
    rows = {name: column.padded(total) for name, column in merged.columns.items()}
    return [_moved(cut, rows, renamed, before - cut.origin) for cut, renamed in zip(cuts, names)]


class _Merged:
    """The shared columns so far, by name, and where to look for one that is the same."""

    def __init__(self, cuts: Sequence[Cut], before: int) -> None:
        self.columns: dict[str, _Column] = {}
        self._before = before
        self._same_memory: dict[tuple[object, ...], str] = {}
        self._alike: dict[tuple[object, ...], list[str]] = {}
        start = max(before - cut.origin for cut in cuts)
        stop = min(before - cut.origin + cut.row_count for cut in cuts)
        self._looked_at = (start + stop) // 2 if start < stop else None  # a row that all columns have

    def take_in(self, cut: Cut) -> dict[str, str]:
        """Path in the cut -> name of the shared column that holds its values."""
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
        name = next((known for known in alike if self.columns[known].takes(column)), None)
        if name is None:
            name = path if path not in self.columns else f"{path} ({len(self.columns)})"
            self.columns[name] = column
            alike.append(name)
        self._same_memory[memory] = name
        return name


@dataclass
class _Column:
    """A shared column: `values` stand in rows [start, stop); the rows around them are not known."""

    start: int
    values: Array

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    def takes(self, other: _Column) -> bool:
        """Joins the other column to this one, if what both have is the same."""
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

    def padded(self, total: int) -> Array:
        """[total, ...]."""
        if len(self.values) == total:
            return self.values
        head, tail = zeros_like(self.values, self.start), zeros_like(self.values, total - self.stop)
        return np.concatenate((head, self.values, tail))

    def row_bytes(self, row: int) -> bytes:
        """What one row holds, to the byte."""
        found = self._between(row, row + 1)
        return repr(found.tolist()).encode() if found.dtype.kind in "OSU" else found.tobytes()

    def _between(self, start: int, stop: int) -> Array:
        return self.values[start - self.start : stop - self.start]


def _equal(one: Array, other: Array) -> bool:
    """Whether two columns of as many rows hold the same, to the byte."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object or one.dtype.kind in "SU":
        return bool(np.array_equal(one, other))
    return _same_bytes(one, other)


def _same_bytes(one: Array, other: Array) -> bool:
    return bool(np.array_equal(byte_view(np.ascontiguousarray(one)), byte_view(np.ascontiguousarray(other))))


def _moved(cut: Cut, rows: Mapping[str, Array], names: Mapping[str, str], by: int) -> Cut:
    """The cut on shared rows, `by` rows later. Anchors that fields share stay shared: the encoder writes their slices once."""
    anchors: list[Array] = []
    places = {path: place_of(field.anchors, anchors) for path, field in cut.fields.items() if field.anchors is not None}
    moved = [own + by for own in anchors]
    fields = {
        path: Field(names[field.column], field.windows, moved[places[path]] if path in places else None)
        for path, field in cut.fields.items()
    }
    return replace(cut, rows=rows, fields=fields, anchors=cut.anchors + by, origin=cut.origin + by)
