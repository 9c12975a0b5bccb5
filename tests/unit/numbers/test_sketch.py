"""Whatever the dtype, and however values come: counts, means and spreads are those of all values at once."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Array
from rlds2reverb.numbers import distributions
from rlds2reverb.numbers.sketch import Numbers
from rlds2reverb.specs import column_spec
from tests.support.profiles import examples

DTYPES = ["f2", "f4", "f8", ">f4", "i1", "u1", "i2", "u2", "i4", "i8", "u8", "?"]
SCALES = [1e-3, 1.0, 30.0, 1e4]
OFFSETS = [0.0, 5.0, -3e4, 1e7]


def sketched(column: Array, lengths: list[int], waiting: int = 1 << 10) -> Numbers:
    """What is told of a column that comes in episodes, by small blocks."""
    made, start = Numbers(column_spec(column), 32, waiting), 0
    with mock.patch.multiple(distributions, _ROWS=3, _WIDTH=64, _FOLDS=4):
        for length in [*lengths, len(column)]:
            made.add(column[start : start + length])
            start += length
        made.flush()
    return made


def check(made: Numbers, column: Array) -> None:
    """Each dimension is as exact arithmetic has it."""
    values = column.reshape(len(column), -1).astype(np.float64)
    for at in range(values.shape[1]):
        finite = values[np.isfinite(values[:, at]), at]
        found = made.histograms.histogram(at)
        width = Fraction(2) ** found.exponent
        bins = np.array([floor(Fraction(value) / width) - found.first for value in finite], np.int64)
        assert found.counts.tolist() == np.bincount(bins, minlength=len(found.counts)).tolist()
        assert made.not_finite[at] == len(values) - len(finite)
        if len(finite):
            assert (found.low, found.high) == (finite.min(), finite.max())
            size = float(np.abs(finite).max())
            np.testing.assert_allclose(made.moments.means[at], finite.mean(), rtol=1e-9, atol=1e-12 * size)
            np.testing.assert_allclose(made.moments.deviations[at], finite.std(), rtol=1e-6, atol=1e-7 * size)


@examples(120)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from([(), (1,), (3,), (2, 2)]),
    st.sampled_from(SCALES),
    st.sampled_from(OFFSETS),
    st.lists(st.integers(0, 300), max_size=5),
    st.integers(0, 3),
)
def test_they_are_those_of_exact_arithmetic(
    dtype: str, shape: tuple[int, ...], scale: float, offset: float, lengths: list[int], bad: int
) -> None:
    rng = np.random.default_rng(len(lengths) + bad)
    values = rng.normal(size=(sum(lengths) + 40, *shape)) * scale + offset
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            column = values.astype(dtype)
        column[rng.integers(0, len(column), bad)] = np.nan
    elif dtype == "?":
        column = values > offset
    else:
        span = np.iinfo(dtype)
        column = np.clip(values, max(span.min, -(2.0**40)), min(span.max, 2.0**40)).astype(dtype)
    check(sketched(column, lengths), column)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "ends",
    [
        (-1e-45, 1000.0),
        (-5e-324, 1e300),
        (-3e38, 3e38),
        (1e-44, 3e-44),
        (1e6, 1e6 + 1),
        (0.0, 0.0),
        (-0.0, 7.0),
        (-1e-45, 5e-45),
    ],
)
def test_they_are_exact_at_the_ends_of_floats(ends: tuple[float, float], dtype: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        column = np.tile(np.array(ends), 500).astype(dtype)
    column = column[np.isfinite(column)]
    made = sketched(column, [100, 300])
    found = made.histograms.histogram(0)
    width = Fraction(2) ** found.exponent
    wanted = {floor(Fraction(float(value)) / width) for value in np.unique(column)}
    assert {found.first + int(at) for at in np.flatnonzero(found.counts)} == wanted
    assert found.total == len(column)


@pytest.mark.parametrize("waiting", [1, 100, 1 << 20])
def test_how_much_waits_changes_no_count(waiting: int) -> None:
    column = np.random.default_rng(0).normal(size=(900, 5)).astype(np.float32)
    one, other = sketched(column, []), sketched(column, [7, 500, 20], waiting)
    assert np.array_equal(one.histograms.counts, other.histograms.counts)
    np.testing.assert_allclose(one.moments.deviations, other.moments.deviations, rtol=1e-10)


def test_a_spread_far_smaller_than_the_mean_is_kept() -> None:
    column = 1e9 + np.random.default_rng(0).normal(size=(4_000, 2))
    made = sketched(column, [1_000, 1_000])
    np.testing.assert_allclose(made.moments.deviations, column.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("shape", [(40,), (10, 8), (120, 160)])
def test_what_waits_is_no_part_of_a_larger_array(shape: tuple[int, ...]) -> None:
    column = np.ones((5, *shape), np.float32)
    made = Numbers(column_spec(column), 32, 1 << 20)
    made.add(column)
    assert all(waiting.base is None or waiting.base.nbytes == waiting.nbytes for waiting in made._waiting)
