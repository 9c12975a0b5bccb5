"""Columns in another dtype, where no value changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.episodes import Array


def exactly(column: Array, dtype: np.dtype[Any]) -> Array | None:
    """The column in another dtype of numbers; None where a value would change, or one of the two dtypes is none of numbers.

    Args:
      column: [T, ...], whole numbers or floats; nan stays nan.
      dtype: the wanted one.
    """
    if column.dtype == dtype:
        return column
    if column.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        made = column.astype(dtype)
        back = made.astype(column.dtype)
    if not np.array_equal(back, column, equal_nan=column.dtype.kind == "f"):
        return None
    return made if _is_in_range(made, column.dtype) and _is_in_range(column, dtype) else None


def _is_in_range(column: Array, dtype: np.dtype[Any]) -> bool:
    """Whether whole numbers of this dtype reach as far; where they do not, a cast there and back may meet by chance."""
    if dtype.kind == "f":
        return True
    if column.dtype.kind == "f":
        bits = 8 * dtype.itemsize - (dtype.kind == "i")
        lowest = -(2.0**bits) if dtype.kind == "i" else 0.0
        wide = column.astype(np.float64)
        return bool(((wide >= lowest) & (wide < 2.0**bits)).all())
    if dtype.kind == "u":
        return bool((column >= 0).all())
    return column.dtype.kind == "i" or bool((column <= np.uint64(np.iinfo(dtype).max)).all())
