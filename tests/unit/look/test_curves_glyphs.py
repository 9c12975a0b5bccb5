"""Curves as text: every dot that is drawn is one of the curve's, read back from the characters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.look.curves import Curve, levels
from rlds2reverb.look.terminal import curve_lines

BITS = {0x01: (3, 0), 0x02: (2, 0), 0x04: (1, 0), 0x40: (0, 0), 0x08: (3, 1), 0x10: (2, 1), 0x20: (1, 1), 0x80: (0, 1)}
"""Bit of a braille character -> row from the bottom, column."""


def curve(values: list[float]) -> Curve:
    return Curve("", np.array(values, np.float64))


def dots_of(lines: list[str], width: int) -> set[tuple[int, int]]:
    """(row from the bottom, column) of every dot."""
    found = set()
    for line_number, line in enumerate(reversed(lines)):
        assert len(line) <= width
        for at, character in enumerate(line):
            for bit, (row, column) in BITS.items():
                if (ord(character) - 0x2800) & bit:
                    found.add((4 * line_number + row, 2 * at + column))
    return found


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 3))
def test_braille_dots_are_the_curve(values: list[float], width: int, height: int) -> None:
    one = curve(values)
    bottom, top = levels(one, 2 * width, 4 * height, (-5, 5))
    wanted = {(row, at) for at in range(2 * width) for row in range(bottom[at], top[at] + 1)}
    assert dots_of(curve_lines(one, width, height, (-5, 5), is_ascii=False), width) == wanted


@given(st.lists(st.floats(), min_size=1, max_size=60), st.integers(1, 20))
def test_ascii_lines_are_ascii_and_fit(values: list[float], width: int) -> None:
    lines = curve_lines(curve(values), width, 2, (-5, 5), is_ascii=True)
    assert len(lines) == 2
    assert all(len(line) <= width and set(line) <= set(' _-"|') for line in lines)


@pytest.mark.parametrize(
    ("values", "upper", "lower"),
    [([0, 1, 2, 3, 4, 5], "   _||", '_||"'), ([5, 5, 5], '""', ""), ([0], "", "_")],
)
def test_ascii_examples(values: list[float], upper: str, lower: str) -> None:
    width = 2 if values == [5, 5, 5] else len(values)
    assert curve_lines(curve(values), width, 2, (0, 5), is_ascii=True) == [upper, lower]
