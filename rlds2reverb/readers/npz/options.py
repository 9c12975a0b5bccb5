"""How .npz files are to be read."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.readers.flat.cutting import EITHER


@dataclass(frozen=True)
class NpzOptions:
    """See docs/formats/npz.md.

    Attributes:
      ends: which flags end an episode; of `cutting.ENDS`.
      max_episode_steps: an episode also ends after so many steps.
      last_step: "next", or of `alignment.LAST_STEPS`; None for what the files have.
      keeps_tail: whether rows after the last end are an episode.
    """

    ends: str = EITHER
    max_episode_steps: int | None = None
    last_step: str | None = None
    keeps_tail: bool = True
