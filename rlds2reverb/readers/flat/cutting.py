"""Where episodes end among rows: by flags, by a number of steps, or by numbers that say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episodes import Array

EITHER, TERMINALS, TIMEOUTS = "either", "terminals", "timeouts"
ENDS = (EITHER, TERMINALS, TIMEOUTS)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Episodes as rows.

    Attributes:
      starts, stops: [episodes], the first row of each, and the one after its last.
      terminal: [episodes], whether the last step of each is a terminal one.
      tail_rows: rows after the last end, which make an episode of their own at the end or were left out.
    """

    starts: Array
    stops: Array
    terminal: Array
    tail_rows: int = 0

    def __len__(self) -> int:
        return len(self.stops)


def cut(
    terminals: Array, timeouts: Array | None, ends: str = EITHER, most_steps: int | None = None, keeps_tail: bool = True
) -> Cuts:
    """The episodes that flags make.

    Args:
      terminals: [rows] bool.
      timeouts: [rows] bool; None where there are none.
      ends: which of the two end episodes; of `ENDS`.
      most_steps: an episode also ends after so many.
      keeps_tail: whether rows after the last end are an episode.

    >>> made = cut(np.array([0, 1, 0, 0, 0], bool), np.array([0, 0, 0, 1, 0], bool))
    >>> made.stops.tolist(), made.terminal.tolist(), made.tail_rows
    ([2, 4, 5], [True, False, False], 1)
    """
    flags = np.zeros(len(terminals), bool)
    if ends != TIMEOUTS:
        flags |= terminals
    if timeouts is not None and ends != TERMINALS:
        flags |= timeouts
    stops = np.flatnonzero(flags) + 1
    if most_steps is not None:
        stops = _with_limit(stops, len(flags), most_steps)
    return at_stops(stops, terminals, keeps_tail)


def at_stops(stops: Array, terminals: Array, keeps_tail: bool = True) -> Cuts:
    """The episodes that end before these rows, ascending; those of no rows are episodes, too."""
    rows = len(terminals)
    tail = rows - int(stops[-1]) if len(stops) else rows
    if tail and keeps_tail:
        stops = np.append(stops, rows)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)[: len(stops)]
    last = np.maximum(stops - 1, 0)
    terminal = terminals[last] & (stops > starts) if rows else np.zeros(len(stops), bool)
    return Cuts(starts, stops, terminal, tail)


def _with_limit(stops: Array, rows: int, most: int) -> Array:
    """Further ends after every `most` rows of an episode; none in the rest after the last end that is shorter."""
    bounds = np.concatenate([[0], stops, [rows]])
    counts = np.maximum(0, (np.diff(bounds) - 1) // most)
    counts[-1] = (bounds[-1] - bounds[-2]) // most
    firsts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(firsts, counts) + 1
    return np.union1d(stops, np.repeat(bounds[:-1], counts) + within * most)
