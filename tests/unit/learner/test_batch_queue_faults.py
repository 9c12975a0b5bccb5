"""What happens to a sampler of several servers when one is lost, when it is stopped or closed, and how much it takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rlds2reverb import Client
from rlds2reverb.errors import ServerUnreachable, TransportError
from rlds2reverb.learner.batch_queue import ServerPart
from rlds2reverb.learner.sampler import Sampler
from rlds2reverb.testing import MemoryServer, MemoryTransport, SamplePlan
from rlds2reverb.wire.messages import ServerInfo
from tests.support.learner.reading import next_of
from tests.support.learner.tables import PATIENCE_SECONDS, fill, keys_of, once, our_threads, table


def filled(*keys: int, plain: bool = False) -> MemoryServer:
    server = MemoryServer(replace(table() if plain else once(), max_size=10_000))
    fill(server, keys)
    return server


@contextmanager
def group_of(*servers: MemoryServer, **options: Any) -> Iterator[Client]:
    transports = [MemoryTransport(server, f"{chr(97 + number)}:8000") for number, server in enumerate(servers)]
    with Client(transports, **options) as group:
        yield group


def taken_of(*servers: MemoryServer) -> int:
    return sum(server.server_info().tables["replay"].rate_limiter.samples for server in servers)


def go_away(server: MemoryServer) -> None:
    """Breaks all streams, and lets none begin again."""
    with server.changed:
        server.is_away = True
        server.sample_plans.extend(SamplePlan(samples=0, status="UNAVAILABLE") for _ in range(1000))
        server.break_streams()


def await_received(sampler: Sampler, count: int) -> None:
    end = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.01)):
        if sampler.received >= count:
            return
        end.wait(0.01)
    raise AssertionError(f"{sampler.received} samples came, expected {count}")


# A server that is lost.


def test_what_a_lost_server_had_sent_is_handed_out_and_the_others_go_on() -> None:
    """The first server sends 3 of a batch of 8, and goes: they come, and so do all of the second."""
    one, two = filled(*range(3)), filled(*range(100, 200))
    with (
        group_of(one, two, allow_missing=True, ask_seconds=1e-9) as group,
        group.sample("replay", 16, end_after_seconds=0.5, reconnect_seconds=0.1) as sampler,
    ):
        assert sampler._queue._parts[0]._open() is not None
        await_received(sampler, 3)
        go_away(one)
        keys = keys_of(sampler)
        assert sampler.received == 103
    assert sorted(keys) == [*range(3), *range(100, 200)]


# How much is taken.


@pytest.mark.parametrize("prefetch", [None, 4])
@pytest.mark.parametrize("samples", [1, 8, 37])
def test_no_more_samples_are_taken_than_are_asked_for(samples: int, prefetch: int | None) -> None:
    one, two = filled(*range(40)), filled(*range(100, 160))
    with group_of(one, two) as group:
        keys = keys_of(group.sample("replay", 8, samples=samples, prefetch=prefetch))
    assert len(set(keys)) == len(keys) == samples
    assert taken_of(one, two) == samples


def test_one_sample_at_a_time_takes_one() -> None:
    one, two = filled(*range(40), plain=True), filled(*range(100, 160), plain=True)
    with group_of(one, two) as group:
        for _ in range(20):
            group.sample_one("replay")
        assert taken_of(one, two) == 20


def test_all_samples_read_its_threads_are_gone() -> None:
    before = our_threads()
    with group_of(filled(*range(40)), filled(*range(100, 160))) as group:
        sampler = group.sample("replay", 8, samples=20)
        assert [batch.size for batch in sampler] == [8, 8, 4]
        assert our_threads() == before
        assert sampler.lost_at_most == 0


def test_drop_last_takes_no_part_of_a_batch() -> None:
    one, two = filled(*range(40)), filled(*range(100, 160))
    with group_of(one, two) as group:
        assert [batch.size for batch in group.sample("replay", 8, samples=20, drop_last=True)] == [8, 8]
    assert taken_of(one, two) == 16


# Ends.


def test_a_soft_end_keeps_what_is_no_whole_batch() -> None:
    one, two = filled(1, 2, 3), filled(4, 5, 6)
    with (
        group_of(one, two, ask_seconds=1e-9) as group,
        group.sample("replay", 4, drop_last=True, end_after_seconds=0.3) as sampler,
    ):
        batches = list(sampler)
        fill(one, [7, 8])
        for _ in range(20):  # ends, of which the last of those that are needed brings the rest
            batches += list(sampler) if len(batches) < 2 else []
        assert [batch.size for batch in batches] == [4, 4]
        assert sorted(keys_of(batches)) == [*range(1, 9)]


def test_after_a_stop_comes_what_was_asked_for_and_nothing_else() -> None:
    servers = [filled(*range(first, first + 60)) for first in (0, 100)]
    with group_of(*servers) as group, group.sample("replay", 10) as sampler:
        keys = [key for _ in range(3) for key in next_of(sampler).info.key.tolist()]
        sampler.stop()
        keys += keys_of(sampler)
        assert sampler.lost_at_most == 0
        assert sampler.next_batch() is None
    left = [int(key) for server in servers for key in server.tables["replay"].items]
    assert sorted(keys + left) == [*range(60), *range(100, 160)]


def test_a_sampler_that_waits_is_closed_by_another_thread() -> None:
    before = our_threads()
    with group_of(filled(), filled()) as group:
        sampler = group.sample("replay", 4)
        found: list[object] = []
        reader = threading.Thread(target=lambda: found.append(sampler.next_batch()))
        reader.start()
        sampler.close()
        reader.join(PATIENCE_SECONDS)
        assert found == [None]
        assert sampler.next_batch() is None
    assert our_threads() == before


def test_a_server_that_fails_while_it_is_drained_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = filled(*range(60)), filled(*range(100, 160))
    plain = ServerPart.drain

    def drain(self: ServerPart, quiet_seconds: float) -> Iterator[Any]:
        if self.server.number == 0:
            raise TransportError("a:8000: gone")
        yield from plain(self, quiet_seconds)

    with group_of(one, two) as group:
        sampler = group.sample("replay", 10)
        keys = [key for _ in range(3) for key in next_of(sampler).info.key.tolist()]
        monkeypatch.setattr(ServerPart, "drain", drain)
        with pytest.raises(TransportError, match="a:8000: gone"):
            for batch in sampler.drain(0.2):
                keys += batch.info.key.tolist()
    left = list(two.tables["replay"].items)
    assert sorted([key for key in keys if key >= 100] + left) == [*range(100, 160)]


def test_draining_passes_over_a_server_that_may_be_missing() -> None:
    one, two = filled(*range(60)), filled(*range(100, 160))
    with group_of(one, two, allow_missing=True) as group:
        sampler = group.sample("replay", 10, reconnect_seconds=0.1)
        next_of(sampler)
        go_away(one)
        keys_of(sampler.drain(0.5))
        assert group.missing in ((), ("a:8000",))  # found out only where something was still asked for


def test_reconnects_add_up() -> None:
    one, two = filled(*range(50), plain=True), filled(*range(100, 150), plain=True)
    with group_of(one, two) as group, group.sample("replay", 16) as sampler:
        next_of(sampler)
        assert (sampler.reconnects, sampler.restarts) == (0, 0)
        one.break_streams()
        for _ in range(30):
            next_of(sampler)
        assert sampler.reconnects == 1


# Servers that give no answer.


class Slow(MemoryTransport):
    """Asks meet at a barrier: none is answered before so many are asked."""

    barrier: threading.Barrier | None = None
    asked = 0

    def server_info(self, at_once: bool = False) -> ServerInfo:
        self.asked += 1
        if self.barrier is not None:
            self.barrier.wait(PATIENCE_SECONDS)
        return super().server_info(at_once)


def test_all_servers_are_asked_at_once() -> None:
    servers = [filled(number) for number in range(3)]
    transports = [Slow(server, f"{number}:1") for number, server in enumerate(servers)]
    barrier = threading.Barrier(3)
    with Client(transports) as group:
        for transport in transports:
            transport.barrier = barrier
        assert list(group.servers()) == ["0:1", "1:1", "2:1"]  # one after the other, the barrier would break


def test_a_server_that_is_known_to_be_missing_is_not_waited_for() -> None:
    servers = [filled(number) for number in range(3)]
    transports = [Slow(server, f"{number}:1") for number, server in enumerate(servers)]
    with Client(transports, allow_missing=True) as group:
        servers[1].is_away = True
        assert list(group.servers()) == ["0:1", "2:1"]
        asked = transports[1].asked
        for _ in range(3):
            assert list(group.servers()) == ["0:1", "2:1"]
            group.update_priorities("replay", [0, 1, 2], 2.0)
        assert transports[1].asked == asked
        servers[1].is_away = False
        assert list(group.servers()) == ["0:1", "1:1", "2:1"]
        assert group.missing == ()


def test_servers_that_were_found_missing_are_so_from_the_beginning() -> None:
    servers = [filled(1), filled(2)]
    transports = [Slow(server, f"{number}:1") for number, server in enumerate(servers)]
    lost = ServerUnreachable("gone")
    with Client(transports, True, missing={1: lost}) as group:
        assert group.missing == ("1:1",)
    with pytest.raises(ServerUnreachable, match="1:1: gone"):
        Client(transports, False, missing={1: lost})
    with pytest.raises(ServerUnreachable, match="no server of 0:1, 1:1 can be reached"):
        Client(transports, True, missing={0: lost, 1: lost})
