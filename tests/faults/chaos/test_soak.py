"""Pushing, sampling and saving without a pause: the memory of the service and of the pusher stays flat."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from statistics import median

import pytest
import reverb

from tests.support.forks import Forks
from tests.support.processes import started, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

SECONDS = 600
SAMPLE_SECONDS = 0.5
MAX_SIZE = 20_000
MOST_GROWTH = 1.15
"""The last quarter's memory against the second quarter's. A leak of one item in ten would add a multiple of the table."""
WARM_UP_BYTES = 32 * 2**20
"""What an allocator may still take in a short run: a pusher's heap grows from 96 to 121 MB in its first 90 seconds, and then
no more. A leak of one item in ten adds 70 MB within the half minute that the shortest run compares."""


def test_the_memory_of_service_and_pusher_stays_flat(forks: Forks, tmp_path: Path, size: float) -> None:
    config = {
        "tables": [{"name": "bounded", "max_size": MAX_SIZE}],
        "checkpoints": {"folder": str(tmp_path / "checkpoints"), "every_seconds": 3.0, "keep": 2},
    }
    service = forks.start(config)
    with started(tmp_path, "-m", "tests.faults.chaos.soaker", service.address, "bounded") as pusher:
        client = reverb.Client(service.address)
        wait_until(lambda: client.server_info()["bounded"].current_size == MAX_SIZE)
        measured = _memory({"service": service.pid, "pusher": pusher.pid}, service.address, SECONDS * size)
        assert pusher.poll() is None, pusher.errors
    assert forks.end(service, signal.SIGTERM) == 0
    for name, resident in measured.items():
        quarter = len(resident) // 4
        early, late = median(resident[quarter : 2 * quarter]), median(resident[-quarter:])
        print(f"{name}: {early / 2**20:.0f} MB, later {late / 2**20:.0f} MB, {len(resident)} samples")
        print(f"{name}, over time: {[value // 2**20 for value in resident[:: len(resident) // 20 + 1]]}")
        assert late < MOST_GROWTH * early + WARM_UP_BYTES


def _memory(pids: dict[str, int], address: str, seconds: float) -> dict[str, list[int]]:
    """Resident bytes of each process, twice per second, while items are sampled."""
    client, end = reverb.Client(address), time.monotonic() + seconds
    measured: dict[str, list[int]] = {name: [] for name in pids}
    while time.monotonic() < end:
        until = time.monotonic() + SAMPLE_SECONDS
        while time.monotonic() < until:
            list(client.sample("bounded", 100))
        for name, pid in pids.items():
            measured[name].append(_resident_bytes(pid))
    return measured


def _resident_bytes(pid: int) -> int:
    """Source: proc(5), status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has ended")
