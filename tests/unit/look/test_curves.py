"""Curves keep the lowest and the highest value of every bin of steps, whatever the width."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.look.curves import Curve, levels, range_text, span_of, ticks
from rlds2reverb.look.terminal import curve_lines

NAN, INF = float("nan"), float("inf")
VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50)


def curve(values: list[float]) -> Curve:
    return Curve("", np.array(values, np.float64))


def slow_bins(values: list[float], count: int) -> list[tuple[float, float]]:
    """One bin after the other, one step after the other."""
    found = []
    for number in range(count):
        start = number * len(values) // count
        stop = max(start + 1, (number + 1) * len(values) // count)
        finite = [value for value in values[start:stop] if math.isfinite(value)]
        found.append((min(finite), max(finite)) if finite else (NAN, NAN))
    return found


@given(VALUES, st.integers(1, 70))
def test_bins_are_those_of_a_slow_reference(values: list[float], count: int) -> None:
    low, high = curve(values).bins(count)
    assert low.shape == high.shape == (count,)
    wanted = np.array(slow_bins(values, count)).T
    np.testing.assert_array_equal([low, high], wanted)


@given(VALUES.filter(lambda values: any(map(math.isfinite, values))), st.integers(1, 70))
def test_no_finite_value_is_lost_and_none_is_added(values: list[float], count: int) -> None:
    low, high = curve(values).bins(count)
    there = {value for value in values if math.isfinite(value)}
    drawn = np.concatenate([low, high])
    assert set(drawn[~np.isnan(drawn)].tolist()) <= there
    if count <= len(values):  # every step is in a bin
        assert float(np.nanmin(low)) == min(there)
        assert float(np.nanmax(high)) == max(there)


@pytest.mark.parametrize(
    ("values", "count", "bins"),
    [
        ([1, 2, 3, 4], 2, [(1, 2), (3, 4)]),
        ([1, 2, 3, 4, 5], 2, [(1, 2), (3, 5)]),
        ([1, 2], 4, [(1, 1), (1, 1), (2, 2), (2, 2)]),
        ([1, NAN, 3, 4], 2, [(1, 1), (3, 4)]),
        ([INF, NAN, 3, 4], 2, [(NAN, NAN), (3, 4)]),
    ],
)
def test_the_table_of_the_docstring(values: list[float], count: int, bins: list[tuple[float, float]]) -> None:
    low, high = curve(values).bins(count)
    np.testing.assert_array_equal(list(zip(low, high)), bins)


@given(VALUES.filter(lambda values: any(map(math.isfinite, values))), st.integers(1, 40), st.integers(1, 12))
def test_a_drawing_stays_in_its_box_and_touches_both_edges(values: list[float], count: int, height: int) -> None:
    one = curve(values)
    span = one.span
    assert span is not None
    bottom, top = levels(one, count, height, span)
    drawn = bottom >= 0
    assert ((bottom >= 0) == (top >= 0)).all()
    assert (bottom <= top).all()
    assert top.max() < height
    if len(values) >= count and span[1] / 2 - span[0] / 2 > 0:
        assert bottom[drawn].min() == 0
        assert top.max() == height - 1


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50), st.integers(2, 40))
def test_neighbouring_columns_touch(values: list[float], count: int) -> None:
    one = curve(values)
    bottom, top = levels(one, count, 9, one.span or (0, 1))
    assert (bottom[1:] <= top[:-1]).all()
    assert (top[1:] >= bottom[:-1]).all()


def test_a_constant_runs_in_the_middle() -> None:
    bottom, top = levels(curve([7.0, 7.0]), 4, 9, (7.0, 7.0))
    assert bottom.tolist() == top.tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("low", [-1.7e308, -5e-324])
def test_values_at_the_edge_of_floats_do_not_overflow(low: float) -> None:
    bottom, top = levels(curve([low, -low]), 2, 5, (low, -low))
    assert top.max() < 5
    assert (bottom >= 0).all()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, 2], "1 to 2"),
        ([3, 3], "3"),
        ([NAN], "no finite value"),
        ([], "no finite value"),
        ([1, INF, NAN], "1, 2 not finite"),
    ],
)
def test_the_range_is_told(values: list[float], told: str) -> None:
    assert range_text([curve(values)]) == told


def test_several_curves_have_one_span() -> None:
    assert span_of([curve([1, 2]), curve([]), curve([-3, NAN])]) == (-3, 2)
    assert span_of([]) is None


@given(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False)))
def test_ticks_of_any_span_are_few_and_inside(ends: tuple[float, float]) -> None:
    low, high = sorted(ends)
    made = ticks(low, high, 4)
    room = (high / 2 - low / 2) * 1e-9
    assert len(made) <= 4
    assert all(low - room <= value <= high + room for value in made)


@pytest.mark.parametrize("steps", [1, 2, 12, 60, 5_000, 1_234_567])
def test_ticks_of_steps_are_whole(steps: int) -> None:
    made = ticks(0, steps - 1, 10, is_whole=True)
    assert made[0] == 0
    assert 2 <= len(made) + (steps == 1) <= 10
    assert all(value.is_integer() for value in made)


# Curves as text: every dot that is drawn is one of the curve's, read back from the characters.

BITS = {0x01: (3, 0), 0x02: (2, 0), 0x04: (1, 0), 0x40: (0, 0), 0x08: (3, 1), 0x10: (2, 1), 0x20: (1, 1), 0x80: (0, 1)}
"""Bit of a braille character -> row from the bottom, column."""


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
