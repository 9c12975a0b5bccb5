"""Index arithmetic for values of unequal length that lie one after the other."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array


def starts_of(counts: Array) -> Array:
    """[n] counts -> [n] where each begins."""
    starts: Array = np.cumsum(counts) - counts
    return starts


def is_even(values: Array) -> bool:
    """Whether all are the same; there must be one."""
    return bool((values == values[0]).all())


def spread(starts: Array, counts: Array) -> Array:
    """[n] starts and counts -> [sum of counts] int64: start, start + 1, ... of each, one after the other."""
    if len(counts) and is_even(counts):
        alike: Array = starts if counts[0] == 1 else np.add.outer(starts, np.arange(counts[0])).ravel()
        return alike
    out: Array = np.repeat(starts - starts_of(counts), counts) + np.arange(counts.sum())
    return out
