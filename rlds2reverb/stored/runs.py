"""The rows that items read -> runs of rows without a gap, by episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.stored.index import Index


@dataclass(frozen=True, eq=False)
class Runs:
    """[n] each. Sorted by when the first item of their episode was inserted, and by their rows within an episode.

    Attributes:
      sequences: uint64, the number that the writer gave to the episode.
      firsts, stops: int64, rows [first, stop) of the items' first column.
      is_first, is_last: of its episode's runs.
    """

    sequences: Array
    firsts: Array
    stops: Array
    is_first: Array
    is_last: Array

    def __len__(self) -> int:
        return len(self.sequences)


def runs_of(index: Index) -> Runs:
    """The runs of all items; they must be windows."""
    order = np.lexsort((index.starts, index.episodes))
    episodes, starts, stops = index.episodes[order], index.starts[order], index.stops[order]
    is_new = np.append(True, episodes[1:] != episodes[:-1])
    ends = _ends_so_far(episodes, stops)
    begins = is_new.copy()
    begins[1:] |= starts[1:] > ends[:-1]
    at = np.flatnonzero(begins)
    firsts, run_stops, run_episodes = starts[at], ends[np.append(at[1:], len(starts)) - 1], episodes[at]
    since = np.full(len(index.sequences), np.iinfo(np.int64).max)
    np.minimum.at(since, index.episodes, index.inserted)
    rank = np.lexsort((firsts, index.sequences[run_episodes], since[run_episodes]))
    run_episodes = run_episodes[rank]
    is_first = np.append(True, run_episodes[1:] != run_episodes[:-1])
    return Runs(index.sequences[run_episodes], firsts[rank], run_stops[rank], is_first, np.append(is_first[1:], True))


def _ends_so_far(episodes: Array, stops: Array) -> Array:
    """[n]: the largest stop of an episode's items up to each; `episodes` rises."""
    beyond = int(stops.max(initial=0)) + 1
    ends: Array = np.maximum.accumulate(stops + episodes * beyond) - episodes * beyond
    return ends
