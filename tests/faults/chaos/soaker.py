"""A pusher that pushes for ever: python -m tests.faults.chaos.soaker ADDRESS TABLE; to be killed."""

from __future__ import annotations

import sys

import rlds2reverb
from tests.support.faults import tools


def main(address: str, table: str) -> None:
    """Stores the same episodes again and again, under new keys; old items are evicted."""
    episodes = tools.make_episodes(count=50, steps=201)
    with rlds2reverb.connect(address) as client:
        while True:
            client.push(episodes, table=table, again=True, allow_eviction=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
