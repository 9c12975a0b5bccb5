"""The way of items to the server: what the writer takes is sent, and whatever stops the reading, it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import InvalidEpisode, ServerUnreachable, TransportError, ViewError
from rlds2reverb.push.capacity import Budget
from rlds2reverb.push.options import SendOptions
from rlds2reverb.push.sender import Writer, can_send_after
from rlds2reverb.testing.tables import ReceivedStream
from rlds2reverb.views.trajectory import two_step
from rlds2reverb.wire.insert import EncodedEpisode, Part, Request, RequestLimits
from tests.support import reference, strategies
from tests.support.views.cutting import items_of


class Kept:
    """Keeps requests; sending fails once so many have come.

    Attributes:
      confirmed: items that were drained.
    """

    def __init__(self, fails_after: int | None = None) -> None:
        self.requests: list[Request] = []
        self.fails_after, self.confirmed = fails_after, 0

    def send(self, request: Request) -> None:
        if len(self.requests) == self.fails_after:
            raise TransportError("the stream broke")
        self.requests.append(request)

    def drain(self) -> None:
        self.confirmed = sum(len(request.item_keys) for request in self.requests)


class Allowing:
    """A budget of requests with so many items."""

    def __init__(self, most: Callable[[], int], is_tight: bool = False) -> None:
        self._most, self.is_tight, self.looks = most, is_tight, 0
        self.expected: list[tuple[str, int]] = []

    @property
    def limits(self) -> RequestLimits:
        return RequestLimits(self._most())

    def expect(self, episode: EncodedEpisode) -> None:
        self.expected.append((episode.ends[0].episode_id, len(episode.item_keys)))

    def check(self, request: Request) -> None:
        """Nothing is refused."""

    def look(self) -> None:
        self.looks += 1


def part_of(number: int, rows: int = 4) -> Part:
    cut = two_step().cut(strategies.episode(np.random.default_rng(number), rows))
    return Part(("t",), 5, f"e{number}", cut)


def write(writer: Writer, count: int, rows: int = 4) -> None:
    for number in range(count):
        writer.write(f"e{number}", [part_of(number, rows)])


@given(st.lists(st.integers(2, 9), max_size=6), st.integers(1, 20), st.integers(1, 5))
def test_all_items_arrive_in_their_order_and_every_episode_is_finished_once(
    lengths: list[int], most_items: int, chunk: int
) -> None:
    kept, parts = Kept(), [part_of(number, rows) for number, rows in enumerate(lengths)]
    with Writer(kept, SendOptions(chunk_length=chunk), cast(Budget, Allowing(lambda: most_items))) as writer:
        for part in parts:
            writer.write(part.key_name, [part])
    stream = ReceivedStream()
    stored = [values for request in kept.requests for _, values in stream.feed_all(request.messages)]
    reference.assert_same_items(
        [list(values) for values in stored], [item for part in parts for item in items_of(part.cut)]
    )
    finished = [finish for request in kept.requests for finish in request.finishes]
    assert finished == [(part.key_name, len(part.cut.anchors)) for part in parts]
    assert kept.confirmed == sum(rows - 1 for rows in lengths)


def test_limits_are_asked_for_with_every_encoded_episode() -> None:
    kept = Kept()
    budget = Allowing(lambda: len(budget.expected))
    with Writer(kept, budget=cast(Budget, budget)) as writer:
        write(writer, 2)
    assert budget.expected == [("e0", 3), ("e1", 3)]
    assert [len(request.item_keys) for request in kept.requests] == [1, 1, 1, 2, 1]


def test_while_it_is_tight_every_request_is_confirmed_and_the_tables_are_looked_at_before_the_next() -> None:
    kept = Kept()
    budget = Allowing(lambda: max(1, 4 - budget.looks), is_tight=True)
    with Writer(kept, budget=cast(Budget, budget)) as writer:
        writer.write("e0", [part_of(0, 9)])
    assert [len(request.item_keys) for request in kept.requests] == [4, 3, 1]
    assert (budget.looks, kept.confirmed) == (3, 8)


def test_what_is_kept_is_sent_when_it_is_drained() -> None:
    kept = Kept()
    writer = Writer(kept)
    write(writer, 2)
    assert (kept.requests, kept.confirmed) == ([], 0)
    writer.drain()
    assert kept.confirmed == 6


@pytest.mark.parametrize("error", [InvalidEpisode("e", []), ViewError("no"), ValueError("no"), OSError("no")], ids=repr)
def test_whatever_stops_the_reading_what_was_sent_before_is_waited_for(error: BaseException) -> None:
    kept = Kept()
    with pytest.raises(type(error)) as caught, Writer(kept) as writer:
        write(writer, 2)
        raise error
    assert caught.value is error
    assert kept.confirmed == 6
    assert can_send_after(error)


@pytest.mark.parametrize("error", [TransportError("broke"), ServerUnreachable("gone"), KeyboardInterrupt()], ids=repr)
def test_after_sending_failed_or_an_interruption_nothing_is_waited_for(error: BaseException) -> None:
    kept = Kept()
    with pytest.raises(type(error)) as caught, Writer(kept) as writer:
        write(writer, 2)
        raise error
    assert caught.value is error
    assert (kept.requests, kept.confirmed) == ([], 0)
    assert not can_send_after(error)


def test_sending_that_fails_after_another_error_is_told_with_it() -> None:
    """Who goes on where the writer stopped must know that nobody can say where that was."""
    error = ValueError("bad data")
    with pytest.raises(TransportError) as caught, Writer(Kept(fails_after=0)) as writer:
        write(writer, 1)
        raise error
    assert caught.value.__context__ is error


def test_an_episode_that_cannot_be_encoded_leaves_those_before_it() -> None:
    kept, bad = Kept(), part_of(1)
    with pytest.raises(ViewError, match="reach outside"), Writer(kept) as writer:
        write(writer, 1)
        outside = type(bad.cut)(bad.cut.rows, bad.cut.fields, bad.cut.anchors + 9, bad.cut.priorities)
        writer.write("e1", [Part(("t",), 5, "e1", outside)])
    assert [finish for request in kept.requests for finish in request.finishes] == [("e0", 3)]
