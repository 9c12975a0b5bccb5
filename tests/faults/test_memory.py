"""The client's memory stays flat, however much it pushes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.push.sender import QUEUE_BYTES
from rlds2reverb.wire.session import SessionWindow
from tests.support.faults.memory import stream_bytes
from tests.support.forks import Forks
from tests.support.processes import started

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

MAX_SIZE = 10_000
MOST_GROWTH_BYTES = QUEUE_BYTES + SessionWindow().bytes + (16 << 20)
"""What waits to be sent or confirmed may fill up when the server is slow; the rest is the allocator's."""


def test_the_clients_memory_does_not_grow_with_the_push(forks: Forks, tmp_path: Path) -> None:
    with forks.embedded([TableConfig("bounded", max_size=MAX_SIZE)]) as server:
        with started(tmp_path, "-m", "tests.support.faults.memory", server.address, "bounded") as pusher:
            code, output, errors = pusher.result(200)
        assert code == 0, errors
        with rlds2reverb.connect(server.address) as client:
            assert client.server_info().tables["bounded"].current_size == MAX_SIZE
    told = json.loads(output)
    assert stream_bytes() > 1.5 * MOST_GROWTH_BYTES  # a push that kept its data would be seen
    assert told["steps"] == 500_000
    assert told["items"] == 500 * 999
    assert told["grown_bytes"] < MOST_GROWTH_BYTES
