"""The server in memory: the contract of transports, and the faults that it plays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rlds2reverb.client import Client
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import FREE_LIMITER, MemoryServer, MemoryTransport, StreamPlan, table_info
from tests.support.contract.transport import (
    NARROW,
    PLAIN,
    REMOVERS,
    Feed,
    TransportContract,
    insert,
    message_of,
    read_keys,
)

ONCE = replace(table_info(sampler="fifo", remover="fifo", max_size=100), max_times_sampled=1)
TABLES = [
    replace(ONCE, name=PLAIN),
    replace(ONCE, name=NARROW, rate_limiter=replace(FREE_LIMITER, min_diff=0.0, max_diff=2.0)),
    *(replace(ONCE, name=name, remover=name, max_size=3) for name in REMOVERS),
]


class MemoryWorld:
    """A server in memory."""

    def __init__(self) -> None:
        self.server = MemoryServer(*TABLES)
        self.server.checkpoint_path = "/checkpoints/newest"
        self.transport = MemoryTransport(self.server)

    def sample(self, table: str) -> int:
        return self.server.sample(table).key


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestContract(TransportContract):
    pass


def test_a_client_stands_on_it() -> None:
    signature = {"x": ArraySpec((), np.dtype(np.float32))}
    server = MemoryServer(table_info("mine", signature=signature, max_size=7))
    with Client(MemoryTransport(server)) as client:
        info = client.server_info().tables["mine"]
    assert (info.signature, info.max_size) == (signature, 7)


def test_the_limiter_goes_on_from_the_counts_that_it_is_given() -> None:
    server = MemoryServer(table_info(rate_limiter=replace(FREE_LIMITER, inserts=5, samples=2)))
    server.put("replay", 1)
    limiter = server.server_info().tables["replay"].rate_limiter
    assert (limiter.inserts, limiter.samples) == (6, 2)


def test_a_sample_that_is_not_allowed_is_not_waited_for_for_ever() -> None:
    with pytest.raises(TimeoutError, match='table "replay": no sample could be taken'):
        MemoryServer().sample(seconds=0.0)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized(0.8)", "min_heap", "max_heap", "lifo"])
def test_samplers_give_what_the_table_holds(sampler: str) -> None:
    server = MemoryServer(table_info(sampler=sampler))
    for key in (1, 2, 3):
        server.put("replay", key, priority=key)
    drawn = {server.sample().key for _ in range(50)}
    assert drawn == {"min_heap": {1}, "max_heap": {3}, "lifo": {3}}.get(sampler, {1, 2, 3})


# Faults.


def test_requests_fail_from_some_number_on_after_the_ones_before_are_confirmed(world: MemoryWorld) -> None:
    world.server.fail_after(2)
    stream = world.transport.insert_stream(iter(Feed(*[message_of(key) for key in (1, 2, 3, 4)])))
    assert read_keys(stream, 2) == [1, 2]
    with pytest.raises(TransportError, match="inserting: DATA_LOSS: as planned") as error:
        list(stream)
    assert not error.value.retryable
    with pytest.raises(TransportError, match="DATA_LOSS"):
        insert(world.transport, [message_of(3)])
    world.server.fail_after(None)
    assert insert(world.transport, [message_of(3)]) == [3]
    assert world.server.requests == 3


def test_a_planned_stream_ends_after_its_items(world: MemoryWorld) -> None:
    world.server.plans.append(StreamPlan(1, "UNAVAILABLE"))
    stream = world.transport.insert_stream(iter(Feed(message_of(1), message_of(2))))
    assert read_keys(stream, 1) == [1]
    with pytest.raises(TransportError, match="UNAVAILABLE: as planned") as error:
        list(stream)
    assert error.value.retryable
    assert len(world.server.contents(PLAIN)) == 1


def test_what_is_held_is_let_in_later(world: MemoryWorld) -> None:
    world.server.hold(1)
    stream = world.transport.insert_stream(iter(Feed(message_of(1), message_of(2), None)))
    assert read_keys(stream, 1) == [1]
    world.server.until(lambda: len(world.server.streams[0].waiting) == 1)
    world.server.release()
    assert read_keys(stream, 1) == [2]


def test_silent_streams_take_nothing_and_new_ones_go_well(world: MemoryWorld) -> None:
    feed = Feed(message_of(1))
    stream = world.transport.insert_stream(iter(feed))
    assert read_keys(stream, 1) == [1]
    world.server.silence_streams()
    feed.give(message_of(2))
    world.server.until(lambda: len(world.server.streams[0].messages) == 2)
    assert insert(world.transport, [message_of(3)]) == [3]
    stream.abandon()
    feed.give(None)
    with pytest.raises(TransportError, match="CANCELLED"):
        list(stream)
    assert list(world.server.tables[PLAIN].items) == [1, 3]


def test_a_restart_is_another_process_without_items(world: MemoryWorld) -> None:
    before = world.server.state_id
    stream = world.transport.insert_stream(iter(Feed(message_of(1))))
    assert read_keys(stream, 1) == [1]
    world.server.restart()
    with pytest.raises(TransportError, match="UNAVAILABLE"):
        list(stream)
    assert world.transport.server_info().state_id != before
    assert world.server.contents(PLAIN) == []
    assert insert(world.transport, [message_of(1)]) == [1]


def test_calls_are_refused_with_a_status_and_then_answered(world: MemoryWorld) -> None:
    world.server.refusals.extend(["PERMISSION_DENIED", "DEADLINE_EXCEEDED", "INTERNAL"])
    with pytest.raises(TransportError, match="asking for its tables: PERMISSION_DENIED: as planned"):
        world.transport.server_info()
    with pytest.raises(ServerUnreachable, match="no answer within 10 s"):
        world.transport.delete_items(PLAIN, np.array([1], np.uint64))
    assert world.transport.ask_server_info().answer() is None
    assert world.transport.server_info().tables


def test_a_server_that_is_away_answers_no_call(world: MemoryWorld) -> None:
    world.server.is_away = True
    with pytest.raises(ServerUnreachable, match="server memory: no answer"):
        world.transport.server_info()
    world.server.is_away = False
    assert world.transport.server_info().tables


def test_questions_are_counted_until_they_are_ended(world: MemoryWorld) -> None:
    first, second = world.transport.ask_server_info(), world.transport.ask_server_info()
    assert world.server.questions == 2
    first.drop()
    assert second.answer() is not None
    assert world.server.questions == 0


def test_messages_that_cannot_be_made_break_the_stream(
    world: MemoryWorld, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def messages() -> Iterator[bytes]:
        yield message_of(1)
        raise ZeroDivisionError

    stream = world.transport.insert_stream(messages())
    with pytest.raises(TransportError, match="UNKNOWN: Exception iterating requests"):
        list(stream)


def test_bytes_that_are_no_request_are_refused(world: MemoryWorld) -> None:
    with pytest.raises(TransportError, match="inserting: INTERNAL"):
        list(world.transport.insert_stream(iter(Feed(b"\xff\xff", None))))


def test_a_server_without_checkpointer_writes_none(world: MemoryWorld) -> None:
    world.server.checkpoint_path = None
    with pytest.raises(TransportError, match="writing a checkpoint: INVALID_ARGUMENT") as error:
        world.transport.checkpoint(1.0)
    assert not error.value.retryable


def test_known_keys_wait_for_the_limiter(world: MemoryWorld) -> None:
    insert(world.transport, [message_of(key, NARROW) for key in (1, 2)])
    stream = world.transport.insert_stream(iter(Feed(message_of(2, NARROW), None)))
    responses = threading.Thread(target=lambda: list(stream))
    responses.start()
    world.server.until(lambda: len(world.server.streams[1].waiting) == 1)
    assert world.server.tables[NARROW].assigned == 0
    world.server.sample(NARROW)
    responses.join()
    assert world.server.tables[NARROW].assigned == 1
