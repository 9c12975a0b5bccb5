"""What sample streams of every transport and the server behind it must do: over the one in memory here, over a real one in conformance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.base import Stream, Transport
from rlds2reverb.wire.codec import encode_sample_request
from rlds2reverb.wire.messages import SampleRequest
from rlds2reverb.wire.sample.batches import ChunkCache, FlatBatch, batch_builder
from tests.support.contract.transport import Feed, insert, message_of

SAMPLERS = ["fifo", "lifo", "min_heap", "max_heap", "uniform", "prioritized(0.5)"]
"""Tables that keep their items, each called as its sampler."""

ONCE, TWICE, HUNGRY = "once", "twice", "hungry"
"""First in first out: one whose items leave with their first sample, one with their second, one that waits for three items."""

TABLES = {
    **{name: {"sampler": name} for name in SAMPLERS},
    ONCE: {"sampler": "fifo", "max_times_sampled": 1},
    TWICE: {"sampler": "fifo", "max_times_sampled": 2},
    HUNGRY: {"sampler": "fifo", "min_size": 3},
    **{name: {"sampler": "fifo", "max_times_sampled": 1} for name in ("cancel", "abandon", "close")},
}
"""What the worlds build. Each holds 1,000 items, first in first out.

A request that waits when its stream is cancelled takes an item once more, which nobody gets (observed with 0.14): so the tests that
cancel have tables of their own."""

PRIORITIES = {1: 5.0, 2: 1.0, 3: 2.0, 4: 4.0, 5: 3.0}
FIRST = {"fifo": 1, "lifo": 5, "min_heap": 2, "max_heap": 1}


class World(Protocol):
    """A server with these tables, empty, and a transport to it that the test may close."""

    transport: Transport


class Info(NamedTuple):
    """What a server tells of one sample."""

    key: int
    probability: float
    table_size: int
    priority: float
    times_sampled: int


def request(table: str, samples: int, seconds: float | None = None) -> bytes:
    return encode_sample_request(SampleRequest(table, samples, seconds))


class Reader:
    """A sample stream, and what came over it."""

    def __init__(self, stream: Stream, feed: Feed) -> None:
        self.stream, self.feed = stream, feed
        self._messages = iter(stream)
        self._builder = batch_builder(1, ChunkCache(1 << 20))
        self._came: list[FlatBatch] = []

    def read(self, count: int) -> list[Info]:
        """The next samples."""
        while len(self._came) < count:
            self._builder.take(next(self._messages), self._came)
        taken, self._came = self._came[:count], self._came[count:]
        return [Info(*(values[0].item() for values in batch.info)) for batch in taken]

    def keys(self, count: int) -> list[int]:
        """Those of the next samples."""
        return [info.key for info in self.read(count)]

    def to_the_end(self) -> int:
        """Reads on until the server ends the stream; how many samples came."""
        came = len(self._came)
        for message in self._messages:
            full: list[FlatBatch] = []
            self._builder.take(message, full)
            came += len(full)
        return came


@contextmanager
def sampling(transport: Transport, *messages: bytes | None) -> Iterator[Reader]:
    """A stream with these requests, to which others may be given."""
    feed = Feed(*messages)
    stream = transport.sample_stream(iter(feed))
    try:
        yield Reader(stream, feed)
    finally:
        feed.give(None)
        stream.end()


def put(world: World, table: str, *keys: int, priorities: dict[int, float] = PRIORITIES) -> None:
    """Items one after the other: a real server may take those of one stream in another order."""
    for key in keys:
        insert(world.transport, [message_of(key, table, priorities.get(key, 1.0), seed=key)])


def table_of(world: World, name: str) -> Any:
    return world.transport.server_info().tables[name]


class SampleContract:
    """Subclasses give a fixture `world`."""

    # What is drawn.

    @pytest.mark.parametrize("table", FIRST)
    def test_samplers_without_chance_give_their_first(self, world: World, table: str) -> None:
        put(world, table, *PRIORITIES)
        with sampling(world.transport, request(table, 3)) as reader:
            infos = reader.read(3)
        key = FIRST[table]
        assert infos == [Info(key, 1.0, 5, PRIORITIES[key], times) for times in (1, 2, 3)]

    @pytest.mark.parametrize(("table", "exponent"), [("uniform", 0.0), ("prioritized(0.5)", 0.5)])
    def test_samplers_of_chance_tell_the_probability_and_keep_to_it(
        self, world: World, table: str, exponent: float
    ) -> None:
        put(world, table, *PRIORITIES)
        weights = {key: priority**exponent for key, priority in PRIORITIES.items()}
        with sampling(world.transport, request(table, 2000)) as reader:
            infos = reader.read(2000)
        drawn = Counter(info.key for info in infos)
        for key, weight in weights.items():
            share = weight / sum(weights.values())
            assert drawn[key] / 2000 == pytest.approx(share, abs=0.08)  # seven standard deviations
            told = np.array([info.probability for info in infos if info.key == key])
            np.testing.assert_allclose(told, share, rtol=1e-9)
        assert {info.table_size for info in infos} == {5}

    def test_priorities_of_nothing_are_drawn_alike(self, world: World) -> None:
        put(world, "prioritized(0.5)", 1, 2, priorities={1: 0.0, 2: 0.0})
        with sampling(world.transport, request("prioritized(0.5)", 100)) as reader:
            infos = reader.read(100)
        assert {(info.key, info.probability) for info in infos} == {(1, 0.5), (2, 0.5)}

    def test_an_item_leaves_with_its_last_sample(self, world: World) -> None:
        put(world, TWICE, 1, 2)
        with sampling(world.transport, request(TWICE, 4)) as reader:
            infos = reader.read(4)
        assert [(info.key, info.times_sampled, info.table_size) for info in infos] == [
            (1, 1, 2),
            (1, 2, 2),
            (2, 1, 1),
            (2, 2, 1),
        ]
        assert table_of(world, TWICE).current_size == 0

    # Requests.

    def test_requests_are_taken_one_after_the_other_and_may_name_other_tables(self, world: World) -> None:
        put(world, "fifo", 1)
        put(world, "lifo", 2)
        with sampling(world.transport, request("fifo", 2), request("lifo", 3), request("fifo", 1)) as reader:
            assert reader.keys(6) == [1, 1, 2, 2, 2, 1]
            reader.feed.give(request("lifo", 1))
            assert reader.keys(1) == [2]

    def test_a_request_that_cannot_be_met_holds_up_those_after_it(self, world: World) -> None:
        put(world, "fifo", 1)
        put(world, ONCE, 2)
        with sampling(world.transport, request(ONCE, 2), request("fifo", 1)) as reader:
            assert reader.keys(1) == [2]
            put(world, ONCE, 3)
            assert reader.keys(2) == [3, 1]

    def test_half_closing_brings_what_was_asked_for_and_then_the_end(self, world: World) -> None:
        put(world, "fifo", 1)
        with sampling(world.transport, request("fifo", 300), None) as reader:
            assert reader.to_the_end() == 300
        assert table_of(world, "fifo").rate_limiter.samples == 300

    def test_half_closing_without_a_request_is_the_end(self, world: World) -> None:
        with sampling(world.transport, None) as reader:
            assert reader.to_the_end() == 0

    @pytest.mark.parametrize("samples", [0, -1])
    def test_a_request_of_no_samples_is_refused(self, world: World, samples: int) -> None:
        put(world, "fifo", 1)
        self.assert_refused(world, request("fifo", samples), "INVALID_ARGUMENT", is_retryable=False)

    def test_an_unknown_table_is_refused(self, world: World) -> None:
        self.assert_refused(world, request("nowhere", 1), "NOT_FOUND: .*nowhere", is_retryable=False)

    def assert_refused(self, world: World, message: bytes, status: str, is_retryable: bool) -> None:
        with sampling(world.transport, message) as reader:
            with pytest.raises(TransportError, match=f"sampling: {status}") as error:
                reader.to_the_end()
        assert error.value.retryable == is_retryable

    # Waits.

    def test_samples_wait_for_the_limiter(self, world: World) -> None:
        put(world, HUNGRY, 1, 2)
        with sampling(world.transport, request(HUNGRY, 2)) as reader:
            assert table_of(world, HUNGRY).rate_limiter.samples == 0
            put(world, HUNGRY, 3)
            assert reader.keys(2) == [1, 1]

    @pytest.mark.parametrize("table", [HUNGRY, ONCE])
    def test_a_limiter_that_holds_back_for_too_long_is_told(self, world: World, table: str) -> None:
        self.assert_refused(
            world, request(table, 1, 0.05), "DEADLINE_EXCEEDED: Rate Limiter: Timeout exceeded", is_retryable=True
        )

    def test_a_table_that_runs_empty_is_told_as_a_limiter_that_holds_back(self, world: World) -> None:
        put(world, ONCE, 1, 2)
        with sampling(world.transport, request(ONCE, 2), request(ONCE, 1, 0.05)) as reader:
            assert reader.keys(2) == [1, 2]
            with pytest.raises(TransportError, match="DEADLINE_EXCEEDED"):
                reader.to_the_end()

    def test_a_stream_outlives_the_reset_of_its_table(self, world: World) -> None:
        put(world, ONCE, 1)
        with sampling(world.transport, request(ONCE, 3)) as reader:
            assert reader.keys(1) == [1]
            world.transport.reset(ONCE)
            assert table_of(world, ONCE).rate_limiter.samples == 0
            put(world, ONCE, 7, 8)
            assert reader.keys(2) == [7, 8]

    # Priorities.

    def test_priorities_change_what_is_drawn(self, world: World) -> None:
        put(world, "max_heap", *PRIORITIES)
        world.transport.update_priorities("max_heap", np.array([3, 1], np.uint64), np.array([9.0, 0.0]))
        with sampling(world.transport, request("max_heap", 1)) as reader:
            assert reader.read(1) == [Info(3, 1.0, 5, 9.0, 1)]

    def test_unknown_keys_are_passed_over_and_of_one_key_the_last_priority_counts(self, world: World) -> None:
        put(world, "max_heap", 1, 2)
        world.transport.update_priorities("max_heap", np.array([99, 2, 2], np.uint64), np.array([9.0, 8.0, 7.0]))
        with sampling(world.transport, request("max_heap", 1)) as reader:
            assert reader.read(1) == [Info(2, 1.0, 2, 7.0, 1)]

    @pytest.mark.parametrize("priority", [np.nan, -1.0])
    def test_priorities_that_are_no_weights_are_refused(self, world: World, priority: float) -> None:
        table = "prioritized(0.5)"
        put(world, table, 1, 2, priorities={1: 0.0, 2: 0.0})
        with pytest.raises(TransportError, match="updating priorities: INVALID_ARGUMENT") as error:
            world.transport.update_priorities(table, np.array([2, 1], np.uint64), np.array([9.0, priority]))
        assert not error.value.retryable
        with sampling(world.transport, request(table, 1)) as reader:
            assert reader.read(1) == [Info(2, 1.0, 2, 9.0, 1)]  # what came before it stays

    def test_a_heap_takes_negative_priorities(self, world: World) -> None:
        put(world, "max_heap", 1, 2)
        world.transport.update_priorities("max_heap", np.array([1], np.uint64), np.array([-9.0]))
        with sampling(world.transport, request("max_heap", 1)) as reader:
            assert reader.keys(1) == [2]

    def test_calls_on_unknown_tables_are_refused(self, world: World) -> None:
        calls: dict[str, Callable[[], object]] = {
            "updating priorities": lambda: world.transport.update_priorities(
                "nowhere", np.array([1], np.uint64), np.array([1.0])
            ),
            "emptying a table": lambda: world.transport.reset("nowhere"),
        }
        for doing, call in calls.items():
            with pytest.raises(TransportError, match=f"{doing}: NOT_FOUND") as error:
                call()
            assert not error.value.retryable

    # Ends.

    @pytest.mark.parametrize("how", ["cancel", "abandon"])
    def test_a_stream_that_is_cancelled_or_left_breaks_and_another_one_goes_well(self, world: World, how: str) -> None:
        put(world, how, 1)
        with sampling(world.transport, request(how, 2)) as reader:
            assert reader.keys(1) == [1]
            getattr(reader.stream, how)()
            with pytest.raises(TransportError) as error:
                reader.to_the_end()
        assert error.value.retryable
        put(world, "fifo", 2)
        with sampling(world.transport, request("fifo", 1)) as reader:
            assert reader.keys(1) == [2]

    def test_closing_breaks_the_streams_under_way(self, world: World) -> None:
        put(world, "close", 1)
        with sampling(world.transport, request("close", 2)) as reader:
            assert reader.keys(1) == [1]
            world.transport.close()
            with pytest.raises(TransportError):
                reader.to_the_end()
        with pytest.raises(TransportError, match="no call can be made"):
            world.transport.sample_stream(iter(()))
