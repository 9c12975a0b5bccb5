"""Means and spreads in one pass are those of numpy over all values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.numbers.distributions import SPANS, ByTime, Moments, reaching, time_steps
from tests.support.profiles import examples

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


def test_values_that_are_not_finite_are_left_out() -> None:
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
        for one in (made, halves[number % 2]):
            one.add(np.arange(len(rewards)), np.array(rewards))
    halves[0].add_times(halves[1])
    longest = max(map(len, episodes))
    for one in (made, halves[0]):
        assert one.width == max(1, 2 ** int(np.ceil(np.log2(longest / SPANS))))
        for span in (0, (longest - 1) // one.width):
            start, stop = span * one.width, (span + 1) * one.width
            inside = [reward for rewards in episodes for reward in rewards[start:stop]]
            np.testing.assert_allclose(one.moments.means[span], np.mean(inside), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(one.moments.deviations[span], np.std(inside), rtol=1e-6, atol=1e-6)


def test_how_many_episodes_reach_a_step() -> None:
    assert time_steps(3).tolist() == [0, 1, 2, 3]
    assert reaching([1, 3, 3], time_steps(3)).tolist() == [3, 2, 2, 0]
    assert reaching([], time_steps(0)).tolist() == [0]
    assert len(time_steps(10**6)) == SPANS
