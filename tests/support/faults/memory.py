"""Pushes made-up episodes as a process of its own, and tells how its memory grew: python -m tests.support.faults.memory ADDRESS TABLE."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import rlds2reverb
from rlds2reverb.episode import Episode
from rlds2reverb.formats.lists import EpisodeList
from tests.support import strategies

EPISODES, STEPS = 500, 1000
COLUMNS = {"observation": (np.dtype(np.float32), (64,)), "action": (np.dtype(np.float32), (6,))}
WARM = 50
"""Episodes after which everything that is made once is made."""


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _episode(number: int) -> Episode:
    return strategies.episode(np.random.default_rng(number), STEPS, COLUMNS, episode_id=f"stream-{number}")


class Stream(EpisodeList):
    """`EPISODES` episodes that are made when they are asked for; notes the memory between them."""

    def __init__(self) -> None:
        super().__init__([_episode(0)])
        self.resident: list[int] = []

    @property
    def episode_count(self) -> int | None:
        """Unknown, as for most datasets."""
        return None

    def __iter__(self) -> Iterator[Episode]:
        for number in range(EPISODES):
            yield _episode(number)
            self.resident.append(resident_bytes())


def stream_bytes() -> int:
    """Bytes of the columns of all episodes after the first `WARM`."""
    return (EPISODES - WARM) * sum(column.nbytes for column in _episode(0).columns.values())


def main(address: str, table: str) -> None:
    """Prints the items confirmed and the bytes grown as JSON."""
    stream = Stream()
    with rlds2reverb.connect(address) as client:
        report = client.push(stream, table=table, allow_eviction=True)
    grown = max(stream.resident[WARM:]) - stream.resident[WARM]
    print(json.dumps({"items": report.items_confirmed, "steps": report.steps_pushed, "grown_bytes": grown}))


if __name__ == "__main__":
    main(*sys.argv[1:])
