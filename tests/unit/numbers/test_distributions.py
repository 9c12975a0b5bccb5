"""Histograms in one pass have the counts of all values at once."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rlds2reverb.look.charts import bars
from rlds2reverb.numbers.distributions import (
    BINS,
    SPANS,
    ByTime,
    Histogram,
    Histograms,
    Moments,
    blocks_of,
    join_histograms,
    reaching,
    time_steps,
)
from tests.support.profiles import examples

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


@examples(60)
@given(
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([BINS, 1 << 13, 1 << 14]),
    st.integers(1, 5),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e37]),
    st.sampled_from([-1e5, 0.0, 3.0]),
    st.integers(0, 2**32 - 1),
)
def test_blocks_and_sorted_values_fill_the_same_bins(
    dtype: type, bins: int, dimensions: int, scale: float, offset: float, seed: int
) -> None:
    values = np.random.default_rng(seed).normal(size=(3_000, dimensions)) * scale * (1 + np.arange(dimensions)) + offset
    values[:7, 0] = 0.0, -0.0, 1e-45, -1e-45, -1e-300, offset, 1e-300
    values = values.astype(dtype)
    by_numbers, by_blocks, by_sorted = (Histograms(dimensions, bins=bins) for _ in range(3))
    for part in np.array_split(values, 3):
        by_numbers.add(part.astype(np.float64))
        by_sorted.add_sorted(list(np.sort(part, axis=0).T))
        for block in blocks_of(np.ascontiguousarray(part)):
            assert not isinstance(block, np.ndarray)
            by_blocks.add_block(block)
    for name in ("low", "high", "exponents", "firsts", "counts"):
        expected = getattr(by_numbers, name)
        assert np.array_equal(getattr(by_blocks, name), expected)
        assert np.array_equal(getattr(by_sorted, name), expected)


WHOLE = st.integers(-40, 40).map(float) | st.integers(-(2**45), 2**45).map(float)
FAR = NUMBERS | st.floats(1e-300, 1e-290) | st.floats(-1e300, 1e300)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[float], bool]:
    """Values of a column of one dataset, perhaps none; and whether its dtype has whole numbers only."""
    is_whole = draw(st.booleans())
    return draw(st.lists(WHOLE if is_whole else FAR, max_size=30)), is_whole


@examples(300)
@given(columns(), columns())
@example(([0.0], False), ([9.4e-291], False))  # zeros have no narrowest bin of their own
@example(([0.0], False), ([5.0], True))
def test_two_are_put_over_the_bins_of_all_their_values(
    first: tuple[list[float], bool], second: tuple[list[float], bool]
) -> None:
    filled = [pair for pair in (first, second) if pair[0]]
    together = [value for values, _ in filled for value in values]
    found = join_histograms([in_parts(values, 1, is_whole) for values, is_whole in (first, second)])
    for distribution, (values, _) in zip(found, (first, second)):
        assert distribution.counts.tolist() == counted_by_numpy(values, distribution)
        assert (distribution.total, len(distribution.counts)) == (len(values), len(found[0].counts))
    if filled:
        wanted = in_parts(together, 1, all(is_whole for _, is_whole in filled))
        assert {(distribution.exponent, distribution.first, len(distribution.counts)) for distribution in found} == {
            (wanted.exponent, wanted.first, len(wanted.counts))
        }


@examples(200)
@given(columns(), st.none() | st.booleans(), st.booleans())
def test_what_only_one_dataset_has_is_drawn_as_if_it_were_alone(
    column: tuple[list[float], bool], empty: bool | None, is_second: bool
) -> None:
    values, is_whole = column
    one = in_parts(values, 1, is_whole)
    other = None if empty is None else in_parts([], 1, is_whole=empty)
    both, alone = bars([other, one] if is_second else [one, other]), bars([one])
    assert (both is None) == (alone is None) == (len(set(values)) < 2)
    if both is not None and alone is not None:
        counts = both.pop("counts")
        assert counts == ([[], *alone["counts"]] if is_second else [*alone["counts"], []])
        assert both == {name: value for name, value in alone.items() if name != "counts"}


def test_whole_numbers_beside_others_stay_where_they_are() -> None:
    chart = bars([in_parts([0, 1, 2, 2], 1, is_whole=True), in_parts([0.18, 0.5, 0.85], 1)])
    assert chart is not None
    assert "values" not in chart
    width = 2.0 ** chart["exponent"]
    assert width <= 2 / 15
    starts = [[(chart["first"] + at) * width for at in np.flatnonzero(counts)] for counts in chart["counts"]]
    assert starts[0] == [0.0, 1.0, 2.0]
    assert all(start <= value < start + width for start, value in zip(starts[1], (0.18, 0.5, 0.85)))


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


# Means and spreads in one pass are those of numpy over all values.

VALUES = st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=50)


@examples(100)
@given(VALUES, st.integers(1, 6), st.floats(-1e8, 1e8))
def test_they_are_those_of_numpy(rows: list[tuple[float, float]], parts: int, offset: float) -> None:
    values = np.array(rows) + offset  # a large mean, and a spread that sums of squares would lose
    made = Moments(2)
    for part in np.array_split(values, parts):
        made.add(part)
    np.testing.assert_allclose(made.means, values.mean(axis=0), rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(made.deviations, values.std(axis=0), rtol=1e-6, atol=1e-4)
    assert made.counts.tolist() == [len(rows)] * 2


def test_values_that_are_not_finite_are_left_out_moments() -> None:
    values = np.array([[1.0, np.nan], [3.0, 5.0], [np.inf, 7.0]])
    made = Moments(2)
    made.add(values, np.isfinite(values))
    assert (made.counts.tolist(), made.means.tolist(), made.deviations.tolist()) == ([2, 2], [2, 6], [1, 1])


def test_values_too_large_to_square_are_no_error() -> None:
    made = Moments(1)
    made.add(np.array([[-1e300], [1e300]]))
    assert made.deviations.tolist() == [np.inf]


@examples(60)
@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=700), min_size=1, max_size=4))
def test_by_time_they_are_those_of_the_steps_of_a_span(episodes: list[list[float]]) -> None:
    made, halves = ByTime(), (ByTime(), ByTime())
    for number, rewards in enumerate(episodes):
        for histogram in (made, halves[number % 2]):
            histogram.add(np.arange(len(rewards)), np.array(rewards))
    halves[0].add_times(halves[1])
    longest = max(map(len, episodes))
    for histogram in (made, halves[0]):
        assert histogram.width == max(1, 2 ** int(np.ceil(np.log2(longest / SPANS))))
        for span in (0, (longest - 1) // histogram.width):
            start, stop = span * histogram.width, (span + 1) * histogram.width
            inside = [reward for rewards in episodes for reward in rewards[start:stop]]
            np.testing.assert_allclose(histogram.moments.means[span], np.mean(inside), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(histogram.moments.deviations[span], np.std(inside), rtol=1e-6, atol=1e-6)


def test_how_many_episodes_reach_a_step() -> None:
    assert time_steps(3).tolist() == [0, 1, 2, 3]
    assert reaching([1, 3, 3], time_steps(3)).tolist() == [3, 2, 2, 0]
    assert reaching([], time_steps(0)).tolist() == [0]
    assert len(time_steps(10**6)) == SPANS
