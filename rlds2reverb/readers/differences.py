"""Where two columns differ."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array


def differing(one: Array, other: Array) -> Array:
    """[T] in which rows two columns [T, ...] differ; nan is like nan, and columns of other shapes differ in all rows."""
    if one.shape != other.shape:
        return np.ones(len(one), bool)
    unequal = np.asarray(one != other, bool)
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        unequal &= ~(np.isnan(one) & np.isnan(other))
    return np.asarray(unequal.any(axis=tuple(range(1, one.ndim))))
