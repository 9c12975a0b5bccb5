"""Windows that cross the borders of episodes: what TF-Agents' `ReverbTrajectorySequenceObserver` stores.

With length=3, the episodes a b c and d e give:

| after episode | items |
| --- | --- |
| a b c | abc |
| d e | bcd cde |

What an episode gives depends on those before it: the last length - 1 rows of the stream are carried over, and stored again with
the next episode. An episode that validation rejects is left out of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array, Episode
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import UNSAID_AT_DEFAULT, check_options, label_of
from rlds2reverb.views.extras import Extras, Wanted, extras_read
from rlds2reverb.views.steps import continued, priorities
from rlds2reverb.views.trajectory import READS, columns_with_extras, spec_with_extras, trajectory_rows, with_window


@dataclass(frozen=True)
class AcrossEpisodes:
    """Items of `length` consecutive rows of the stream, one every `stride` rows.

    Attributes:
      length: rows of an item.
      stride: rows between the starts of two items, episode borders or not.
      priority: of every item.
      extras: further columns in the items, see `views.extras`.

    Raises:
      ViewError: an option that makes no sense.
    """

    length: int = 2
    stride: int = 1
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", Extras.of("across_episodes", self.extras))
        check_options("across_episodes", self.priority, length=self.length, stride=self.stride)

    @property
    def label(self) -> str:
        """Name and options."""
        return label_of("across_episodes", self)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of `length`."""
        return with_window(spec_with_extras("across_episodes", self.extras, step_spec, metadata_spec), self.length)

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """All of a trajectory."""
        return *READS, *extras_read(self.extras, READS, step_spec)

    def cut(self, episode: Episode) -> Cut:
        """What the first episode of a stream gives."""
        return self.stream().cut(episode)[0]

    def stream(self) -> RowStream:
        """The stream before its first episode."""
        return RowStream(self)


@dataclass(frozen=True, eq=False)
class RowStream:
    """A stream as far as it has been cut, part by part; items do not depend on where the parts end.

    Attributes:
      view: which items.
      count: rows of the stream so far.
      last_rows: columns of the last `length` rows, or of all when there are fewer; {} before the first. A stream that has begun
        elsewhere needs the last length - 1 only.
    """

    view: AcrossEpisodes
    count: int = 0
    last_rows: Mapping[str, Array] = field(default_factory=dict)

    @property
    def left_over(self) -> int:
        """Rows after the last item."""
        beyond = self.count - self.view.length
        return self.count if beyond < 0 else beyond % self.view.stride

    def cut(self, episode: Episode) -> tuple[Cut, RowStream]:
        """The cut of the next episode, and the stream after it."""
        return self.cut_rows(trajectory_rows(columns_with_extras("across_episodes", self.view.extras, episode)))

    def cut_rows(self, rows: Mapping[str, Array]) -> tuple[Cut, RowStream]:
        """Windows over ready trajectory rows and the length - 1 rows before them, and the stream after them."""
        length, stride = self.view.length, self.view.stride
        before = {path: column[max(0, len(column) - (length - 1)) :] for path, column in self.last_rows.items()}
        carried = _row_count(before)
        rows = continued("across_episodes", before if carried else {}, rows)
        count = _row_count(rows)
        first = -(self.count - carried) % stride  # the stream's items start at multiples of the stride
        anchors = np.arange(first, max(first, count - length + 1), stride, dtype=np.int64)
        windows = (Window(0, length),) * len(rows)
        cut = Cut.of_columns(rows, windows, anchors, priorities(len(anchors), self.view.priority), carried)
        last_rows = {path: column[max(0, count - length) :] for path, column in rows.items()}
        return cut, RowStream(self.view, self.count + count - carried, last_rows)


def _row_count(rows: Mapping[str, Array]) -> int:
    return len(next(iter(rows.values()))) if rows else 0
