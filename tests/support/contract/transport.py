"""What every transport and the server behind it must do: run over the one in memory here, over a real one in conformance."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from rlds2reverb.errors import TransportError
from rlds2reverb.transport.base import PendingInfo, Stream, Transport
from rlds2reverb.views.trajectory import SequenceView
from rlds2reverb.wire import codec
from rlds2reverb.wire.insert import RequestBuilder, RequestLimits
from rlds2reverb.wire.schema import message_class
from tests.support import strategies
from tests.support.wire.insert_cuts import Encoder

REMOVERS = {"fifo": [3, 4, 5], "lifo": [1, 2, 3], "min_heap": [1, 4, 5], "max_heap": [2, 3, 5]}
"""Tables of three places, each called as its remover, and which of the keys 1 to 5 they hold in the end."""

PRIORITIES = {1: 5.0, 2: 1.0, 3: 2.0, 4: 4.0, 5: 3.0}

PLAIN, NARROW = "plain", "narrow"
"""A table of a hundred places, first in first out; one whose limiter lets inserts be two ahead of samples."""

PATIENCE_SECONDS = 30.0


class World(Protocol):
    """A server with empty tables, and a transport to it that the test may close."""

    transport: Transport

    def sample(self, table: str) -> int:
        """Takes one sample; its key."""
        ...


class Feed:
    """Messages that a test gives to a stream one by one; None ends them."""

    def __init__(self, *messages: bytes | None) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for message in messages:
            self._queue.put(message)

    def give(self, message: bytes | None) -> None:
        self._queue.put(message)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._queue.get, None)


def changed_message(change: Any = lambda request: None, items: int = 1, table: str = PLAIN, seed: int = 0) -> bytes:
    """A request of some items, changed as protobuf."""
    cut = SequenceView(2).cut(strategies.episode(np.random.default_rng(seed), items + 1))
    encoded = Encoder([table], seed).encode_cut("tag", cut)
    builder = RequestBuilder(RequestLimits())
    ((message,),) = [request.messages for request in (*builder.add(encoded), *builder.flush())]
    request = message_class("InsertStreamRequest").FromString(message)
    change(request)
    data: bytes = request.SerializeToString()
    return data


def message_of(key: int, table: str = PLAIN, priority: float = 1.0, seed: int = 0) -> bytes:
    """A request of one item."""

    def change(request: Any) -> None:
        request.items[0].key, request.items[0].priority = key, priority

    return changed_message(change, table=table, seed=seed)


def apart(message: bytes) -> tuple[bytes, bytes]:
    """A request as two: its chunks, and its items."""
    chunks, items = (message_class("InsertStreamRequest").FromString(message) for _ in range(2))
    chunks.ClearField("items")
    items.ClearField("chunks")
    return chunks.SerializeToString(), items.SerializeToString()


def read_keys(stream: Stream, count: int) -> list[int]:
    """The next keys that the stream confirms. A real server confirms what came close together in any order."""
    keys: list[int] = []
    for response in stream:
        keys += codec.decode_confirmed_keys(response).tolist()
        if len(keys) >= count:
            break
    return keys


def insert(transport: Transport, messages: Sequence[bytes]) -> list[int]:
    """Sends messages over a stream of their own; the keys that it confirms. A real server may forget them once the client ends."""
    expected = {item.key for message in messages for item in codec.decode_insert_request(message).items}
    feed = Feed(*messages)
    stream = transport.insert_stream(iter(feed))
    try:
        return read_keys(stream, len(expected))
    finally:
        feed.give(None)
        stream.end()


def awaited(pending: PendingInfo) -> Any:
    """The answer to a question, when it is there."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not pending.is_over:
        assert time.monotonic() < end
        threading.Event().wait(0.001)
    return pending.answer()


def table_of(world: World, name: str = PLAIN) -> Any:
    return world.transport.server_info().tables[name]


def sampled(world: World, table: str, count: int) -> list[int]:
    return [world.sample(table) for _ in range(count)]


