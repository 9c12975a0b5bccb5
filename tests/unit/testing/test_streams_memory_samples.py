"""Sample streams of the server in memory: the contract, and the faults that it plays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import TransportError
from rlds2reverb.testing import FREE_LIMITER, MemoryServer, MemoryTransport, SamplePlan, table_info
from rlds2reverb.transport.base import Transport
from rlds2reverb.wire.messages import TableInfo
from tests.support.contract.samples import ONCE, TABLES, SampleContract, put, request, sampling
from tests.support.contract.transport import Feed


def table(name: str, sampler: str, max_times_sampled: int = 0, min_size: int = 1) -> TableInfo:
    limiter = replace(FREE_LIMITER, min_size_to_sample=min_size)
    return replace(table_info(name, sampler=sampler, rate_limiter=limiter), max_times_sampled=max_times_sampled)


class MemoryWorld:
    """A server in memory."""

    def __init__(self) -> None:
        self.server = MemoryServer(*(table(name, **settings) for name, settings in _settings()))
        self.transport: Transport = MemoryTransport(self.server)


def _settings() -> list[tuple[str, Any]]:
    return list(TABLES.items())


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


class TestContract(SampleContract):
    pass


@pytest.mark.parametrize(("status", "is_retryable"), [("UNAVAILABLE", True), ("PERMISSION_DENIED", False)])
def test_streams_that_are_open_are_broken_and_later_ones_go_well(
    world: MemoryWorld, status: str, is_retryable: bool
) -> None:
    put(world, "fifo", 1)
    with sampling(world.transport, request("fifo", 2)) as reader:
        assert reader.keys(2) == [1, 1]
        world.server.break_streams(status)
        with pytest.raises(TransportError, match=f"sampling: {status}: as planned") as error:
            reader.to_the_end()
    assert error.value.retryable == is_retryable
    with sampling(world.transport, request("fifo", 2), None) as reader:
        assert reader.to_the_end() == 2


def test_silent_streams_take_nothing(world: MemoryWorld) -> None:
    put(world, ONCE, 1, 2)
    with sampling(world.transport, request(ONCE, 1)) as reader:
        assert reader.keys(1) == [1]
        world.server.silence_streams()
        reader.feed.give(request(ONCE, 1))
        world.server.until(lambda: len(world.server.sampled[0].requests) == 2)
        with sampling(world.transport, request(ONCE, 1)) as other:
            assert other.keys(1) == [2]
        reader.stream.cancel()
        with pytest.raises(TransportError, match="CANCELLED"):
            reader.to_the_end()


def test_a_restart_breaks_them_and_leaves_the_tables_empty(world: MemoryWorld) -> None:
    put(world, ONCE, 1)
    with sampling(world.transport, request(ONCE, 2)) as reader:
        assert reader.keys(1) == [1]
        world.server.restart()
        with pytest.raises(TransportError, match="UNAVAILABLE"):
            reader.to_the_end()
    put(world, ONCE, 1)
    with sampling(world.transport, request(ONCE, 1)) as reader:
        (info,) = reader.read(1)
    assert (info.key, info.times_sampled) == (1, 1)


@pytest.mark.parametrize("status", [None, "UNAVAILABLE"])
def test_a_planned_end_comes_after_so_many_samples(world: MemoryWorld, status: str | None) -> None:
    put(world, "fifo", 1)
    world.server.sample_plans.append(SamplePlan(samples=5, status=status, at_once=3))
    with sampling(world.transport, request("fifo", 100)) as reader:
        assert len(reader.read(5)) == 5
        if status is None:
            assert reader.to_the_end() == 0
        else:
            with pytest.raises(TransportError, match=status):
                reader.to_the_end()
    assert len(world.server.sampled[0].sent) == 5


def test_a_stream_falls_silent_after_so_many_samples(world: MemoryWorld) -> None:
    put(world, "fifo", 1)
    world.server.sample_plans.append(SamplePlan(silent_after=5))
    with sampling(world.transport, request("fifo", 100)) as reader:
        assert len(reader.read(5)) == 5
        assert world.server.server_info().tables["fifo"].rate_limiter.samples == 5


def test_it_can_be_told_what_to_answer(world: MemoryWorld) -> None:
    put(world, "fifo", 1)
    world.server.sample_plans.append(SamplePlan(response=b"nonsense"))
    stream = world.transport.sample_stream(iter(Feed(request("fifo", 1), None)))
    assert next(iter(stream)) == b"nonsense"
    stream.end()


def test_bytes_that_are_no_request_are_refused(world: MemoryWorld) -> None:
    with pytest.raises(TransportError, match="sampling: INTERNAL"):
        list(world.transport.sample_stream(iter(Feed(b"\xff\xff", None))))


def test_priorities_of_items_that_are_gone_are_not_looked_at(world: MemoryWorld) -> None:
    world.transport.update_priorities(ONCE, np.array([1], np.uint64), np.array([-1.0]))
