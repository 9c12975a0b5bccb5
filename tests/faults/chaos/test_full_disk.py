"""The disk of the checkpoints fills up and empties: the service goes on, and saves again as soon as there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults.chaos.world import World
from tests.support.disks import FILLER, fill, small_disk_at
from tests.support.forks import Forks

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

ROUNDS = 60
DISK_BYTES = 4 << 20

SPARE_BYTES = 64 << 10
"""For what a file takes beyond its bytes."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of `DISK_BYTES`."""
    with small_disk_at(tmp_path / "small", DISK_BYTES) as folder:
        yield folder


def test_a_disk_that_fills_up_costs_no_item_and_no_later_checkpoint(
    forks: Forks, small_disk: Path, rng: np.random.Generator, size: float
) -> None:
    filler = small_disk / FILLER
    with World(forks, small_disk, keep=2) as world:
        world.start()
        for _ in range(round(ROUNDS * size) or 1):
            fill(small_disk, left_bytes=int(rng.integers(0, 2 * _newest_bytes(world.folder) or 1)))
            code, errors = world.finish(world.push())  # items need no disk
            assert code == 0, errors
            for by_client in rng.integers(2, size=rng.integers(1, 4)):
                world.try_checkpoint(by_client=bool(by_client))
            crashed_when_full = bool(rng.integers(2))
            if crashed_when_full:
                world.kill_service()
            _make_room(filler, world)
            if crashed_when_full:
                world.start()
            world.checkpoint(by_client=False)
            if rng.integers(2):
                world.kill_service()
                world.start()
        world.assert_complete(with_ledger=False)


def _make_room(filler: Path, world: World) -> None:
    """Leaves room for two checkpoints beside the generations, and for nothing else: leftovers of failures must be gone."""
    held = sum(_bytes_of(world.folder))
    # A checkpoint of an empty table says nothing about the size of one with what was pushed.
    one = _newest_bytes(world.folder) if world.floor else DISK_BYTES
    os.truncate(filler, max(0, min(filler.stat().st_size, DISK_BYTES - held - 2 * one - SPARE_BYTES)))


def _newest_bytes(checkpoints: Path) -> int:
    return max(_bytes_of(checkpoints), default=0)


def _bytes_of(checkpoints: Path) -> list[int]:
    """Of each generation."""
    return [sum(file.stat().st_size for file in path.iterdir()) for path in (checkpoints / "generations").iterdir()]
