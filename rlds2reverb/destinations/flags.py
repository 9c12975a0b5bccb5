"""Flags that a format makes of an episode's length and end, where an episode may have others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds2reverb.destinations.base import Destination, Loss
from rlds2reverb.episodes import IS_TERMINAL, Array, Episode, is_under
from rlds2reverb.readers.alignment import flags

LOSSES = {
    "flags": "is_first, is_last or is_terminal of rows where the format cannot say it: it makes them of the length and the end",
}
"""Code -> what a destination that makes flags cannot hold."""


def made_flags(episode: Episode) -> dict[str, Array]:
    """The first row is_first, the last one is_last, and is_terminal where it was; is_terminal only where the episode has it."""
    terminal = episode.columns.get(IS_TERMINAL)
    return flags(len(episode), None if terminal is None else bool(terminal[-1]))


def odd_flags(destination: Destination, episode: Episode) -> tuple[str, ...]:
    """Paths of the flags that do not come back as they are written."""
    back: Mapping[str, Array] = destination.flags(episode)
    return tuple(
        path
        for path, column in back.items()
        if path in episode.columns and not np.array_equal(episode.columns[path], column)
    )


def lost_flags(odd: Sequence[str], told: Sequence[Loss]) -> Iterator[Loss]:
    """The losses of such flags, but those told already."""
    paths = [one.path for one in told if one.path is not None]
    for path in odd:
        if not any(is_under(path, one) for one in paths):
            yield Loss("flags", LOSSES["flags"], path)
