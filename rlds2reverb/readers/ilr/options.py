"""How the data is to be read, where more than one way makes sense."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.readers.alignment import REPEAT

TERMINAL, TRUNCATION = "terminal", "truncation"
DONE_MEANS = (TERMINAL, TRUNCATION)
KEEP, SPLIT, REFUSE = "keep", "split", "refuse"
GAPS = (KEEP, SPLIT, REFUSE)


@dataclass(frozen=True)
class Options:
    """What to do where the data does not tell.

    Attributes:
      done_means: whether a step that is done leads to a terminal state; il-representations does not tell that from a time limit.
      last_step: what becomes of the last of as many observations as actions; see `native`.
      gaps: what becomes of a trajectory in which the observation after a step is not the next step's: it is kept as it is, cut there, or a
        bad episode.
    """

    done_means: str = TERMINAL
    gaps: str = KEEP
    last_step: str = REPEAT
