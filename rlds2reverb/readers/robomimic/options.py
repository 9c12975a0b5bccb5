"""How a robomimic file is to be read."""

from __future__ import annotations

from dataclasses import dataclass

BEFORE, AFTER, AUTO = "before", "after", "auto"
ALIGNMENTS = (AUTO, BEFORE, AFTER)
NOTHING, TERMINAL, SUCCESS = "nothing", "terminal", "reward"
DONE_MEANINGS = (NOTHING, TERMINAL, SUCCESS)


@dataclass(frozen=True)
class RobomimicOptions:
    """See docs/formats/robomimic.md.

    Attributes:
      filter: name of a mask of the file; None for all demonstrations.
      align: whether observations were recorded before the action of their row or after it; of `ALIGNMENTS`.
      last_step: "next", or of `alignment.LAST_STEPS`; None for what the file has.
      done_means: when the last state is a terminal one; of `DONE_MEANINGS`.
      flips: whether images are turned upside down.
      has_others: whether datasets beside observations, actions and rewards become columns.
    """

    filter: str | None = None
    align: str = AUTO
    last_step: str | None = None
    done_means: str = NOTHING
    flips: bool = False
    has_others: bool = True
