"""Rates from counts: exact, never negative, and not known where counts tell nothing."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli.top.watching import TREND_MOST, Moment, Rate, add_mark, add_moment, rates, read_moment, trend
from tests.support.cli.top_status import info, table

COUNT = st.integers(0, 2**63)
MOMENTS = st.lists(
    st.builds(
        Moment,
        seconds=st.floats(0, 1e6, allow_nan=False),
        state_id=st.integers(1, 3),
        counts=st.dictionaries(st.sampled_from("abc"), st.tuples(COUNT, COUNT)),
    ),
    max_size=8,
)


def history_of(*moments: Moment, span: float = 5.0) -> tuple[Moment, ...]:
    history: tuple[Moment, ...] = ()
    for one in moments:
        history = add_moment(history, one, span)
    return history


def at(seconds: float, inserts: int, samples: int, state_id: int = 1) -> Moment:
    return Moment(seconds, state_id, {"a": (inserts, samples)})


@given(MOMENTS)
def test_no_rate_is_negative_or_not_a_number_whatever_the_counts(moments: list[Moment]) -> None:
    history = history_of(*moments)
    for name, rate in rates(history).items():
        assert name in moments[-1].counts
        assert rate.seconds > 0
        assert 0 <= rate.inserts < math.inf
        assert 0 <= rate.samples < math.inf


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([0.5, 1.0, 2.0, 60.0]))
def test_a_steady_table_has_its_rate(inserts: int, samples: int, count: int, interval: float) -> None:
    moments = [at(n * interval, 7 + n * inserts, 9 + n * samples) for n in range(count)]
    rate = rates(history_of(*moments))["a"]
    assert rate.inserts == pytest.approx(inserts / interval)
    assert rate.samples == pytest.approx(samples / interval)


@given(MOMENTS)
def test_the_history_is_of_one_process_and_only_as_long_as_it_is_needed(moments: list[Moment]) -> None:
    history = history_of(*moments)
    assert len({one.state_id for one in history}) <= 1
    assert all(later.seconds > earlier.seconds for earlier, later in itertools.pairwise(history))
    assert sum(history[-1].seconds - one.seconds > 5.0 for one in history) <= 1 if history else True


def test_one_moment_tells_no_rate() -> None:
    assert rates(()) == {}
    assert rates(history_of(at(1.0, 5, 5))) == {}


def test_a_rate_forgets_what_was_long_ago() -> None:
    moments = [at(0, 0, 0), at(4, 4000, 0), at(10, 4000, 0), at(12, 4000, 10)]
    assert rates(history_of(*moments))["a"] == Rate(0.0, 5.0, 2.0)


def test_a_restart_begins_anew() -> None:
    assert rates(history_of(at(0, 100, 100), at(2, 3, 0, state_id=2))) == {}
    assert rates(history_of(at(0, 100, 100), at(2, 3, 0, state_id=2), at(4, 13, 20, state_id=2)))["a"].inserts == 5.0


def test_a_restart_to_higher_counts_is_no_rate_either() -> None:
    """A checkpoint restores counts; those of another process are compared with nothing."""
    assert rates(history_of(at(0, 100, 100), at(2, 1000, 100, state_id=2))) == {}


@pytest.mark.parametrize("after", [(0, 30), (20, 0), (0, 0)])
def test_a_table_that_was_reset_begins_anew(after: tuple[int, int]) -> None:
    assert rates(history_of(at(0, 10, 20), at(2, *after))) == {}
    later = rates(history_of(at(0, 10, 20), at(2, *after), at(3, after[0] + 1, after[1] + 4)))
    assert later["a"] == Rate(1.0, 4.0, 1.0)


def test_a_table_that_comes_later_has_a_rate_of_its_own() -> None:
    both = Moment(4.0, 1, {"a": (8, 8), "b": (6, 2)})
    first = Moment(2.0, 1, {"a": (4, 4), "b": (0, 0)})
    assert rates(history_of(at(0.0, 0, 0), first, both)) == {"a": Rate(2.0, 2.0, 4.0), "b": Rate(3.0, 1.0, 2.0)}


def test_the_counts_of_an_answer() -> None:
    assert read_moment(info(table("a", calls=(3, 4)), state_id=9), 1.5) == Moment(1.5, 9, {"a": (3, 4)})


def past_of(*moments: Moment, step: float = 2.0) -> tuple[Moment, ...]:
    past: tuple[Moment, ...] = ()
    for one in moments:
        past = add_mark(past, one, step)
    return past


def test_a_trend_has_a_rate_for_every_step_and_only_the_last_ones() -> None:
    past = past_of(*(at(number * 0.5, number * number, number) for number in range(200)))
    rates_of = trend(past, "a")
    assert len(rates_of) == TREND_MOST
    assert all(one is not None and one.seconds == 2.0 for one in rates_of)
    assert [one and one.samples for one in rates_of] == [2.0] * TREND_MOST
    assert [later.inserts - one.inserts for one, later in itertools.pairwise(filter(None, rates_of))] == [16.0] * 15


def test_a_trend_knows_nothing_of_a_reset_and_begins_anew_with_another_process() -> None:
    counts = [at(0, 10, 0), at(2, 20, 0), at(4, 0, 0), at(6, 5, 0)]
    assert [one and one.inserts for one in trend(past_of(*counts), "a")] == [5.0, None, 2.5]
    assert trend(past_of(*counts, at(8, 50, 0, state_id=2)), "a") == ()
    assert trend(past_of(*counts), "b") == (None, None, None)
    assert trend((), "a") == ()


def test_polls_that_come_a_little_early_count() -> None:
    assert len(past_of(at(0, 0, 0), at(1.85, 1, 1), at(3.9, 2, 2), at(4.5, 3, 3))) == 3
