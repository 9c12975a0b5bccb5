"""The client's memory stays flat, however much it pushes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_server import TableConfig

import rlds2reverb
from tests.processes import started
from tests.server.forks import Forks

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

MAX_SIZE = 10_000
MOST_GROWTH_BYTES = 40 << 20
"""Less than the 450,000 steps measured: 46 MB of columns, and half as much again on the wire. Queues may fill up."""


def test_the_clients_memory_does_not_grow_with_the_push(forks: Forks, tmp_path: Path) -> None:
    with forks.embedded([TableConfig("bounded", max_size=MAX_SIZE)]) as server:
        with started(tmp_path, "-m", "tests.faults.memory", server.address, "bounded") as pusher:
            code, output, errors = pusher.result(200)
        assert code == 0, errors
        with rlds2reverb.connect(server.address) as client:
            assert client.server_info().tables["bounded"].current_size == MAX_SIZE
    told = json.loads(output)
    assert told["steps"] == 500_000
    assert told["items"] == 500 * 999
    assert told["grown_bytes"] < MOST_GROWTH_BYTES
