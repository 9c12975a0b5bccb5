"""Samplers on servers that break, fall silent, go away, come back as others, or answer nonsense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.client import Client
from rlds2reverb.errors import ServerRestarted, ServerUnreachable, Stalled, TransportError, WireError
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, SamplePlan, table_info
from rlds2reverb.testing import streams as served
from rlds2reverb.testing.tables import MemoryTable
from rlds2reverb.transport.stream import Reason
from rlds2reverb.wire.messages import ServerInfo
from rlds2reverb.wire.sample.batches import unequal_columns
from tests.support.learner.tables import PATIENCE_SECONDS, fill, keys_of, once, our_threads, table
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Waits are told soon; no thread is left. A busy machine makes streams wait, which is no silence."""
    deadlines = replace(server_queue._DEADLINES, notice=0.03, backoff_first=0.01, backoff_most=0.05)
    monkeypatch.setattr(server_queue, "_DEADLINES", deadlines)
    yield
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)


@pytest.fixture
def impatient(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent streams are given up soon."""
    monkeypatch.setattr(server_queue, "_DEADLINES", replace(server_queue._DEADLINES, silence=1.0))


def sampler_of(server: MemoryServer, batch_size: int = 10, **options: Any) -> Sampler:
    return Client(MemoryTransport(server)).sample("replay", batch_size, **options)


def endless(*keys: int) -> MemoryServer:
    """A table that gives the first of these for ever."""
    server = MemoryServer(table())
    fill(server, keys or [7])
    return server


# Other streams.


@pytest.mark.parametrize("streams", [1, 3])
def test_broken_streams_are_taken_up_again_and_told(streams: int, caplog: pytest.LogCaptureFixture) -> None:
    server = endless()
    with sampler_of(server, streams=streams) as sampler:
        for _ in range(5):
            next(sampler)
        wait_until(lambda: len(server.sampled) == streams)
        server.break_streams()
        for _ in range(8 * streams):
            assert keys_of([next(sampler)]) == [7] * 10
        wait_until(lambda: sampler.reconnects == streams)
        assert sampler.restarts == 0
    told = [message for message in caplog.messages if "another one took its place" in message]
    assert len(told) == streams
    assert all(
        'table "replay": its stream of samples broke' in message and "UNAVAILABLE" in message for message in told
    )


def test_a_failure_of_any_stream_reaches_the_caller() -> None:
    server = MemoryServer(once())
    server.sample_plans.extend([SamplePlan(), SamplePlan(), SamplePlan(samples=0, status="PERMISSION_DENIED")])
    with sampler_of(server, streams=3) as sampler, pytest.raises(TransportError, match="PERMISSION_DENIED"):
        next(sampler)


def test_streams_that_only_break_are_told_and_stall_in_the_end() -> None:
    server = endless()
    server.sample_plans.extend([SamplePlan(samples=0, status="UNAVAILABLE")] * 1000)
    told: list[Reason] = []
    with sampler_of(server, timeout_seconds=0.3, on_wait=told.append) as sampler:
        with pytest.raises(Stalled, match=r"streams that ended without a sample: \d+, the last one: .*as planned"):
            next(sampler)
    assert any("streams that ended" in reason.text for reason in told)
    assert len(server.sampled) < 30


@pytest.mark.usefixtures("impatient")
def test_a_silent_stream_is_left_for_another_one() -> None:
    server = endless()
    server.sample_plans.append(SamplePlan(silent_after=15))
    with sampler_of(server, samples=100) as sampler:
        assert len(keys_of(sampler)) == 100
        # On a machine that stands still for a second, its successors are silent as well.
        assert sampler.reconnects >= 1
        assert sampler.lost_at_most >= 25


@pytest.mark.usefixtures("impatient")
def test_a_silent_stream_among_others_holds_nobody_up() -> None:
    server = endless()
    server.sample_plans.extend([SamplePlan(silent_after=3), SamplePlan(), SamplePlan(silent_after=0)])
    with sampler_of(server, samples=500, streams=3) as sampler:
        assert len(keys_of(sampler)) == 500
        assert sampler.reconnects >= 2


@pytest.mark.usefixtures("impatient")
def test_silence_that_a_limiter_explains_is_let_be() -> None:
    server = MemoryServer(once())
    told: list[Reason] = []

    def listen(reason: Reason) -> None:
        told.append(reason)
        if len(told) == 50:  # longer than a silence
            fill(server, range(10))

    with sampler_of(server, samples=10, on_wait=listen) as sampler:
        assert len(list(sampler)) == 1
        assert sampler.reconnects == 0


# Other servers.


@pytest.mark.parametrize("streams", [1, 3])
def test_a_restarted_server_is_taken_up_again(streams: int) -> None:
    server = endless(1)
    told: list[Reason] = []
    with sampler_of(server, streams=streams, on_wait=told.append) as sampler:
        assert keys_of([next(sampler)]) == [1] * 10
        wait_until(lambda: len(server.sampled) == streams)
        server.restart()
        fill(server, [2])
        keys: list[int] = []
        while keys[-1:] != [2]:
            keys += keys_of([next(sampler)])
        wait_until(lambda: sampler.reconnects == streams)
        assert sampler.restarts == 1


def test_a_restarted_server_without_the_table_is_told() -> None:
    server = endless()
    with sampler_of(server, prefetch=1) as sampler:
        next(sampler)
        with server.changed:
            del server.tables["replay"]
            server.restart()
        with pytest.raises(
            ServerRestarted, match=r'another server process answers than before .* has no table "replay"'
        ):
            list(sampler)


def test_a_restarted_server_whose_table_holds_something_else_is_told() -> None:
    server = endless()
    with sampler_of(server, prefetch=1) as sampler:
        next(sampler)
        with server.changed:
            other = table_info(signature={"x": ArraySpec((3,), np.dtype(np.float32))})
            server.tables["replay"] = MemoryTable(other)
            server.restart()
        with pytest.raises(ServerRestarted, match=r'its table "replay" has another signature: .*x'):
            list(sampler)


def test_a_server_that_is_away_is_waited_for_as_long_as_is_said() -> None:
    server = endless()
    told = threading.Event()

    def listen(reason: Reason) -> None:
        if "the server is away" in reason.text:
            server.is_away = False
            told.set()

    with sampler_of(server, prefetch=1, on_wait=listen) as sampler:
        next(sampler)
        server.is_away = True
        server.break_streams()
        for _ in range(5):
            next(sampler)
        assert told.is_set()
        server.is_away = True
    with sampler_away(server, reconnect_seconds=0.1) as sampler, pytest.raises(ServerUnreachable, match="is away"):
        list(sampler)


def sampler_away(server: MemoryServer, **options: Any) -> Sampler:
    """Of a server that goes away once it is sampled."""
    server.is_away = False
    sampler = sampler_of(server, prefetch=1, **options)
    next(sampler)
    server.is_away = True
    server.break_streams()
    return sampler


def test_epochs_wait_for_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_queue, "LOOK_SECONDS", 0.05)
    server = MemoryServer(once())
    fill(server, range(20))
    server.sample_plans.append(SamplePlan(silent_after=10))
    told: list[Reason] = []

    def listen(reason: Reason) -> None:
        told.append(reason)
        if len(told) == 10:
            server.is_away = False

    with sampler_of(server, prefetch=1, epochs=1, on_wait=listen) as sampler:
        assert len(keys_of([next(sampler)])) == 10
        server.is_away = True
        server.break_streams()
        list(sampler)
    assert len(told) >= 10


class Slow(MemoryTransport):
    """Answers the main thread at once, and others after so many seconds, or when it is told to.

    Attributes:
      asked: how often others did.
      answers: answers them at once.
    """

    def __init__(self, server: MemoryServer, seconds: float) -> None:
        super().__init__(server)
        self.asked, self.answers, self._seconds = 0, threading.Event(), seconds

    def server_info(self, at_once: bool = False) -> ServerInfo:
        if threading.current_thread() is not threading.main_thread():
            self.asked += 1
            self.answers.wait(self._seconds)
        return super().server_info(at_once)


def test_a_batch_does_not_wait_for_the_reason_why_there_was_none() -> None:
    server = MemoryServer(once())
    transport = Slow(server, PATIENCE_SECONDS)
    with Client(transport).sample("replay", 10) as sampler, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, sampler)
        wait_until(lambda: transport.asked == 1)
        fill(server, range(10))
        try:
            assert keys_of([waiting.result(PATIENCE_SECONDS / 4)]) == list(range(10))
        finally:
            transport.answers.set()
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS)


def test_a_stall_asks_why_once() -> None:
    transport = Slow(MemoryServer(once()), 0.3)
    with Client(transport).sample("replay", 10, timeout_seconds=0.05) as sampler, ThreadPoolExecutor(1) as pool:
        with pytest.raises(Stalled, match="1 more insert"):
            pool.submit(next, sampler).result(PATIENCE_SECONDS)
    assert transport.asked == 1


def test_closing_does_not_wait_for_a_server_that_is_away() -> None:
    server = endless()
    sampler = sampler_away(server, reconnect_seconds=1000.0)
    wait_until(lambda: len(server.sampled) == 1)
    sampler.close()
    wait_until(lambda: not our_threads(), 5.0, our_threads)


# Answers that cannot be.


def test_more_samples_than_were_asked_for_are_refused() -> None:
    server = endless()
    sample = served.Sampled(7, 1.0, 1, 1.0, 1, (np.array(7, np.int64),))
    server.sample_plans.append(SamplePlan(response=served.encode_samples([sample] * 41)))
    with sampler_of(server) as sampler, pytest.raises(WireError, match="41 samples came where 40 were awaited"):
        list(sampler)


def test_bytes_that_are_no_answer_are_a_wire_error() -> None:
    server = endless()
    server.sample_plans.append(SamplePlan(response=b"\xff\xff\xff"))
    with sampler_of(server) as sampler, pytest.raises(WireError):
        next(sampler)


@pytest.mark.usefixtures("impatient")
def test_answers_without_a_sample_are_no_progress() -> None:
    server = endless()
    server.sample_plans.append(SamplePlan(response=b"", silent_after=0))
    with sampler_of(server, samples=10) as sampler:
        assert len(list(sampler)) == 1
        assert sampler.reconnects >= 1


def test_rests_of_streams_that_do_not_fit_together_count_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parts: Any, size: int) -> Any:
        raise unequal_columns({1, 2})

    server = MemoryServer(once())
    fill(server, range(1, 6))
    sampler = sampler_of(server, prefetch=1)
    wait_until(lambda: sampler.received == 5)
    monkeypatch.setattr(server_queue, "in_batches", refuse)
    with pytest.raises(WireError, match="columns"):
        list(sampler.drain(0.1))
    assert sampler.lost_at_most == 10  # the five that came, and the five that did not
