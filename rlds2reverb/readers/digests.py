"""What a dataset's fingerprint is made of: values, and which of many are looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2reverb.episodes import byte_view


def content(value: Any) -> Any:
    """The bytes of numbers or texts, for a digest; the same from one run to the next."""
    if isinstance(value, bytes):
        return value
    values = np.asarray(value)
    return repr(values.tolist()).encode() if values.dtype == object else byte_view(np.ascontiguousarray(values))


def sampled(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, spread evenly, with the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist())) if count else []


def some_of(start: int, stop: int, most: int = 4) -> list[int]:
    """Rows at the beginning, in the middle and at the end of these, up to so many of each.

    >>> some_of(10, 30, 2)
    [10, 11, 19, 20, 28, 29]
    """
    firsts = (start, (start + stop - most) // 2, stop - most)
    return sorted({row for first in firsts for row in range(max(first, start), min(first + most, stop))})
