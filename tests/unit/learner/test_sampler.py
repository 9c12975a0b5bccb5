"""What iterating a sampler brings: so many samples, in whole batches, in bounded time and memory."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.client import Client
from rlds2reverb.errors import ConfigError, Stalled, TransportError
from rlds2reverb.learner import server_queue
from rlds2reverb.learner.options import GIVE_UP_SECONDS, SampleOptions, SliceSpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, SamplePlan
from rlds2reverb.transport.stream import Reason
from tests.support.learner.stored import STEPS, episodes_of, server_of
from tests.support.learner.tables import PATIENCE_SECONDS, fill, keys_of, once, our_threads, table
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Waits are told soon; no thread is left."""
    monkeypatch.setattr(
        server_queue, "_DEADLINES", replace(server_queue._DEADLINES, notice=0.03, backoff_first=0.01, silence=2.0)
    )
    yield
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)


def client_of(server: MemoryServer) -> Client:
    return Client(MemoryTransport(server))


# How many samples, in which batches.


@given(
    samples=st.integers(1, 60),
    batch_size=st.integers(1, 12),
    streams=st.integers(1, 4),
    prefetch=st.integers(1, 3),
    at_once=st.integers(1, 20),
)
def test_so_many_samples_come_once_each_and_only_the_last_batch_is_short(
    samples: int, batch_size: int, streams: int, prefetch: int, at_once: int
) -> None:
    server = MemoryServer(once())
    fill(server, range(100))
    server.sample_plans.extend([SamplePlan(at_once=at_once)] * streams)
    with client_of(server).sample("replay", batch_size, samples=samples, streams=streams, prefetch=prefetch) as sampler:
        batches = list(sampler)
        assert (sampler.received, sampler.lost_at_most, sampler.reconnects) == (samples, 0, 0)
    assert [batch.size for batch in batches[:-1]] == [batch_size] * (-(-samples // batch_size) - 1)
    assert sorted(keys_of(batches)) == list(range(samples))
    assert server.server_info().tables["replay"].rate_limiter.samples == samples


@given(samples=st.integers(1, 40), batch_size=st.integers(1, 12), streams=st.integers(1, 3))
def test_drop_last_leaves_out_the_short_batch_only(samples: int, batch_size: int, streams: int) -> None:
    server = MemoryServer(table())
    fill(server, [7])
    sampler = client_of(server).sample("replay", batch_size, samples=samples, streams=streams, drop_last=True)
    assert [batch.size for batch in sampler] == [batch_size] * (samples // batch_size)


@given(
    samples=st.integers(1, 60),
    streams=st.integers(1, 3),
    ends=st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["UNAVAILABLE", "INTERNAL", None])), max_size=5),
)
def test_streams_that_break_change_nothing_but_the_count(
    samples: int, streams: int, ends: list[tuple[int, str | None]]
) -> None:
    server = MemoryServer(table())
    fill(server, [7])
    server.sample_plans.extend(SamplePlan(samples=after, status=status, at_once=4) for after, status in ends)
    with client_of(server).sample("replay", 8, samples=samples, streams=streams) as sampler:
        assert [batch.size for batch in sampler] == [8] * (samples // 8) + [samples % 8] * (samples % 8 > 0)
        assert sampler.reconnects <= len(ends)
        assert sampler.lost_at_most <= streams * 4 * 8 * len(ends)


def test_with_one_stream_the_order_is_that_of_the_table() -> None:
    server = MemoryServer(once())
    fill(server, range(1000))
    with client_of(server).sample("replay", 64, samples=1000, prefetch=3) as sampler:
        assert keys_of(sampler) == list(range(1000))


def test_a_table_that_is_not_there_is_told_with_those_that_are() -> None:
    client = client_of(MemoryServer(once()))
    calls = (
        lambda: client.update_priorities("nowhere", [1], 1.0),
        lambda: client.delete("nowhere", [1]),
        lambda: client.reset("nowhere"),
    )
    for call in calls:
        with pytest.raises(ConfigError, match=r'^the server has no table "nowhere"; it has replay$'):
            call()


def test_one_sample_has_no_axis_of_a_batch() -> None:
    server = MemoryServer(once())
    fill(server, [5, 6])
    data, info = client_of(server).sample_one("replay")
    assert (int(data["x"]), int(info.key)) == (5, 5)
    assert server.server_info().tables["replay"].rate_limiter.samples == 1


# What is taken ahead.


@pytest.mark.parametrize(("prefetch", "streams"), [(1, 1), (3, 1), (4, 2)])
def test_no_more_is_taken_ahead_than_is_said(prefetch: int, streams: int) -> None:
    server = MemoryServer(table())
    fill(server, [7])
    most = 10 * prefetch * streams
    with client_of(server).sample("replay", 10, prefetch=prefetch, streams=streams) as sampler:
        for read in range(12):
            server.until(lambda read=read: server.tables["replay"].samples == 10 * read + most)  # type: ignore[misc]
            assert sampler.received <= 10 * read + most
            next(sampler)
        sampler.stop()
        assert sum(batch.size for batch in sampler) in range(most - 10, most + 1)


def test_of_tables_whose_items_leave_one_batch_is_taken_ahead() -> None:
    server = MemoryServer(once("once"), table("keep"))
    fill(server, range(100), "once")
    fill(server, range(100), "keep")
    for name, ahead in (("once", 10), ("keep", 40)):
        with client_of(server).sample(name, 10):
            server.until(lambda name=name, ahead=ahead: server.tables[name].samples == ahead)  # type: ignore[misc]


def test_a_server_that_is_behind_is_asked_for_several_batches_at_once() -> None:
    server = MemoryServer(once())
    with client_of(server).sample("replay", 10, prefetch=4, samples=100) as sampler:
        fill(server, range(100))
        assert len(list(sampler)) == 10
    (stream,) = server.sampled
    assert stream.requests[0].samples == 40
    assert sum(request.samples for request in stream.requests) == 100
    assert len(stream.requests) < 10


# Ends without an error.


@pytest.mark.parametrize("streams", [1, 3])
def test_when_nothing_comes_any_more_the_rest_is_a_last_batch_and_iterating_goes_on_later(streams: int) -> None:
    server = MemoryServer(once())
    fill(server, range(25))
    with client_of(server).sample("replay", 10, end_after_seconds=0.3, streams=streams) as sampler:
        first = list(sampler)
        assert [batch.size for batch in first] == [10, 10, 5]
        assert list(sampler) == []
        fill(server, range(25, 60))
        second = list(sampler)
        assert [batch.size for batch in second] == [10, 10, 10, 5]
        assert sorted(keys_of([*first, *second])) == list(range(60))


def test_without_short_batches_the_rest_stays_for_later() -> None:
    server = MemoryServer(once())
    fill(server, range(5))
    with client_of(server).sample("replay", 10, end_after_seconds=0.3, drop_last=True) as sampler:
        assert list(sampler) == []
        fill(server, range(5, 10))
        assert keys_of(sampler) == list(range(10))


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_after_a_rest_batches_are_whole_again(prefetch: int) -> None:
    server = MemoryServer(once())
    with client_of(server).sample("replay", 10, end_after_seconds=0.3, prefetch=prefetch) as sampler:
        start = 0
        for count in (3, 17, 9, 31, 1):
            fill(server, range(start, start + count))
            assert keys_of(sampler) == list(range(start, start + count))
            start += count


# Waits.


def test_the_default_outlasts_two_connections_that_are_dead_without_a_sign() -> None:
    first = server_queue._DEADLINES.silence * server_queue._LONGER_SILENCE
    assert SampleOptions().timeout_seconds == GIVE_UP_SECONDS > first + 2 * first


def test_an_end_takes_the_place_of_the_default_error() -> None:
    assert SampleOptions(end_after_seconds=1.0).timeout_seconds is None
    assert SampleOptions(timeout_seconds=None).timeout_seconds is None
    with pytest.raises(ConfigError, match="give one of them"):
        SampleOptions(timeout_seconds=2.0, end_after_seconds=1.0)


def test_a_wait_that_is_too_long_is_an_error_that_names_the_limiter_and_iterating_goes_on_after_it() -> None:
    server = MemoryServer(once(min_size_to_sample=4))
    fill(server, range(3))
    with client_of(server).sample("replay", 4, timeout_seconds=0.05) as sampler:
        with pytest.raises(
            Stalled, match=r'server memory, table "replay": no batch within 0\.05 s .*sampling waits for 1 more insert'
        ) as error:
            next(sampler)
        assert "(0 samples of 4 came)" in str(error.value)
        assert error.value.retryable
        fill(server, [3])
        with pytest.raises(Stalled, match=r"\(1 sample of 4 came\)"):
            next(sampler)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "sampling waits for 1 more insert"),
        ({"min_size_to_sample": 1000}, "sampling waits for 998 more inserts"),
        ({"samples_per_insert": 1.0, "min_diff": 0.0}, "sampling waits for 1 more insert"),
        ({"samples_per_insert": 0.0, "min_diff": 0.0}, "sampling waits for ever: no number of inserts is enough"),
    ],
)
def test_what_a_limiter_waits_for_is_said_whatever_limiter_it_is(limits: dict[str, Any], words: str) -> None:
    server = MemoryServer(once(**limits))
    fill(server, [1, 2])
    with client_of(server).sample("replay", 10, timeout_seconds=0.05) as sampler:
        with pytest.raises(Stalled, match=words):
            list(sampler)
    with pytest.raises(Stalled, match='table "replay"'):
        client_of(server).sample_one("replay", timeout_seconds=0.02)


