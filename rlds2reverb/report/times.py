"""A value by time step: means and spreads over spans of steps that grow as episodes get longer. One pass, bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.report.moments import Moments

SPANS = 256
"""Most spans of steps."""


class ByTime:
    """Means and spreads of a value by time step.

    Attributes:
      width: steps of a span, a power of 2; span s holds steps s * width and the width - 1 that follow.
      moments: of each span.
    """

    def __init__(self) -> None:
        self.width = 1
        self.moments = Moments(SPANS)

    def add(self, steps: Array, values: Array) -> None:
        """Takes in [n] finite values, each at its time step."""
        if len(steps):
            self._reach(int(steps.max()))
            self.moments.add_grouped(steps // self.width, values)

    def add_times(self, other: ByTime) -> None:
        """Takes in what another counted, which then is as wide as this one."""
        self.widen(other.width)
        other.widen(self.width)
        self.moments.add_moments(other.moments)

    def _reach(self, step: int) -> None:
        while step >= self.width * SPANS:
            self.widen(self.width * 2)

    def widen(self, width: int) -> None:
        """Joins spans until they are `width` wide."""
        while self.width < width:
            self.moments.in_pairs()
            self.width *= 2


def reaching(lengths: Sequence[int], steps: Array) -> Array:
    """[n] how many of some episodes have each of these time steps, [n]."""
    ordered = np.sort(np.asarray(lengths, np.int64))
    return len(ordered) - np.searchsorted(ordered, steps, side="right")


def time_steps(longest: int) -> Array:
    """Time steps up to the first that no episode has, at most `SPANS`, evenly spaced."""
    return np.unique(np.linspace(0, longest, SPANS).astype(np.int64))
