"""SIGKILL at random moments while checkpoints are written one after the other: it always starts, from a valid generation."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server.running import free_port

pytest.importorskip("reverb")

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(600)]

KILLS = 200
READY_SECONDS = 60.0
MOST_SECONDS_ALIVE = 0.4
PROGRAM = Path(__file__).parent / "forked_service.py"


class Servers:
    """One process that forks servers; each is killed by `kill`."""

    def __init__(self, folder: Path) -> None:
        self.http, self.folder = free_port(), folder / "checkpoints"
        config = folder / "server.yaml"
        document = {
            "tables": [{"name": "t", "max_size": 2000}],
            "grpc": {"port": free_port()},
            "http": {"port": self.http},
            "checkpoints": {"folder": str(self.folder), "every_seconds": 0.01, "keep": 2},
        }
        config.write_text(yaml.safe_dump(document))
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        self._child = 0

    def start(self) -> dict[str, Any]:
        """A new server; its status when it is ready."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        self._child = int(self.process.stdout.readline())
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/status.json", timeout=5) as answer:
                    status: dict[str, Any] = json.load(answer)
            except OSError:
                status = {"server": {"state": "starting"}}
            if status["server"]["state"] == "ready" and status["tables"]:
                return status
            time.sleep(0.005)
        raise AssertionError(f"no start:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._child = 0

    def close(self) -> None:
        self.kill()
        self.process.communicate(timeout=60)  # closes its input, upon which it ends


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


def newest(folder: Path) -> tuple[str, dict[str, int]] | None:
    """Name and items of the newest generation that stands under its final name."""
    kept = folder / "generations"
    names = sorted(path.name for path in kept.iterdir() if path.name.isdecimal()) if kept.is_dir() else []
    if not names:
        return None
    return names[-1], json.loads((kept / names[-1] / "MANIFEST.json").read_text())["items"]


def test_two_hundred_kills_cost_no_start_and_no_generation(servers: Servers) -> None:
    rng = random.Random(8)
    interrupted = 0
    for _ in range(KILLS):
        expected = newest(servers.folder)
        status = servers.start()
        restored = {one["name"]: one["restored"] for one in status["tables"]}
        if expected is None:
            assert restored == {"t": 0}
        else:
            assert restored == expected[1]
        time.sleep(rng.uniform(0, MOST_SECONDS_ALIVE))  # the moment of the kill, not a wait for a condition
        servers.kill()
        partial = [path for path in (servers.folder / "generations").iterdir() if not path.name.isdecimal()]
        interrupted += bool(partial or any((servers.folder / "reverb").iterdir()))
    assert not list((servers.folder / "set_aside").iterdir())  # none was ever broken
    name, items = newest(servers.folder)
    assert int(name) >= KILLS / 4
    assert items["t"] > 0
    assert interrupted >= KILLS / 10  # the kills did hit checkpoints in the making
