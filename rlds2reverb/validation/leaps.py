"""Whether an episode's last observation follows from the one before it, or comes from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlds2reverb.episodes import OBSERVATION, Array, Episode, columns_under

FEWEST_STEPS = 5
"""Shorter episodes do not show how far a step takes."""

_FARTHER = 1.1
"""By how much a leap must exceed the longest step before it; steps of one grid differ by rounding."""


def numeric_observations(episode: Episode) -> dict[str, Array]:
    """The observation's columns of numbers by path; {} where one has another length than the episode, or no rows."""
    columns = columns_under(episode.columns, OBSERVATION)
    numeric = {path: column for path, column in columns.items() if column.dtype.kind in "biufc"}
    return numeric if all(len(column) == len(episode) > 0 for column in numeric.values()) else {}


def leaps(observations: Mapping[str, Array]) -> bool:
    """Whether the last row lies farther from the one before it than any step before took, by some value of a column of floats.

    Values that never changed before say nothing: in a maze they may change in the last step for the first time. So do whole numbers,
    by which games and mazes count, and episodes of fewer than `FEWEST_STEPS`.

    Args:
      observations: path -> [T, ...] of one length.
    """
    return any(_leaps(column) for column in observations.values() if column.dtype.kind == "f")


def _leaps(column: Array) -> bool:
    if len(column) < FEWEST_STEPS:
        return False
    rows = column.reshape(len(column), -1)  # [T, values]
    if not _is_fractional(rows[-1]) and not _is_fractional(rows[-2]):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        longest = np.abs(np.diff(rows[:-1], axis=0)).max(axis=0, initial=0)
        last = np.abs(rows[-1] - rows[-2])
        return bool(np.any((longest > 0) & (last > _FARTHER * longest)))


def _is_fractional(row: Array) -> bool:
    finite = row[np.isfinite(row)]
    return bool(np.any(finite != np.rint(finite)))
