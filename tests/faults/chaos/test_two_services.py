"""Two services want one checkpoint folder: one has it, the other says whose it is, and nothing of the first is lost."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.faults.chaos.world import TABLE, World
from tests.support.forks import Forks, Running

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

ROUNDS = 60


def test_of_two_services_on_one_folder_one_serves(
    forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float
) -> None:
    others = Forks(tmp_path / "others.log")
    try:
        with World(forks, tmp_path, keep=2) as world, ThreadPoolExecutor(2) as pool:
            for _ in range(round(ROUNDS * size) or 1):
                started = list(pool.map(lambda one: _try(one, world), (forks, others)))
                [(owner, running)] = [
                    (owner, got) for owner, got in zip((forks, others), started) if isinstance(got, Running)
                ]
                [refusal] = [got for got in started if isinstance(got, str)]
                assert str(running.pid) in refusal
                assert running.sizes[TABLE] >= world.floor
                world.service, world.proxy.target = running, running.port
                if world.floor == 0 or rng.integers(3) == 0:
                    code, errors = world.finish(world.push())
                    assert code == 0, errors
                world.checkpoint(by_client=bool(rng.integers(2)))
                assert "error" in _describe(_try(others if owner is forks else forks, world))
                owner.end(running, signal.SIGKILL if rng.integers(2) else signal.SIGTERM)
                world.service = None
            world.start()
            world.assert_complete(with_ledger=False)
    finally:
        others.close()


def _try(forks: Forks, world: World) -> Running | str:
    """The service, or why there is none."""
    try:
        return forks.start(world.config)
    except RuntimeError as error:
        return str(error)


def _describe(got: Running | str) -> str:
    return f"error: {got}" if isinstance(got, str) else "a second service runs"