class TransportContract:
    """Subclasses give a fixture `world`."""

    # Calls.

    def test_it_is_told_what_the_tables_are(self, world: World) -> None:
        tables = world.transport.server_info().tables
        assert {*REMOVERS, PLAIN, NARROW} <= tables.keys()
        for name in REMOVERS:
            assert (tables[name].max_size, tables[name].current_size, tables[name].remover) == (3, 0, name)

    def test_the_same_process_tells_the_same_state_id(self, world: World) -> None:
        assert world.transport.server_info().state_id == world.transport.server_info(at_once=True).state_id

    def test_a_question_is_answered_without_waiting(self, world: World) -> None:
        info = awaited(world.transport.ask_server_info())
        assert info.tables.keys() == world.transport.server_info().tables.keys()
        world.transport.ask_server_info().drop()

    def test_items_are_taken_out_by_key_and_unknown_keys_passed_over(self, world: World) -> None:
        insert(world.transport, [message_of(key) for key in (1, 2, 3)])
        world.transport.delete_items(PLAIN, np.array([2, 99], np.uint64))
        assert (table_of(world).current_size, table_of(world).rate_limiter.inserts) == (2, 3)
        assert sampled(world, PLAIN, 2) == [1, 3]

    def test_items_of_an_unknown_table_cannot_be_taken_out(self, world: World) -> None:
        with pytest.raises(TransportError, match="taking items out: NOT_FOUND") as error:
            world.transport.delete_items("nowhere", np.array([1], np.uint64))
        assert not error.value.retryable

    def test_a_checkpoint_is_in_a_folder(self, world: World) -> None:
        assert world.transport.checkpoint(PATIENCE_SECONDS)

    # Streams.

    def test_items_are_confirmed_and_counted(self, world: World) -> None:
        assert sorted(insert(world.transport, [message_of(key) for key in (7, 5, 6)])) == [5, 6, 7]
        table = table_of(world)
        assert (table.current_size, table.rate_limiter.inserts, table.rate_limiter.samples) == (3, 3, 0)
        assert sampled(world, PLAIN, 3) == [7, 5, 6]
        assert table_of(world).rate_limiter.samples == 3

    def test_a_known_key_is_confirmed_and_not_counted(self, world: World) -> None:
        """In another stream: a real server may confirm a key once that came twice at once."""
        assert insert(world.transport, [message_of(7)]) == [7]
        assert sorted(insert(world.transport, [message_of(7, seed=1), message_of(8)])) == [7, 8]
        assert (table_of(world).current_size, table_of(world).rate_limiter.inserts) == (2, 2)

    @pytest.mark.parametrize("remover", REMOVERS)
    def test_one_item_too_many_evicts_by_the_remover(self, world: World, remover: str) -> None:
        insert(world.transport, [message_of(key, remover, PRIORITIES[key]) for key in (1, 2, 3, 4, 5)])
        assert (table_of(world, remover).current_size, table_of(world, remover).rate_limiter.inserts) == (3, 5)
        assert sampled(world, remover, 3) == REMOVERS[remover]

    def test_the_priority_of_a_known_key_is_assigned(self, world: World) -> None:
        insert(world.transport, [message_of(key, "min_heap", float(key)) for key in (1, 2, 3)])
        insert(world.transport, [message_of(1, "min_heap", 9.0)])  # with its first priority, 1 would be evicted
        insert(world.transport, [message_of(4, "min_heap", 5.0)])
        assert sampled(world, "min_heap", 3) == [1, 3, 4]

    def test_inserts_wait_for_the_limiter_and_go_on_with_a_sample(self, world: World) -> None:
        feed = Feed(*[message_of(key, NARROW) for key in (1, 2, 3)])
        stream = world.transport.insert_stream(iter(feed))
        try:
            assert sorted(read_keys(stream, 2)) == [1, 2]
            assert table_of(world, NARROW).current_size == 2
            assert world.sample(NARROW) == 1
            assert read_keys(stream, 1) == [3]
        finally:
            feed.give(None)
            stream.end()
        sampled(world, NARROW, 2)

    def test_known_keys_wait_for_the_limiter_and_are_not_counted(self, world: World) -> None:
        assert sorted(insert(world.transport, [message_of(key, NARROW) for key in (1, 2)])) == [1, 2]
        feed = Feed(message_of(2, NARROW))
        stream = world.transport.insert_stream(iter(feed))
        assert world.sample(NARROW) == 1
        assert read_keys(stream, 1) == [2]
        assert table_of(world, NARROW).rate_limiter.inserts == 2
        feed.give(None)
        stream.end()

    def test_a_stream_ends_when_the_client_has_ended_it_and_all_is_confirmed(self, world: World) -> None:
        feed = Feed(message_of(1))
        stream = world.transport.insert_stream(iter(feed))
        assert read_keys(stream, 1) == [1]
        feed.give(None)
        assert list(stream) == []
        stream.end()

    def test_chunks_may_come_before_their_items(self, world: World) -> None:
        chunks, items = apart(message_of(3))
        assert insert(world.transport, [chunks, items]) == [3]

    @pytest.mark.parametrize("is_kept", [False, True])
    def test_chunks_are_held_after_items_if_they_are_kept_and_else_forgotten(self, world: World, is_kept: bool) -> None:
        whole = message_class("InsertStreamRequest").FromString(message_of(3))
        _, items = apart(whole.SerializeToString())
        if is_kept:
            whole.keep_chunk_keys.extend(chunk.chunk_key for chunk in whole.chunks)
            assert set(insert(world.transport, [whole.SerializeToString(), items])) == {3}
        else:
            self.assert_refused(world, [whole.SerializeToString(), items], "INTERNAL")

    def test_chunks_that_the_stream_does_not_hold_cannot_be_kept(self, world: World) -> None:
        message = changed_message(lambda request: request.keep_chunk_keys.append(12345))
        self.assert_refused(world, [message], "FAILED_PRECONDITION")

    def test_a_request_of_nothing_is_refused(self, world: World) -> None:
        self.assert_refused(world, [b""], "INVALID_ARGUMENT")

    def test_an_item_for_an_unknown_table_is_refused(self, world: World) -> None:
        self.assert_refused(world, [message_of(1, "nowhere")], "NOT_FOUND")

    def assert_refused(self, world: World, messages: list[bytes], status: str) -> None:
        feed = Feed(*messages)
        stream = world.transport.insert_stream(iter(feed))
        with pytest.raises(TransportError, match=f"inserting: {status}: "):
            list(stream)
        feed.give(None)
        stream.end()

    @pytest.mark.parametrize("how", ["cancel", "abandon"])
    def test_a_stream_that_is_cancelled_or_left_breaks_and_another_one_goes_well(self, world: World, how: str) -> None:
        feed = Feed(message_of(1))
        stream = world.transport.insert_stream(iter(feed))
        assert read_keys(stream, 1) == [1]
        getattr(stream, how)()
        with pytest.raises(TransportError) as error:
            list(stream)
        assert error.value.retryable
        feed.give(None)
        stream.end()
        assert insert(world.transport, [message_of(2)]) == [2]

    def test_a_stream_whose_messages_come_late_is_open(self, world: World) -> None:
        feed = Feed()
        stream = world.transport.insert_stream(iter(feed))
        feed.give(message_of(1))
        assert read_keys(stream, 1) == [1]
        feed.give(message_of(2))
        assert read_keys(stream, 1) == [2]
        feed.give(None)
        stream.end()

    # Closing.

    def test_a_closed_transport_makes_no_call(self, world: World) -> None:
        world.transport.close()
        calls: tuple[Callable[[], object], ...] = (
            world.transport.server_info,
            world.transport.ask_server_info,
            lambda: world.transport.delete_items(PLAIN, np.array([1], np.uint64)),
            lambda: world.transport.checkpoint(1.0),
            lambda: world.transport.insert_stream(iter(())),
        )
        for call in calls:
            with pytest.raises(TransportError, match=f"server {world.transport.address}: no call can be made") as error:
                call()
            assert not error.value.retryable

    def test_closing_breaks_the_streams_under_way(self, world: World) -> None:
        feed = Feed(message_of(1))
        stream = world.transport.insert_stream(iter(feed))
        assert read_keys(stream, 1) == [1]
        world.transport.close()
        with pytest.raises(TransportError):
            list(stream)
        feed.give(None)
        stream.end()
