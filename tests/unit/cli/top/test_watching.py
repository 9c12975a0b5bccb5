"""Servers that are slow, gone, back, restarted: each is told as it is, and none keeps another waiting."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.cli.top.watching import (
    TREND_MOST,
    Moment,
    Rate,
    Watch,
    WatchedServer,
    WatchTarget,
    add_mark,
    add_moment,
    rates,
    read_moment,
    trend,
)
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.transport.http import Status
from rlds2reverb.wire.messages import ServerInfo
from tests.support.cli.top_status import STATUS, info, table
from tests.support.processes import PATIENCE_SECONDS, wait_until


class Way:
    """A server of the test: `answer` makes what it says."""

    def __init__(self, answer: Callable[[], ServerInfo]) -> None:
        self.answer, self.is_closed, self.questions = answer, threading.Event(), 0

    def server_info(self, at_once: bool = False) -> ServerInfo:
        self.questions += 1
        return self.answer()

    def close(self) -> None:
        self.is_closed.set()


def read() -> Status:
    return msgspec.convert(STATUS, Status)


class Http:
    url = "http://a"

    def __init__(self, answer: Callable[[], Status]) -> None:
        self.answer = answer

    def status(self, seconds: float) -> Status:
        return self.answer()


@pytest.fixture
def watching() -> Iterator[Callable[..., Watch]]:
    """Makes a watch that has begun."""
    with ExitStack() as stack:
        yield lambda *targets: stack.enter_context(Watch(targets, interval=0.01, timeout=PATIENCE_SECONDS))


def until(watch: Watch, is_so: Callable[[WatchedServer], bool], number: int = 0) -> WatchedServer:
    """What is known of a server, once it is so."""
    found = watch.wait(lambda known: is_so(known[number]), PATIENCE_SECONDS)[number]
    assert is_so(found), found
    return found


def gone() -> ServerInfo:
    raise ServerUnreachable("server a: nothing\nlistens \x1b[2J there")


def growing() -> Callable[[], ServerInfo]:
    """Ten inserts and five samples more at each question."""
    questions = iter(range(10**9))

    def answer() -> ServerInfo:
        number = next(questions)
        return info(table("a", calls=(10 * number, 5 * number)))

    return answer


def test_rates_come_with_the_second_answer(watching: Callable[..., Watch]) -> None:
    watch = watching(WatchTarget("a", Way(growing())))
    known = until(watch, lambda one: bool(one.rates()))
    rate = known.rates()["a"]
    assert rate.inserts > 0
    assert rate.inserts == pytest.approx(2 * rate.samples)


def test_a_server_that_hangs_keeps_no_other_waiting(watching: Callable[..., Watch]) -> None:
    released = threading.Event()

    def hang() -> ServerInfo:
        released.wait(PATIENCE_SECONDS)
        return info(table("a"))

    ways = (Way(hang), Way(growing()))
    watch = watching(WatchTarget("slow", ways[0]), WatchTarget("quick", ways[1]))
    try:
        until(watch, lambda one: len(one.history) > 3, number=1)
        slow = watch.servers()[0]
        assert not slow.answers
        assert slow.asked_at is not None
        assert slow.waited(slow.asked_at + 10) == 10
    finally:
        released.set()
    assert until(watch, lambda one: one.answers).waited(1e12) == 0 or ways[0].questions > 1


def test_http_that_hangs_keeps_the_tables_coming(watching: Callable[..., Watch]) -> None:
    released = threading.Event()

    def hang() -> Status:
        released.wait(PATIENCE_SECONDS)
        return read()

    watch = watching(WatchTarget("a", Way(growing()), Http(hang)))
    try:
        assert until(watch, lambda one: bool(one.rates())).status is None
    finally:
        released.set()
    assert until(watch, lambda one: one.status is not None).status == read()


def test_a_server_that_goes_away_is_told_and_taken_up_again(watching: Callable[..., Watch]) -> None:
    way = Way(growing())
    watch = watching(WatchTarget("a", way))
    before = until(watch, lambda one: bool(one.rates()))
    way.answer = gone
    away = until(watch, lambda one: bool(one.problem))
    assert away.problem == "server a: nothing listens \\x1b[2J there"
    assert away.answered_at is not None
    assert away.silent_since == away.answered_at
    assert away.rates() == {}
    assert away.tables.keys() == before.tables.keys()  # as they last were
    way.answer = growing()
    back = until(watch, lambda one: one.answers and bool(one.rates()))
    assert back.problem == ""
    assert back.restarted_at is None


def test_another_process_is_a_restart_and_gives_no_negative_rate(watching: Callable[..., Watch]) -> None:
    way = Way(lambda: info(table("a", calls=(10**9, 10**9))))
    watch = watching(WatchTarget("a", way))
    until(watch, lambda one: bool(one.rates()))
    questions = iter(range(10**9))
    way.answer = lambda: info(table("a", calls=(next(questions), 0)), state_id=2)
    restarted = until(watch, lambda one: one.restarted_at is not None and bool(one.rates()))
    assert all(rate.inserts >= 0 and rate.samples >= 0 for rate in restarted.rates().values())


def test_a_server_that_never_answered_is_silent_since_the_first_question(watching: Callable[..., Watch]) -> None:
    known = until(watching(WatchTarget("a", Way(gone))), lambda one: bool(one.problem))
    assert known.answered_at is None
    assert known.silent_since == known.watched_since


def test_http_that_fails_keeps_what_it_told(watching: Callable[..., Watch]) -> None:
    http = Http(lambda: read())
    watch = watching(WatchTarget("a", Way(growing()), http))
    until(watch, lambda one: one.status is not None)

    def fail() -> Status:
        raise TransportError("http://a: HTTP 500")

    http.answer = fail
    known = until(watch, lambda one: bool(one.status_problem))
    assert (known.status, known.status_problem) == (read(), "http://a: HTTP 500")


def test_a_bug_in_a_thread_is_raised_where_it_is_drawn(watching: Callable[..., Watch]) -> None:
    def fail() -> ServerInfo:
        raise KeyError("bug")

    watch = watching(WatchTarget("a", Way(fail)), WatchTarget("b", Way(growing())))
    with pytest.raises(KeyError, match="bug"):
        watch.wait(lambda _: False, PATIENCE_SECONDS)
    with pytest.raises(KeyError, match="bug"):
        watch.servers()


def test_the_end_closes_the_ways_and_tells_nobody_any_more() -> None:
    way, told = Way(growing()), []
    watch = Watch([WatchTarget("a", way)], interval=0.01, timeout=1.0)
    watch.on_change = lambda: told.append(1)
    with watch:
        until(watch, lambda one: len(one.history) > 1)
    assert way.is_closed.is_set()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "top a"])
    assert told


def test_waiting_ends_when_the_time_is_over(watching: Callable[..., Watch]) -> None:
    seen: list[Sequence[Any]] = []
    assert watching(WatchTarget("a", Way(gone))).wait(lambda known: bool(seen.append(known)), 0.05)[0].name == "a"
    assert seen


# Rates from counts: exact, never negative, and not known where counts tell nothing.

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
    for moment in moments:
        history = add_moment(history, moment, span)
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
    assert len({moment.state_id for moment in history}) <= 1
    assert all(later.seconds > earlier.seconds for earlier, later in itertools.pairwise(history))
    assert sum(history[-1].seconds - moment.seconds > 5.0 for moment in history) <= 1 if history else True


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
    for moment in moments:
        past = add_mark(past, moment, step)
    return past


def test_a_trend_has_a_rate_for_every_step_and_only_the_last_ones() -> None:
    past = past_of(*(at(number * 0.5, number * number, number) for number in range(200)))
    rates_of = trend(past, "a")
    assert len(rates_of) == TREND_MOST
    assert all(rate is not None and rate.seconds == 2.0 for rate in rates_of)
    assert [rate and rate.samples for rate in rates_of] == [2.0] * TREND_MOST
    assert [later.inserts - rate.inserts for rate, later in itertools.pairwise(filter(None, rates_of))] == [16.0] * 15


def test_a_trend_knows_nothing_of_a_reset_and_begins_anew_with_another_process() -> None:
    counts = [at(0, 10, 0), at(2, 20, 0), at(4, 0, 0), at(6, 5, 0)]
    assert [rate and rate.inserts for rate in trend(past_of(*counts), "a")] == [5.0, None, 2.5]
    assert trend(past_of(*counts, at(8, 50, 0, state_id=2)), "a") == ()
    assert trend(past_of(*counts), "b") == (None, None, None)
    assert trend((), "a") == ()


def test_polls_that_come_a_little_early_count() -> None:
    assert len(past_of(at(0, 0, 0), at(1.85, 1, 1), at(3.9, 2, 2), at(4.5, 3, 3))) == 3
