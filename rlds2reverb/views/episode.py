"""One item per episode, boundary row included: what TF-Agents' `ReverbAddEpisodeObserver` stores.

| episode | items |
| --- | --- |
| a b c d | abcd |
| a | a |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.cuts import Cut, Window
from rlds2reverb.episode import Array, Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.specs import Nest
from rlds2reverb.views.base import CHANGES_NO_ITEM, UNSAID_AT_DEFAULT, check_flags, check_options, label_of
from rlds2reverb.views.extras import Extras, Wanted, extras_read
from rlds2reverb.views.trajectory import READS, columns_with_extras, spec_with_extras, trajectory_rows, with_window


@dataclass(frozen=True)
class WholeEpisode:
    """Items of whole episodes.

    Attributes:
      max_length: most rows of an episode, or None for any number.
      skip_longer: a longer episode gives no item; otherwise it is an error.
      priority: of every item.
      extras: further columns in the items, see `views.extras`.

    Raises:
      ViewError: max_length no whole number of at least 1, or a priority that is no finite number of at least 0.
    """

    max_length: int | None = field(default=None, metadata=CHANGES_NO_ITEM)
    skip_longer: bool = field(default=False, metadata=CHANGES_NO_ITEM)
    priority: float = 1.0
    extras: Wanted = field(default=(), metadata=UNSAID_AT_DEFAULT)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extras", Extras.of("episode", self.extras))
        counts = {} if self.max_length is None else {"max_length": self.max_length}
        check_options("episode", self.priority, **counts)
        check_flags("episode", skip_longer=self.skip_longer)

    @property
    def label(self) -> str:
        """Name and extras: the other options decide whether an episode is stored, not what is stored."""
        return label_of("episode", self)

    def signature(self, step_spec: Nest, metadata_spec: Nest = ()) -> Nest:
        """A Trajectory of specs with a leading axis of any size."""
        return with_window(spec_with_extras("episode", self.extras, step_spec, metadata_spec), None)

    def reads(self, step_spec: Nest) -> tuple[str, ...]:
        """All of a trajectory."""
        return *READS, *extras_read(self.extras, READS, step_spec)

    def item_count(self, rows: int | None) -> int | None:
        """One, unless the episode is too long."""
        return int(rows is None or self.max_length is None or rows <= self.max_length)

    def cut(self, episode: Episode) -> Cut:
        """One window over all rows.

        Raises:
          ViewError: the episode is longer than `max_length` and `skip_longer` is off.
        """
        return self.cut_rows(trajectory_rows(columns_with_extras("episode", self.extras, episode)))

    def cut_rows(self, rows: dict[str, Array]) -> Cut:
        """One window over ready trajectory rows."""
        count = len(next(iter(rows.values())))
        too_long = self.max_length is not None and count > self.max_length
        if too_long and not self.skip_longer:
            raise ViewError(
                f"episode of {count} steps: longer than max_length {self.max_length}; raise it or set skip_longer"
            )
        anchors = np.zeros(0 if too_long else 1, np.int64)
        windows = (Window(0, count),) * len(rows)
        return Cut.of_columns(rows, windows, anchors, np.full(len(anchors), self.priority, np.float64))
