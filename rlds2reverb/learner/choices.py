"""Which part each sample of a mix comes from: a sequence that the seed and the weights decide, and that is found again at any place."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import ConfigError

_AT_ONCE = 1 << 20
"""Choices that are made again at a time, to come to a place."""


class Choices:
    """Draws parts, with replacement: `RandomState(seed).randint` where all weights are equal, as il-representations' InterleavedDataset; else `choice` with p.

    Args:
      seed: of the draws.
      weights: one per part.

    Raises:
      ConfigError: as `shares_of`.

    Attributes:
      made: draws so far.
      shares: [n] float64, weights that add up to 1.
    """

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        self._seed, self._random = seed, np.random.RandomState(seed)
        self.made = 0
        self.shares = shares_of(weights)
        self._are_equal = len(set(weights)) == 1

    def take(self, count: int) -> Array:
        """[count] int64 numbers of parts."""
        self.made += count
        if self._are_equal:
            return self._random.randint(len(self.shares), size=count)
        return self._random.choice(len(self.shares), size=count, p=self.shares)

    def go_to(self, made: int) -> None:
        """Goes to where so many draws were made."""
        self._random, self.made = np.random.RandomState(self._seed), 0
        while self.made < made:
            self.take(min(_AT_ONCE, made - self.made))


def shares_of(weights: Sequence[object]) -> Array:
    """[n] float64 weights that add up to 1.

    Raises:
      ConfigError: there is none, one is negative or not finite, or all are 0.
    """
    if not weights:
        raise ConfigError("mix: expected at least one part")
    for number, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 <= float(weight) < np.inf:
            raise ConfigError(f"mix: weight {weight!r} of part {number}: expected a finite number of at least 0")
    values = np.array(weights, np.float64)  # each of them a number
    if not 0 < (whole := sum(values.tolist())) < np.inf:
        raise ConfigError("mix: weights that add up to 0, or to no finite number; expected one above 0 at least")
    shares: Array = values / whole
    return shares
