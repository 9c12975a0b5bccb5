"""Random numbers that are a function of a seed and of what they are for, so that the order in which samples come does not matter.

Source: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), with one round per number.
"""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BITS = 53
"""Of a float64's fraction."""


def uniforms(seed: int, *numbers: Array) -> Array:
    """[n] float64 in [0, 1), one for each row of `numbers`.

    Args:
      seed: any whole number.
      numbers: each [n], whole numbers of any size that 64 bits hold.
    """
    state = np.full(len(numbers[0]), seed % (1 << 64), np.uint64)
    for number in numbers:
        state = _mixed((state ^ number.astype(np.uint64)) + _GOLDEN)
    found: Array = (state >> np.uint64(64 - _BITS)).astype(np.float64) / (1 << _BITS)
    return found


def _mixed(state: Array) -> Array:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    mixed: Array = state ^ (state >> np.uint64(31))
    return mixed


def picks(seed: int, keys: Array, times: Array, counts: Array, among: Array) -> list[Array]:
    """For every item so many numbers below `among`, drawn one by one, each as likely as any other.

    Args:
      seed: any whole number.
      keys, times: [B], what tells this sample of an item from all others.
      counts: [B], how many.
      among: [B], at least 1 where the count is.

    Returns:
      B arrays [count] int64.
    """
    return np.split(picks_in_a_row(seed, keys, times, counts, among), np.cumsum(counts)[:-1])


def picks_in_a_row(seed: int, keys: Array, times: Array, counts: Array, among: Array) -> Array:
    """[sum of counts] int64: what `picks` gives, item after item."""
    ends = np.cumsum(counts)
    ranks = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    drawn = uniforms(seed, np.repeat(keys, counts), np.repeat(times, counts), ranks)
    chosen: Array = (drawn * np.repeat(among, counts)).astype(np.int64)
    return chosen
