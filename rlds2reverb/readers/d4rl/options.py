"""How a D4RL file is to be read."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.readers.flat.cutting import EITHER


@dataclass(frozen=True)
class D4rlOptions:
    """See docs/formats/d4rl.md.

    Attributes:
      ends: which flags end an episode; of `cutting.ENDS`.
      max_episode_steps: an episode also ends after so many steps.
      last_step: `recordings.NEXT`, or of `alignment.LAST_STEPS`; None for what the file has.
      keeps_tail: whether rows after the last end are an episode.
      has_others: whether infos and other datasets of as many rows become columns.
      chunk: the number of the part to read, in a file of parts; None for the whole.
    """

    ends: str = EITHER
    max_episode_steps: int | None = None
    last_step: str | None = None
    keeps_tail: bool = True
    has_others: bool = True
    chunk: int | None = None
