"""Priorities by return: their order is that of the returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.episode import Episode
from rlds2reverb.errors import ViewError
from rlds2reverb.views.prioritized import Prioritized, by_return, return_of
from rlds2reverb.views.trajectory import WholeEpisode
from tests.support import strategies

RETURNS = st.floats(-1e9, 1e9)


def episode(total: float) -> Episode:
    """Two steps; the last reward counts for nothing."""
    return Episode({"reward": np.array([total, 7.0])}, {}, "e")


def priority(total: float) -> float:
    (found,) = by_return(episode(total), np.array([0]))
    return float(found)


@given(RETURNS, RETURNS)
def test_a_higher_return_has_a_higher_priority(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 < priority(low) <= priority(high)
    if high - low > 1e-9 * max(1, abs(low), abs(high)):
        assert priority(low) < priority(high)


@given(RETURNS)
def test_a_priority_tells_the_return(total: float) -> None:
    np.testing.assert_allclose(return_of(priority(total)), total, rtol=1e-6, atol=1e-9)


def test_views_take_it() -> None:
    given_episode = strategies.episode(np.random.default_rng(0), 5)
    (found,) = Prioritized(WholeEpisode(), by_return).cut(given_episode).priorities
    np.testing.assert_allclose(return_of(found), given_episode.columns["reward"][:-1].astype(float).sum(), rtol=1e-12)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": np.zeros(2)}, "have no reward"),
        ({"reward": np.zeros((2, 2))}, "not one number"),
        ({"reward/a": np.zeros(2)}, "not one"),
    ],
)
def test_rewards_that_are_no_numbers_are_refused(columns: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises((LookupError, ValueError), match=words):
        by_return(Episode(columns, {}, "e"), np.array([0]))


def test_a_push_is_told_by_the_view() -> None:
    bad = strategies.episode(np.random.default_rng(0), 5).with_columns(reward=np.zeros((5, 2)))
    with pytest.raises(ViewError, match="priority by by_return: ValueError"):
        Prioritized(WholeEpisode(), by_return).cut(bad)
