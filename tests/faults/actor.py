"""An actor as a process of its own, to be killed: python -m tests.faults.actor ADDRESS TABLE NAME EPISODES STEPS."""

from __future__ import annotations

import json
import sys

import rlds2reverb
from tests.faults import tools
from tests.learner.writing.loops import write


def main(address: str, table: str, name: str, episodes: int, steps: int) -> None:
    """Writes episodes made from the name's last number, and prints the report as JSON."""
    seed = int(name.rsplit("-", 1)[-1])
    with rlds2reverb.connect(address) as client, client.writer(table, name=name) as writer:
        for episode in tools.make_episodes(episodes, steps, seed):
            write(writer, episode)
    print(json.dumps(writer.report().as_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]))
