"""Which connection is in use, and that each is closed once nothing goes over it: a model, and any order of events."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.transport.grpc import Connections
from tests.support.processes import started


class Channel:
    """A connection that only knows whether it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connections() -> Connections:
    return Connections(Channel)


def test_a_connection_is_closed_when_it_was_replaced_and_nothing_goes_over_it_any_more(
    connections: Connections,
) -> None:
    first, other = connections.take(), connections.take()
    assert first is other
    fresh = connections.fresh()
    connections.adopt(fresh, instead_of=first)
    connections.put_back(first)
    assert not first.is_closed
    connections.put_back(other)
    assert first.is_closed
    with connections.taken() as current:
        assert current is fresh
    assert not fresh.is_closed


def test_a_connection_that_somebody_else_has_replaced_is_not_replaced_again(connections: Connections) -> None:
    first = connections.take()
    connections.put_back(first)
    better, late = connections.fresh(), connections.fresh()
    connections.adopt(better, instead_of=first)
    connections.adopt(late, instead_of=first)
    assert (first.is_closed, better.is_closed, late.is_closed) == (True, False, True)
    connections.abandon(first)
    assert connections.take() is better


def test_leaving_the_connection_in_use_opens_another_one(connections: Connections) -> None:
    first = connections.take()
    connections.abandon(first)
    assert connections.take() is not first
    assert not first.is_closed


def test_closing_closes_what_streams_are_on_as_well(connections: Connections) -> None:
    first = connections.take()
    connections.abandon(first)
    second = connections.take()
    connections.close()
    assert first.is_closed
    assert second.is_closed
    late = connections.fresh()
    connections.adopt(late, instead_of=second)
    assert late.is_closed


def test_what_is_taken_is_put_back_after_an_error(connections: Connections) -> None:
    with pytest.raises(KeyError), connections.taken() as first:
        raise KeyError
    connections.abandon(first)
    assert first.is_closed


@given(st.lists(st.tuples(st.sampled_from(["take", "put back", "abandon", "adopt"]), st.integers(0, 10))))
def test_open_are_the_one_in_use_and_those_that_are_held(events: list[tuple[str, int]]) -> None:
    made: list[Channel] = []

    def connect() -> Channel:
        made.append(Channel())
        return made[-1]

    connections, held = Connections(connect), []
    for event, number in events:
        if event == "take":
            held.append(connections.take())
        elif event == "put back" and held:
            connections.put_back(held.pop(number % len(held)))
        elif event == "abandon":
            connections.abandon(made[number % len(made)])
        elif event == "adopt":
            connections.adopt(connections.fresh(), made[number % len(made)])
        with connections.taken() as current:
            assert {channel for channel in made if not channel.is_closed} == {current, *held}


_LEAVING = """
import threading
from rlds2reverb.transport.grpc import Connections

class Channel:
    def close(self):
        print("closed" if reader.is_alive() else "too late", flush=True)

left = threading.Event()
reader = threading.Thread(target=left.wait, daemon=True)
reader.start()
kept, dropped = Connections(Channel), Connections(Channel)
{}
"""


@pytest.mark.parametrize(
    ("then", "told"), [("", ["closed"] * 2), ("del dropped", ["closed"]), ("kept.close()", ["closed"] * 2)]
)
def test_what_is_open_at_the_end_of_the_interpreter_is_closed_while_threads_run(
    tmp_path: Path, then: str, told: list[str]
) -> None:
    with started(tmp_path, "-c", _LEAVING.format(then)) as process:
        assert process.wait() == 0
    assert (process.output.split("\n")[:-1], process.errors) == (told, "")
