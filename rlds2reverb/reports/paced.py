"""How far one pass over a source is, told a few times per second."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlds2reverb.episodes import Episode
from rlds2reverb.push.report import Progress

TELL_SECONDS = 0.25

OnProgress = Callable[[Progress], object]


def unheard(_: Progress) -> None:
    """For whom nobody listens to."""


class Paced:
    """Counts episodes and steps, and tells.

    Args:
      on_progress: told at most every quarter of a second; nothing is sent, so it has no bytes.
      episode_count: that will be read, None where nobody knows.
      limit: episodes that are read at most.
    """

    def __init__(self, on_progress: OnProgress, episode_count: int | None, limit: int | None) -> None:
        self._on_progress, self._episodes, self._steps = on_progress, 0, 0
        self._count = episode_count if limit is None or episode_count is None else min(episode_count, limit)
        self._began = self._told_at = time.monotonic()

    def count(self, episode: Episode) -> None:
        """An episode was read."""
        self._episodes += 1
        self._steps += len(episode)
        now = time.monotonic()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._on_progress(Progress(self._episodes, self._steps, self._count, 0, 0, now - self._began))
