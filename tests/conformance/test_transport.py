"""The contract of transports, over gRPC with a real Reverb server: what the server in memory does is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from replay_server import EmbeddedServer, TableConfig
from replay_server.tables import Queue

from rlds2reverb.transport.grpc import GrpcTransport
from tests.support.contract.transport import NARROW, PLAIN, REMOVERS, TransportContract

reverb = pytest.importorskip("reverb")

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

TABLES = [
    TableConfig(PLAIN, sampler="fifo", max_size=100, max_times_sampled=1),
    TableConfig(NARROW, sampler="fifo", max_size=100, max_times_sampled=1, rate_limiter=Queue(size=2)),
    *(TableConfig(name, sampler="fifo", remover=cast(Any, name), max_size=3, max_times_sampled=1) for name in REMOVERS),
]


class RealWorld:
    """A real server whose tables are empty."""

    def __init__(self, address: str) -> None:
        self.transport = GrpcTransport(address)
        self._learner = reverb.Client(address)
        for table in TABLES:
            self._learner.reset(table.name)

    def sample(self, table: str) -> int:
        (sample,) = self._learner.sample(table, 1, emit_timesteps=False)
        return int(sample.info.key)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(TABLES) as running:
        yield running


@pytest.fixture
def world(server: EmbeddedServer) -> Iterator[RealWorld]:
    opened = RealWorld(server.address)
    yield opened
    opened.transport.close()


class TestContract(TransportContract):
    pass
