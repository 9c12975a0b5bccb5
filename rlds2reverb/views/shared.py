"""Several cuts of one episode -> the same cuts on shared rows, so that what they have in common is stored once.

Cuts are laid side by side by their `origin`, the row of the episode's first step. Two columns are one when they have the same
dtype and shape and, to the byte, the same values in all rows that both have; their names do not matter. Of an episode
with observations o0 o1 o2, pairs of a `two_step` view and stacks of a `frame_stack:frames=2` view::

    two_step       o0 o1 o2        origin 0
    frame_stack    o0 o0 o1 o2     origin 1
    shared rows    o0 o0 o1 o2     origin 1; the anchors of the pairs move by one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds2reverb.episodes import Array, byte_view
from rlds2reverb.views.base import Cut, Field
from rlds2reverb.views.steps import zeros_like


def share(cuts: Sequence[Cut]) -> list[Cut]:
    """The same cuts, all with one `rows` mapping; items and their order are unchanged.

    Rows that one column has and another lacks are zeros where nothing reads them.
    """
    if len(cuts) < 2:
        return list(cuts)
    before = max(cut.origin for cut in cuts)
    total = before + max(cut.row_count - cut.origin for cut in cuts)
    merged: list[_Column] = []
    names = [{path: _place(merged, values, before - cut.origin) for path, values in cut.rows.items()} for cut in cuts]
    rows = {str(number): column.padded(total) for number, column in enumerate(merged)}
    return [_moved(cut, rows, renamed, before - cut.origin) for cut, renamed in zip(cuts, names)]


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

    def _between(self, start: int, stop: int) -> Array:
        return self.values[start - self.start : stop - self.start]


def _place(merged: list[_Column], values: Array, start: int) -> str:
    """The name of the shared column that holds these values, a new one if there is none."""
    column = _Column(start, values)
    for number, known in enumerate(merged):
        if known.takes(column):
            return str(number)
    merged.append(column)
    return str(len(merged) - 1)


def _equal(one: Array, other: Array) -> bool:
    """Whether two columns of as many rows hold the same, to the byte."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == object or one.dtype.kind in "SU":
        return bool(np.array_equal(one, other))
    if one.__array_interface__["data"] == other.__array_interface__["data"] and one.strides == other.strides:
        return True
    return _same_bytes(one[:1], other[:1]) and _same_bytes(one, other)


def _same_bytes(one: Array, other: Array) -> bool:
    return bool(np.array_equal(byte_view(np.ascontiguousarray(one)), byte_view(np.ascontiguousarray(other))))


def _moved(cut: Cut, rows: Mapping[str, Array], names: Mapping[str, str], by: int) -> Cut:
    fields = {
        path: Field(names[field.column], field.windows, None if field.anchors is None else field.anchors + by)
        for path, field in cut.fields.items()
    }
    return replace(cut, rows=rows, fields=fields, anchors=cut.anchors + by, origin=cut.origin + by)