def test_the_reason_of_a_wait_is_told_and_its_end() -> None:
    server = MemoryServer(once())
    told: list[Reason] = []

    def listen(reason: Reason) -> None:
        told.append(reason)
        if len(told) == 3:
            fill(server, range(10))

    with client_of(server).sample("replay", 10, samples=10, on_wait=listen, streams=3) as sampler:
        assert len(list(sampler)) == 1
    assert all(reason.held_by == ("replay",) and "1 more insert" in reason.text for reason in told[:3])
    assert told[-1] == Reason()
    assert told.count(Reason()) == 1


def test_nobody_is_told_of_short_waits() -> None:
    server = MemoryServer(table())
    fill(server, [1])
    told: list[Reason] = []
    with client_of(server).sample("replay", 10, samples=500, on_wait=told.append) as sampler:
        assert len(list(sampler)) == 50
    assert Reason() not in told[:1]


def test_without_a_listener_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    server = MemoryServer(once())
    with client_of(server).sample("replay", 10, samples=10) as sampler:
        waiting = threading.Thread(target=lambda: list(sampler))
        waiting.start()
        wait_until(lambda: "waiting for samples" in caplog.text, PATIENCE_SECONDS)
        fill(server, range(10))
        waiting.join(PATIENCE_SECONDS)
    first, last = caplog.messages
    assert first.startswith('table "replay": waiting for samples: table "replay": sampling waits for 1 more insert')
    assert last == 'table "replay": samples come again'


