"""Pushers and services are killed, connections cut, held and slowed, at random: in the end every item is there once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.faults.chaos.world import PUSH_BYTES, World
from tests.support.faults.proxy import BOTH, DOWN, UP
from tests.support.forks import Forks

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(3600)]

LIVES = 30
ROUNDS = 10
"""Faulty pushes in each life, before the one that nothing disturbs."""


def test_whatever_is_killed_or_cut_every_item_is_there_once(
    forks: Forks, tmp_path: Path, rng: np.random.Generator, size: float
) -> None:
    kills = 0
    for life in range(round(LIVES * size) or 1):
        folder = tmp_path / f"life-{life}"
        folder.mkdir()
        with World(forks, folder, keep=2) as world:
            world.start()
            with_ledger = bool(rng.integers(2))
            for _ in range(ROUNDS):
                _one_round(world, rng, with_ledger)
            world.assert_complete(with_ledger)
            kills += sum(world.kills.values())
    print(f"kills: {kills}")
    assert kills


def _one_round(world: World, rng: np.random.Generator, with_ledger: bool) -> None:
    """A push with up to five faults, each after some bytes; only a fault of the service may end it with an error."""
    service, pusher = world.running, world.push(with_ledger)
    for name in rng.choice(list(FAULTS), rng.integers(1, 6), p=SHARES):
        world.until_sent(pusher, int(rng.integers(1, PUSH_BYTES // 4)))
        if pusher.poll() is not None:
            break
        if name == "kill_pusher":
            world.kill(pusher)
            break
        FAULTS[name](world, rng)
    else:
        code, errors = world.finish(pusher)
        assert code == 0 or world.service is not service, errors
    _calm(world)
    if world.service is None:
        world.start()


def _calm(world: World) -> None:
    world.proxy.forget_triggers()
    world.proxy.throttle(0)
    world.proxy.delay(0)
    world.proxy.release()


def _crash(world: World, rng: np.random.Generator) -> None:
    world.kill_service()
    world.start()


def _restart(world: World, rng: np.random.Generator) -> None:
    world.stop_service()
    world.start()


def _swallow(world: World, rng: np.random.Generator) -> None:
    """A connection becomes half-open, in one direction or in both."""
    directions = ((UP,), (DOWN,), BOTH)[int(rng.integers(3))]
    world.proxy.swallow_after(UP, int(rng.integers(1, PUSH_BYTES // 4)), swallowed=directions)


FAULTS: dict[str, Callable[[World, np.random.Generator], object]] = {
    "kill_pusher": lambda world, rng: None,  # ends the round, see there
    "crash": _crash,
    "restart": _restart,
    "cut": lambda world, rng: world.proxy.cut(),
    "cut_later": lambda world, rng: world.proxy.cut_after(UP, int(rng.integers(1, PUSH_BYTES // 4))),
    "swallow": _swallow,
    "throttle": lambda world, rng: world.proxy.throttle(float(rng.uniform(2e5, 2e6))),
    "delay": lambda world, rng: world.proxy.delay(float(rng.uniform(0, 0.02))),
    "checkpoint": lambda world, rng: world.checkpoint(by_client=False),
    "checkpoint_by_client": lambda world, rng: world.checkpoint(by_client=True),
}

SHARES = np.array([3 if name in ("kill_pusher", "crash") else 1 for name in FAULTS], float)
SHARES /= SHARES.sum()
"""Kills come three times as often as any other fault."""
