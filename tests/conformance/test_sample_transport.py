"""The contract of sample streams, over gRPC with a real Reverb server: what the server in memory does is true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rlds2reverb.transport.grpc import GrpcTransport
from tests.support.contract.samples import TABLES, SampleContract
from tests.support.forks import Embedded, Forks

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]


class RealWorld:
    """A real server whose tables are empty."""

    def __init__(self, address: str) -> None:
        self.transport = GrpcTransport(address)
        for name in TABLES:
            self.transport.reset(name)


def config(name: str, sampler: str, max_times_sampled: int = 0, min_size: int = 1) -> Any:
    from replay_server import TableConfig
    from replay_server.tables import MinSize

    kind: Any
    kind, _, exponent = sampler.rstrip(")").partition("(")
    more: dict[str, Any] = {"priority_exponent": float(exponent)} if exponent else {}
    return TableConfig(
        name, sampler=kind, max_size=1000, max_times_sampled=max_times_sampled, rate_limiter=MinSize(min_size), **more
    )


@pytest.fixture(scope="module")
def sampled_server(forks: Forks) -> Iterator[Embedded]:
    with forks.embedded([config(name, **settings) for name, settings in TABLES.items()]) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def world(sampled_server: Embedded) -> Iterator[RealWorld]:
    opened = RealWorld(sampled_server.address)
    yield opened
    opened.transport.close()


class TestContract(SampleContract):
    pass
