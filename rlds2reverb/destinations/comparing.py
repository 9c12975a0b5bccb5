"""What was written and what reading gives, bit by bit."""

from __future__ import annotations

from rlds2reverb.destinations.base import ALL_ROWS, LAST_ROW
from rlds2reverb.episodes import Array


def are_equal(one: Array, other: Array | None) -> bool:
    """Whether dtype, shape and every bit are the same, so that -0.0 is not 0.0, and a NaN is itself."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "O":
        return bool(one.tolist() == other.tolist())
    return bool(one.tobytes() == other.tobytes())


def rows_that_differ(column: Array, given: Array) -> str | None:
    """What `Loss.rows` says of a column [T, ...], in place of which reading gives another; None where they are equal."""
    if are_equal(column, given):
        return None
    return LAST_ROW if are_equal(column[:-1], given[:-1]) else ALL_ROWS
