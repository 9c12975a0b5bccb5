"""il-representations: shards, plain and compressed."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from rlds2reverb.sources import open_source
from tests.readers.ilr import made
from tests.sources.cases.data import EPISODES


def trajectories() -> list[Any]:
    rng = np.random.default_rng(8)
    return [made.trajectory(rng, 2 + number % 3, is_done=number < EPISODES - 1) for number in range(EPISODES)]


def write(folder: Path) -> str:
    """Writes a small file into a folder; the name of the source."""
    made.shard(folder / "demos.tar", trajectories()[:2])
    return f"ilr:{folder}"


def opened(options: str = "") -> Any:
    folder = Path(mkdtemp())
    found = trajectories()
    made.shard(folder / "demos-0.tar.zst", found[:2])
    made.shard(folder / "demos-1.tar.zst", found[2:], task="Other-v0")
    return open_source(f"ilr:{folder}{options}")


SOURCES = {
    "as it is": opened,
    "a part": lambda: opened("?episodes=1:"),
    "the last": lambda: opened("?episodes=-2:"),
    "cut": lambda: opened("?gaps=split,done_means=truncation"),
}
PUSHED = ["as it is"]
