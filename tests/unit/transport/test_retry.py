"""The rules of waiting, on a clock that only tests move."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import TransportError, WireError
from rlds2reverb.transport import retry
from rlds2reverb.transport.retry import BreakLog, Deadlines, StallTimer, retry_until


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


DEADLINES = Deadlines(backoff_first=0.1, backoff_most=0.5)


def failing(times: int, *, retryable: bool = True) -> Callable[..., Any]:
    """An attempt that fails so many times; then it gives the number of attempts."""
    attempts = []

    def attempt() -> int:
        attempts.append(1)
        if len(attempts) <= times:
            raise TransportError(f"attempt {len(attempts)}", retryable=retryable)
        return len(attempts)

    return attempt


def test_a_success_at_once_takes_no_pause(clock: Clock) -> None:
    assert retry_until(10, DEADLINES, failing(0)) == 1
    assert clock.pauses == []


def test_pauses_double_up_to_the_longest(clock: Clock) -> None:
    assert retry_until(10, DEADLINES, failing(6)) == 7
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5, 0.5])


def test_the_last_error_is_raised_when_the_deadline_would_pass(clock: Clock) -> None:
    with pytest.raises(TransportError, match="attempt 5"):
        retry_until(1.4, DEADLINES, failing(100))
    assert clock.now <= 101.4
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.5])


def test_an_error_that_trying_again_does_not_help_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(TransportError, match="attempt 1"):
        retry_until(10, DEADLINES, failing(3, retryable=False))
    assert clock.pauses == []


def test_an_error_of_another_kind_is_not_caught(clock: Clock) -> None:
    def broken() -> None:
        raise WireError("no such message")

    with pytest.raises(WireError):
        retry_until(10, DEADLINES, broken)


# Streams that broke.


def test_the_first_break_takes_no_pause_and_the_others_double_it() -> None:
    breaks = BreakLog(DEADLINES)
    assert [breaks.add(TransportError(str(n))) for n in range(6)] == pytest.approx([0, 0.1, 0.2, 0.4, 0.5, 0.5])
    assert (len(breaks), str(breaks.last)) == (6, "5")
    breaks.clear()
    assert (len(breaks), breaks.add(TransportError("again"))) == (0, 0)


def test_the_pause_of_a_great_many_breaks_is_the_longest() -> None:
    breaks = BreakLog(DEADLINES)
    assert [breaks.add(TransportError("")) for _ in range(5000)][-1] == 0.5


# Streams that are silent.


def seconds_until_over(patience: StallTimer, clock: Clock) -> float:
    """How much longer it lasts, to a tenth of a second."""
    began = clock.now
    while not patience.is_over:
        clock.now += 0.1
    return clock.now - began


def test_patience_lasts_twice_as_long_after_each_stream_that_brought_nothing(clock: Clock) -> None:
    patience = StallTimer(Deadlines(silence=5, stall=300))
    lasted = []
    for _ in range(7):
        lasted.append(seconds_until_over(patience, clock))
        patience.give_up()
    assert lasted == pytest.approx([5, 10, 20, 40, 80, 150, 150], abs=0.2)
    patience.progress()
    assert seconds_until_over(patience, clock) == pytest.approx(5, abs=0.2)


@pytest.mark.parametrize(("silence", "stall", "expected"), [(5, 300, 5), (5, 4, 1), (60, 300, 60), (1000, 300, 75)])
def test_patience_is_a_quarter_of_the_stall_at_most(clock: Clock, silence: int, stall: int, expected: int) -> None:
    assert seconds_until_over(StallTimer(Deadlines(silence=silence, stall=stall)), clock) == pytest.approx(
        expected, abs=0.2
    )


def test_what_explains_a_silence_begins_it_anew(clock: Clock) -> None:
    patience = StallTimer(Deadlines(silence=5, stall=300))
    for _ in range(100):
        clock.now += 4.9
        assert not patience.is_over
        patience.explained()
    assert seconds_until_over(patience, clock) == pytest.approx(5, abs=0.2)


def test_a_slow_network_is_given_the_time_that_it_takes(clock: Clock) -> None:
    """Each message takes 30 s: some streams are given up until one is not, and none after it."""
    patience, given_up = StallTimer(Deadlines(silence=5, stall=300)), []
    for message in range(20):
        while seconds_until_over(patience, clock) < 30:
            patience.give_up()
            given_up.append(message)
        patience.explained()
        clock.now += 30
        patience.progress()
    assert given_up == [0, 0, 0]


@given(st.floats(0.01, 1000), st.floats(0.1, 10_000), st.lists(st.sampled_from(["life", "key", "reason", "end"])))
def test_whatever_happened_there_is_time_for_another_stream_before_the_push_gives_up(
    silence: float, stall: float, events: list[str]
) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "time", SimpleNamespace(monotonic=clock.monotonic))
        patience = StallTimer(Deadlines(silence=silence, stall=stall))
        calls = {"life": patience.sign_of_life, "key": patience.progress, "reason": patience.explained}
        for event in events:
            clock.now += stall
            calls.get(event, patience.give_up)()
        assert not patience.is_over
        clock.now += 0.51 * stall
        assert patience.is_over
