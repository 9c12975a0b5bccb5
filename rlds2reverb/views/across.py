"""Windows that cross the borders of episodes: what TF-Agents' `ReverbTrajectorySequenceObserver` stores.

Of the episodes a b c and d e, with length=3:

| after episode | items |
| --- | --- |
| a b c | abc |
| d e | bcd cde |

The view looks at a stream, so what an episode gives depends on those before it: the last length - 1 rows are carried over, and stored
again with the next episode. An episode that validation rejects is left out of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array, Episode
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import Cut, Cutter, Window, check_options
from rlds2reverb.views.steps import priorities
from rlds2reverb.views.trajectory import trajectory_rows, trajectory_spec, with_window


@dataclass(frozen=True)
class AcrossEpisodes:
    """Items of `length` consecutive rows of the stream, one every `stride` rows.

    Attributes:
      length: rows of an item.
      stride: rows between the starts of two items, episode borders or not.
      priority: of every item.

    Raises:
      ViewError: an option that makes no sense.
    """

    length: int = 2
    stride: int = 1
    priority: float = 1.0

    def __post_init__(self) -> None:
        check_options("across_episodes", self.priority, length=self.length, stride=self.stride)

    @property
    def label(self) -> str:
        """Name and options."""
        return f"across_episodes:length={self.length},stride={self.stride}"

    def signature(self, step_spec: Nest) -> Nest:
        """A Trajectory of specs with a leading axis of `length`."""
        return with_window(trajectory_spec(step_spec), self.length)

    def cut(self, episode: Episode) -> Cut:
        """What the first episode of a stream gives."""
        return self.stream()(episode)

    def stream(self) -> Cutter:
        """Cuts the episodes of one stream, in their order."""
        return _Stream(self)


class _Stream:
    """The rows carried over, and how many rows of the stream came before them."""

    def __init__(self, view: AcrossEpisodes) -> None:
        self._view = view
        self._carried: dict[str, Array] = {}
        self._before = 0

    def __call__(self, episode: Episode) -> Cut:
        rows = trajectory_rows(episode.steps)
        carried = len(next(iter(self._carried.values()), ()))
        if carried:
            rows = {path: np.concatenate((self._carried[path], column)) for path, column in rows.items()}
        length, stride, count = self._view.length, self._view.stride, len(next(iter(rows.values())))
        first = -self._before % stride  # the stream's items start at multiples of the stride
        anchors = np.arange(first, max(first, count - length + 1), stride, dtype=np.int64)
        kept = min(count, length - 1)
        self._carried = {path: column[count - kept :] for path, column in rows.items()}
        self._before += count - kept
        windows = (Window(0, length),) * len(rows)
        return Cut.of_columns(rows, windows, anchors, priorities(len(anchors), self._view.priority), carried)
