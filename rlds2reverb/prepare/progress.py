"""How far a push, a conversion or an inspection is (`Progress`), and how often it says so (`Pace`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """The state of a running push, conversion or inspection.

    Attributes:
      episodes: read so far, and resumed ones.
      steps: read so far.
      episode_count: in the source, or None when unknown.
      items_confirmed, bytes: so far.
      seconds: since it began.
      waiting: why nothing moves, "" when something does.
      held_by: names of the tables whose rate limiters are the reason.
      doing: "verifying" while written files are read again, and the counts are those of that; "uploading" while they are sent to a
        bucket, when `episodes` counts files; "" otherwise.
    """

    episodes: int
    steps: int
    episode_count: int | None
    items_confirmed: int
    bytes: int
    seconds: float
    waiting: str = ""
    held_by: tuple[str, ...] = ()
    doing: str = ""

    def no_less_than(self, shown: Progress | None) -> Progress:
        """The larger count of this and of what was shown before: a lost worker's part begins again, and is counted once."""
        if shown is None:
            return self
        names = ("episodes", "steps", "items_confirmed", "bytes")
        return replace(self, **{name: max(getattr(self, name), getattr(shown, name)) for name in names})


def ignored(_: Progress) -> None:
    """The default `on_progress`."""


PACE_SECONDS = 0.25


class Pace:
    """For what is done every `PACE_SECONDS`, however often it is asked for."""

    def __init__(self) -> None:
        self._done_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether the time is over; if so, it begins again."""
        now = time.monotonic()
        if now - self._done_at <= PACE_SECONDS:
            return False
        self._done_at = now
        return True
