"""Workers of a push are killed at random after something in them has forked: the driver ends, and every item is there once."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.faults.chaos.forking import EPISODES, STEPS
from tests.support.faults import tools
from tests.support.forks import Forks
from tests.support.gated import is_running
from tests.support.processes import Process, started, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

KILLS = 60
PUSH_SECONDS = 300.0
"""Bound of a push; only a driver that hangs takes so long."""

TABLE = "one"
WORKERS_LOST = "WorkersLost"


def test_workers_that_forked_are_killed_and_every_item_is_there_once(
    forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float
) -> None:
    tables = [{"name": TABLE, "sampler": "fifo", "max_times_sampled": 1}]
    checkpoints = {"folder": str(tmp_path / "checkpoints"), "every_seconds": None}
    service = forks.start({"tables": tables, "checkpoints": checkpoints})
    kills = parts_again = lives = 0
    while kills < KILLS * size:  # each time around, the table is filled, and emptied again
        lives += 1
        folder = tmp_path / f"life-{lives}"
        (folder / "forks").mkdir(parents=True)
        is_done = False
        while not is_done:
            with _pusher(service.address, folder) as pusher:
                kills += _kill_some(pusher, folder / "forks", rng)
                code, output, errors = pusher.result(PUSH_SECONDS)
            _await_end_of_forks(folder / "forks")
            is_done = code == 0
            assert is_done or WORKERS_LOST in errors, errors
            parts_again += json.loads(output)["parts_again"] if is_done else 0
        assert any((folder / "forks").iterdir()), "nothing forked, so nothing was killed"
        taken = tools.take_keys_and_items(service.address, TABLE)
        assert len({key for key, _ in taken}) == len(taken)
        items = tools.items_of(tools.make_episodes(count=EPISODES, steps=STEPS, seed=5))
        assert sorted(content for _, content in taken) == sorted(items)
    forks.end(service, signal.SIGKILL)
    print(f"kills: {kills}, parts begun anew: {parts_again}")
    assert parts_again


def _pusher(address: str, folder: Path) -> Process:
    program = "import sys; from tests.faults.chaos import forking; forking.main(*sys.argv[1:])"  # -m would make its class one of the program's own
    return started(folder, "-c", program, address, TABLE, str(folder / "forks"))


def _await_end_of_forks(folder: Path) -> None:
    def list_running() -> list[int]:
        return [fork for path in folder.iterdir() if is_running(fork := int(path.name.partition("-")[2]))]

    wait_until(lambda: not list_running(), reason=lambda: f"ended {[_describe(fork) for fork in list_running()]}")


def _describe(pid: int) -> str:
    """Tells what a process is: its name, state, parent, group and session, its command, and what it waits for in the kernel."""
    folder = Path(f"/proc/{pid}")
    try:
        stat = (folder / "stat").read_text().split(" ", 6)[:6]
        return f"{stat} {(folder / 'cmdline').read_bytes()!r} {(folder / 'wchan').read_text()}"
    except OSError as error:
        return f"{pid}: {error}"


def _kill_some(pusher: Process, folder: Path, rng: np.random.Generator) -> int:
    """Kills one in three workers that fork, some moments later, until the push has ended; how many."""
    seen: set[str] = set()
    kills = 0
    end = time.monotonic() + PUSH_SECONDS
    while pusher.poll() is None and time.monotonic() < end:
        new = {path.name for path in folder.iterdir()} - seen
        seen |= new
        for name in new:
            worker = int(name.partition("-")[0])
            if is_running(worker) and not rng.integers(3):
                time.sleep(float(rng.uniform(0, 0.02)))  # at any point of the part
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    kills += 1
        time.sleep(0.002)
    return kills