# Several threads, and ends from outside.


@pytest.mark.parametrize("streams", [1, 3])
def test_several_threads_share_the_batches(streams: int) -> None:
    server = MemoryServer(once())
    fill(server, range(503))
    with client_of(server).sample("replay", 10, samples=503, streams=streams) as sampler, ThreadPoolExecutor(4) as pool:
        shares = [future.result(PATIENCE_SECONDS) for future in [pool.submit(lambda: list(sampler)) for _ in range(4)]]
    assert sorted(keys_of(itertools.chain(*shares))) == list(range(503))


@pytest.mark.parametrize("threads", [1, 3])
def test_closing_ends_those_who_wait(threads: int) -> None:
    server = MemoryServer(once())
    with ThreadPoolExecutor(threads) as pool:
        waits = threading.Event()
        sampler = client_of(server).sample("replay", 10, on_wait=lambda _: waits.set())
        waiting = [pool.submit(lambda: list(sampler)) for _ in range(threads)]
        assert waits.wait(PATIENCE_SECONDS)
        sampler.close()
        assert [future.result(PATIENCE_SECONDS) for future in waiting] == [[]] * threads
    assert list(sampler) == []
    sampler.close()


def test_two_samplers_on_one_client_know_nothing_of_each_other() -> None:
    server = MemoryServer(once("a"), table("b"))
    fill(server, range(20), "a")
    fill(server, [7], "b")
    client = client_of(server)
    with client.sample("a", 10, samples=20) as first, client.sample("b", 5) as second:
        assert keys_of([next(second), next(first), next(second), next(first)]) == [7] * 5 + [*range(10)] + [7] * 5 + [
            *range(10, 20)
        ]
        second.close()
        assert list(first) == []


def test_a_sampler_that_is_dropped_ends_its_threads() -> None:
    server = MemoryServer(table())
    fill(server, [7])
    for _ in client_of(server).sample("replay", 10, streams=3):
        break
    gc.collect()
    wait_until(lambda: not our_threads(), PATIENCE_SECONDS, our_threads)


def test_a_closed_client_ends_its_samplers_with_an_error() -> None:
    server = MemoryServer(once())
    client = client_of(server)
    with client.sample("replay", 10, on_wait=lambda _: client.close()) as sampler:
        with pytest.raises(TransportError, match="no call can be made"):
            next(sampler)


def test_in_a_forked_process_a_sampler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryServer(table())
    fill(server, [7])
    with client_of(server).sample("replay", 10) as sampler:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(TransportError, match="before the process was forked"):
                next(sampler)
            sampler.close()  # does nothing there
        assert next(sampler).size == 10


