"""The client's memory stays flat, however much it pushes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from replay_server import EmbeddedServer, TableConfig

import rlds2reverb

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(240)]

REPOSITORY = Path(__file__).parents[2]
MAX_SIZE = 10_000
MOST_GROWTH_BYTES = 40 << 20
"""Less than the 450,000 steps measured: 46 MB of columns, and half as much again on the wire. Queues may fill up."""


def test_the_clients_memory_does_not_grow_with_the_push() -> None:
    with EmbeddedServer([TableConfig("bounded", max_size=MAX_SIZE)]) as server:
        command = [sys.executable, "-m", "tests.faults.memory", server.address, "bounded"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        with rlds2reverb.connect(server.address) as client:
            assert client.server_info().tables["bounded"].current_size == MAX_SIZE
    told = json.loads(done.stdout)
    assert told["steps"] == 500_000
    assert told["items"] == 500 * 999
    assert told["grown_bytes"] < MOST_GROWTH_BYTES
