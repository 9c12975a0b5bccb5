"""Windows of consecutive trajectory rows: TF-Agents' 2-step items and every other fixed length.

Source: `ReverbAddTrajectoryObserver`, tf-agents 0.19. For an episode a b c d (d is the last row), P a padding row:

| options | items |
| --- | --- |
| length 2 | ab bc cd |
| length 2, stride 2 | ab cd |
| length 3, stride 2 | abc |
| length 3, stride 2, pad_end | abc |
| length 6 | none |
| length 6, pad_end | abcdPP |
| length 3, pad_end, tile_end | abc bcd cdP dPP |

>>> import numpy as np
>>> from rlds2reverb.views.sequence import window_anchors
>>> window_anchors(rows=4, length=2, stride=1)
array([0, 1, 2])
>>> window_anchors(rows=4, length=3, stride=2)
array([0])
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import UNSAID_AT_DEFAULT, View, check_flags, check_made_up, check_options, label_of
from rlds2reverb.views.extras import Extras, Wanted, extras_read
from rlds2reverb.views.trajectory import (
    READS,
    columns_with_extras,
    padding_rows,
    spec_with_extras,
    trajectory_rows,
    with_window,
)


@dataclass(frozen=True)
class SequenceView:
    """Items of `length` consecutive rows, one every `stride` rows.

    Attributes:
      length: rows of an item.
      stride: rows between the starts of two items.
      pad_end: an episode shorter than `length` is padded to one item; without it, it gives none.
      tile_end: pad by length - 1 rows, so that items start at every row; needs `pad_end`.
      priority: of every item.
      extras: further columns in the items, see `views.extras`.

    Raises:
      ViewError: length or stride no whole number of at least 1, a priority that is no finite number of at least 0, or
        `tile_end` without `pad_end`.
    """

    length: int = 2
    stride: int = 1
    pad_end: bool = False
    tile_end: bool = False
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", Extras.of("sequence", self.extras))
        check_options("sequence", self.priority, length=self.length, stride=self.stride)
        check_flags("sequence", pad_end=self.pad_end, tile_end=self.tile_end)
        if self.tile_end and not self.pad_end:
            raise ViewError("sequence: tile_end needs pad_end")

    @property
    def label(self) -> str:
        """Name and options."""
        return label_of("sequence", self)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of `length`."""
        return with_window(spec_with_extras("sequence", self.extras, step_spec, metadata_spec), self.length)

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """All of a trajectory."""
        return *READS, *extras_read(self.extras, READS, step_spec)

    def item_count(self, rows: int | None) -> int | None:
        """Whole windows of the rows, with those that are padded."""
        if rows is None:
            return None
        return len(range(0, max(0, rows + self._padding(rows) - self.length + 1), self.stride)) if rows else 0

    def cut(self, episode: Episode) -> Cut:
        """Windows over the episode's rows, its last step followed by a padding first step."""
        return self.cut_rows(trajectory_rows(columns_with_extras("sequence", self.extras, episode)))

    def cut_rows(self, rows: dict[str, Array]) -> Cut:
        """Windows over ready trajectory rows that end in a boundary row."""
        count = len(next(iter(rows.values())))
        padding = self._padding(count)
        if padding:
            check_made_up(padding)
            filler = padding_rows(rows, padding)
            rows = {path: np.concatenate((column, filler[path])) for path, column in rows.items()}
        anchors = window_anchors(count + padding, self.length, self.stride)
        windows = (Window(0, self.length),) * len(rows)
        return Cut.of_columns(rows, windows, anchors, np.full(len(anchors), self.priority, np.float64))

    def _padding(self, rows: int) -> int:
        if self.tile_end:
            return self.length - 1
        return max(0, self.length - rows) if self.pad_end else 0


def two_step(priority: float = 1.0, extras: Wanted = ()) -> SequenceView:
    """TF-Agents' default: overlapping pairs of rows (a b, b c, c d)."""
    check_options("two_step", priority)
    return SequenceView(length=2, priority=priority, extras=Extras.of("two_step", extras))


def name_of(view: View) -> str:
    """What messages call a view: its label, but the default view is "two_step", as people write it.

    The label itself is part of the item keys, so the default view keeps the one it has had.
    """
    return "two_step" if view.label == two_step().label else view.label


def window_anchors(rows: int, length: int, stride: int) -> Array:
    """[n] int64 starts of every whole window; n = 1 + (rows - length) // stride, or 0."""
    return np.arange(0, max(0, rows - length + 1), stride, dtype=np.int64)