@pytest.mark.parametrize("use", ["stop", "drain", "received", "reconnects", "restarts", "lost_at_most"])
def test_in_a_forked_process_nothing_waits_for_a_lock_that_nobody_gives_back(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(once())
    fill(server, range(100))
    sampler = client_of(server).sample("replay", 10)
    server.until(lambda: server.tables["replay"].samples == 10)
    held, done = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        holding = pool.submit(_hold, cast(Any, sampler._queue)._only._queue._changed, held, done)
        assert held.wait(PATIENCE_SECONDS)
        patch.setattr(os, "getpid", lambda: -1)
        try:
            with pytest.raises(TransportError, match="before the process was forked"):
                list(sampler.drain()) if use == "drain" else sampler.stop() if use == "stop" else getattr(sampler, use)
        finally:
            done.set()
            holding.result(PATIENCE_SECONDS)
    assert keys_of(sampler.drain()) == list(range(10))


def _hold(changed: threading.Condition, held: threading.Event, done: threading.Event) -> None:
    with changed:
        held.set()
        done.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("slices", [None, SliceSpec(1)])
def test_in_a_forked_process_a_drain_that_began_gives_no_more(
    slices: SliceSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(STEPS, episodes_of([1] * 20), sampler="fifo", max_times_sampled=1)
    sampler = client_of(server).sample("replay", 5, prefetch=4, slices=slices)
    server.until(lambda: server.tables["replay"].samples == 20)
    drained = sampler.drain()
    next(drained)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(TransportError, match="before the process was forked"):
            list(drained)
    sampler.close()


# Draining.


@given(read=st.integers(0, 5), prefetch=st.integers(1, 4), streams=st.integers(1, 3), batch_size=st.integers(1, 9))
def test_a_drained_sampler_has_lost_nothing(read: int, prefetch: int, streams: int, batch_size: int) -> None:
    server = MemoryServer(once())
    fill(server, range(300))
    sampler = client_of(server).sample("replay", batch_size, prefetch=prefetch, streams=streams)
    before = [next(sampler) for _ in range(read)]
    after = list(sampler.drain())
    keys = keys_of([*before, *after])
    assert sampler.lost_at_most == 0
    assert len(set(keys)) == len(keys)
    assert {*keys, *server.tables["replay"].items} == set(range(300))
    assert len(keys) + len(server.tables["replay"].items) == 300


def test_a_drained_table_that_runs_empty_gives_all_it_had() -> None:
    server = MemoryServer(once())
    fill(server, range(25))
    sampler = client_of(server).sample("replay", 10, prefetch=4)
    server.until(lambda: server.tables["replay"].samples == 25)
    assert keys_of(sampler.drain(quiet_seconds=0.05)) == list(range(25))
    assert sampler.lost_at_most == 15  # asked for, and perhaps taken later
    assert list(sampler) == []


def test_drain_hands_out_the_short_batch_with_drop_last_too() -> None:
    server = MemoryServer(once())
    fill(server, range(6))
    sampler = client_of(server).sample("replay", 4, prefetch=2, drop_last=True)
    server.until(lambda: server.tables["replay"].samples == 6)
    assert keys_of(sampler.drain(quiet_seconds=0.05)) == list(range(6))
    assert sampler.lost_at_most == 2  # asked for, and perhaps taken later


def test_a_short_batch_that_is_dropped_counts_as_lost() -> None:
    server = MemoryServer(once())
    fill(server, range(6))
    with client_of(server).sample("replay", 4, samples=6, drop_last=True) as sampler:
        assert keys_of(sampler) == list(range(4))
    assert sampler.lost_at_most == 2


def test_a_sampler_that_is_closed_tells_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    server = MemoryServer(once())
    fill(server, range(100))
    sampler = client_of(server).sample("replay", 10, prefetch=3)
    server.until(lambda: server.tables["replay"].samples == 30)
    wait_until(lambda: sampler.received == 30)
    sampler.close()
    assert sampler.lost_at_most == 30
    assert "closed with 30 samples that came and were not read" in caplog.text


def test_what_came_before_a_failure_is_handed_out_before_it() -> None:
    server = MemoryServer(once())
    fill(server, range(25))
    server.sample_plans.append(SamplePlan(samples=25, status="PERMISSION_DENIED"))
    sampler = client_of(server).sample("replay", 10, prefetch=3)
    assert keys_of([next(sampler), next(sampler)]) == list(range(20))
    with pytest.raises(TransportError, match="PERMISSION_DENIED"):
        next(sampler)
    drained = sampler.drain()
    assert keys_of([next(drained)]) == list(range(20, 25))
    with pytest.raises(TransportError, match="PERMISSION_DENIED"):
        next(drained)
