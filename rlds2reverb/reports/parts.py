"""What a worker found in its part of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rlds2reverb.remarks import Remark
from rlds2reverb.reports.ends import Ends
from rlds2reverb.reports.ranges import Range
from rlds2reverb.reports.watching import Watcher
from rlds2reverb.validation import Problem
from rlds2reverb.validation.endings import Ending
from rlds2reverb.validation.holdings import Holdings


class Read(NamedTuple):
    """What was found in one episode.

    Attributes:
      id, recorded_id, title: of the episode, see `episodes.Episode`.
      steps: of it.
      returns: its return; [] where it has none.
      problems: what is wrong with it by itself.
      ending: how it ends; None where that cannot tell.
      items: of each table; [] when it is bad.
      refused: why a push would reject it all the same.
    """

    id: str
    recorded_id: str | None
    title: str
    steps: int
    returns: list[float]
    problems: list[Problem]
    ending: Ending | None
    items: list[int]
    refused: list[Problem]


@dataclass
class PartRead:
    """What was found in a part of a source.

    Attributes:
      episodes: one after the other.
      ranges: path -> range of the values.
      ends: how the episodes end.
      holdings: what columns held.
      remarks: of the source.
      watcher: what else looked at them; None when nothing did.
    """

    episodes: list[Read]
    ranges: dict[str, Range]
    ends: Ends
    holdings: Holdings
    remarks: tuple[Remark, ...] = ()
    watcher: Watcher | None = None

    @property
    def steps(self) -> int:
        """Of all its episodes."""
        return sum(one.steps for one in self.episodes)
