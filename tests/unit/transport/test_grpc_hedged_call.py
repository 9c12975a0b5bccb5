"""One question over several connections: who answers first, who is left, and that nothing stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from rlds2reverb.transport import grpc as question
from rlds2reverb.transport.grpc import Connections, HedgedCall

OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
SILENT = None


class Channel:
    """A connection with a number, and what a call over it ends with."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Failed(grpc.RpcError):
    pass


class Call:
    """A call that ends at once, or never."""

    def __init__(self, channel: Channel, outcome: grpc.StatusCode | None) -> None:
        self.channel, self.outcome = channel, outcome
        self.cancelled = False
        self.over = threading.Event()

    def add_done_callback(self, tell: Callable[[Any], None]) -> None:
        if self.outcome is not None:
            tell(self)

    def code(self) -> grpc.StatusCode:
        assert self.outcome is not None
        return self.outcome

    def result(self) -> bytes:
        if self.outcome is not OK:
            raise Failed(f"connection {self.channel.number}")
        return str(self.channel.number).encode()

    def cancel(self) -> None:
        self.cancelled = True


class Asked:
    """A question over connections 0, 1, 2, ..., each with its outcome; the last one's holds for all after it."""

    def __init__(self, *outcomes: grpc.StatusCode | None, seconds: float = 60.0) -> None:
        self.channels: list[Channel] = []
        self.calls: list[Call] = []
        self.outcomes = outcomes
        self.connections = Connections(self.connect)
        self.question = HedgedCall(self.connections, self.start, seconds)

    def connect(self) -> Channel:
        self.channels.append(Channel(len(self.channels)))
        return self.channels[-1]

    def start(self, channel: Channel, seconds: float) -> Call:
        assert seconds >= 0
        self.calls.append(Call(channel, self.outcomes[min(channel.number, len(self.outcomes) - 1)]))
        return self.calls[-1]

    def open_after(self) -> list[int]:
        assert all(call.cancelled for call in self.calls)
        return [channel.number for channel in self.channels if not channel.is_closed]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "_DOUBT_SECONDS", 0.001)
    monkeypatch.setattr(question, "_GRACE_SECONDS", 0.001)


def test_an_answer_of_the_connection_in_use_opens_no_other() -> None:
    asked = Asked(OK)
    assert asked.question.answer() == b"0"
    assert (asked.open_after(), len(asked.calls)) == ([0], 1)


@pytest.mark.parametrize("silent", [1, 2, 4])
def test_the_connection_that_answered_is_the_one_in_use(silent: int) -> None:
    asked = Asked(*[SILENT] * silent, OK)
    assert asked.question.answer() == str(silent).encode()
    assert asked.open_after() == [silent]
    assert asked.connections.take().number == silent


def test_a_failure_is_raised_when_nothing_else_is_under_way() -> None:
    asked = Asked(UNAVAILABLE)
    with pytest.raises(Failed, match="connection 0"):
        asked.question.answer()
    assert (asked.open_after(), len(asked.calls)) == ([0], 1)


def test_a_failure_of_another_connection_is_outlasted() -> None:
    asked = Asked(SILENT, UNAVAILABLE, OK)
    assert asked.question.answer() == b"2"
    assert asked.open_after() == [2]


def test_a_silence_of_grpc_itself_ends() -> None:
    asked = Asked(SILENT, seconds=0.02)
    with pytest.raises(TimeoutError):
        asked.question.answer()
    assert asked.open_after() == [0]


def test_it_is_asked_ever_less_often() -> None:
    asked = Asked(SILENT, seconds=0.1)
    with pytest.raises(TimeoutError):
        asked.question.answer()
    assert len(asked.channels) <= 9  # 1 + 2 + 4 + ... + 64 ms


def test_a_stream_on_the_silent_connection_goes_on() -> None:
    asked = Asked(SILENT, OK)
    stream_on = asked.connections.take()
    assert asked.question.answer() == b"1"
    assert asked.open_after() == [0, 1]
    asked.connections.put_back(stream_on)
    assert asked.open_after() == [1]


def test_a_connection_over_which_no_call_can_be_made_is_closed() -> None:
    asked = Asked(SILENT)

    def refuse(channel: Channel, seconds: float) -> Call:
        if channel.number:
            raise ValueError("closed")
        return Asked.start(asked, channel, seconds)

    asked.question._start = refuse
    with pytest.raises(ValueError, match="closed"):
        asked.question.answer()
    assert asked.open_after() == [0]
