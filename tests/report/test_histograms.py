"""Histograms in one pass have the counts of all values at once."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.report.histograms import BINS, Histogram, Histograms, joined
from tests.profiles import examples

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000).map(float) | st.floats(-1, 1)


def in_parts(values: list[float], parts: int, is_whole: bool = False) -> Histogram:
    made = Histograms(1, is_whole)
    for part in np.array_split(np.array(values, np.float64), parts):
        made.add(part[:, None])
    return made.histogram(0)


def counted_by_numpy(values: list[float], like: Histogram) -> list[int]:
    """The same bins over all values, by numpy; which bin a value is in by exact arithmetic."""
    bins = [floor(Fraction(value) / Fraction(2) ** like.exponent) - like.first for value in values]
    return np.bincount(np.array(bins, np.int64), minlength=len(like.counts)).tolist()


@examples(200)
@given(st.lists(NUMBERS, min_size=1, max_size=60), st.integers(1, 7))
def test_counts_are_those_of_all_values_in_the_last_bins(values: list[float], parts: int) -> None:
    found = in_parts(values, parts)
    assert found.counts.tolist() == counted_by_numpy(values, found)
    assert len(found.counts) <= BINS
    assert (found.total, found.low, found.high) == (len(values), min(values), max(values))


@examples(100)
@given(st.lists(NUMBERS, min_size=1, max_size=40), st.randoms(), st.integers(1, 5))
def test_neither_order_nor_parts_change_anything(values: list[float], random: object, parts: int) -> None:
    mixed = list(values)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = in_parts(values, 1), in_parts(mixed, parts)
    assert (one.exponent, one.first, one.counts.tolist()) == (other.exponent, other.first, other.counts.tolist())


@examples(100)
@given(st.lists(NUMBERS, max_size=30), st.lists(NUMBERS, max_size=30))
def test_histograms_of_parts_add_up(first: list[float], second: list[float]) -> None:
    one, other, both = Histograms(1), Histograms(1), Histograms(1)
    one.add(np.array(first)[:, None])
    other.add(np.array(second)[:, None])
    both.add(np.array(first + second)[:, None])
    one.add_histograms(other)
    assert np.array_equal(one.counts, both.counts)
    assert (one.exponents[0], one.firsts[0]) == (both.exponents[0], both.firsts[0]) or not first + second


@examples(100)
@given(st.lists(NUMBERS, min_size=1, max_size=30), st.lists(NUMBERS, max_size=30))
def test_two_are_put_over_the_same_bins(first: list[float], second: list[float]) -> None:
    a, b = joined(in_parts(first, 1), in_parts(second, 1))
    assert (a.exponent, a.first, len(a.counts)) == (b.exponent, b.first, len(b.counts))
    assert a.counts.tolist() == counted_by_numpy(first, a)
    assert b.counts.tolist() == counted_by_numpy(second, b)


@examples(50)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=20, max_size=60, unique=True))
def test_a_bin_is_a_fifteenth_of_the_span_at_most(values: list[float]) -> None:
    found = in_parts(values, 3)
    span = max(values) - min(values)
    assert 2.0**found.exponent <= max(span / 15, 2.0**-20)


def test_whole_numbers_have_a_bin_each_while_they_fit() -> None:
    found = in_parts([3, 3, 5, 4], 2, is_whole=True)
    assert (found.exponent, found.first, found.counts.tolist()) == (0, 3, [2, 1, 1])


def test_values_that_are_not_finite_are_left_out() -> None:
    values = np.array([[1.0, np.nan], [np.inf, 2.0]])
    made = Histograms(2)
    made.add(values, np.isfinite(values))
    assert [made.histogram(at).total for at in range(2)] == [1, 1]
    assert (made.histogram(0).low, made.histogram(1).high) == (1.0, 2.0)


def test_values_at_the_ends_of_float64() -> None:
    values = [-1.7e308, 1.7e308, 0.0, 5e-324]
    found = in_parts(values, 2)
    assert found.total == 4
    assert found.counts[0] == found.counts[-1] == 1
