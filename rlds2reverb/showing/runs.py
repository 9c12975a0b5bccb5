"""Texts and flags over steps, told as runs of steps that have the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.image_headers import image_size
from rlds2reverb.wording import shortened, visible

_MOST_RUNS = 6
_MOST_CHARACTERS = 400
_MOST_VALUES = 4
"""Of a row with several texts."""


def text_lines(column: Array) -> tuple[str, ...]:
    """[T, ...] texts as lines: one for each run of equal rows; a single one without its steps when all rows are equal.

    >>> text_lines(np.array([b"reach", b"reach", b"grip"], object))
    ('0 to 1: "reach"', '2: "grip"')
    """
    rows = [_row(row) for row in column]
    runs = list(_runs(rows))
    if len(runs) == 1:
        return (_told(rows[0]),)
    lines = [f"{_steps(start, stop)}: {_told(rows[start])}" for start, stop in runs[:_MOST_RUNS]]
    more = len(runs) - len(lines)
    return (*lines, f"and {more:,} more texts") if more > 0 else tuple(lines)


def flag_text(column: Array) -> str:
    """[T] of bool: where it is true.

    >>> flag_text(np.array([True, False, True, True])), flag_text(np.array([False])), flag_text(np.array([True]))
    ('at 0, 2 to 3', 'never', 'always')
    """
    if not column.any():
        return "never"
    if column.all():
        return "always"
    runs = [(start, stop) for start, stop in _runs(column.tolist()) if column[start]]
    told = ", ".join(_steps(start, stop) for start, stop in runs[:_MOST_RUNS])
    more = sum(stop - start for start, stop in runs[_MOST_RUNS:])
    return f"at {told}" + (f" and {more:,} more steps" if more else "")


def _runs(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of each run of equal values."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield start, at
            start = at


def _steps(start: int, stop: int) -> str:
    return f"{start:,}" if stop == start + 1 else f"{start:,} to {stop - 1:,}"


def _row(row: Any) -> tuple[bytes, ...]:
    values = row.ravel().tolist() if isinstance(row, np.ndarray) else [row]
    return tuple(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass") for value in values)


def _told(values: tuple[bytes, ...]) -> str:
    shown = ", ".join(_text(value) for value in values[:_MOST_VALUES])
    return f"{shown}, ..." if len(values) > _MOST_VALUES else shown or "no values"


def _text(value: bytes) -> str:
    if (size := image_size(value)) is not None:
        return f"image file of {size[0]} x {size[1]}"
    return f'"{shortened(visible(value[: 4 * _MOST_CHARACTERS + 4]), _MOST_CHARACTERS)}"'
