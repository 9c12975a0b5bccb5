"""Servers that are slow, gone, back, restarted: each is told as it is, and none keeps another waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from rlds2reverb.cli.top.watching import Watch, WatchedServer, WatchTarget
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
