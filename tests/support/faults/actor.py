"""An actor as a process of its own, to be killed: python -m tests.support.faults.actor ADDRESS TABLE NAME EPISODES STEPS."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlds2reverb import EpisodeWriter
from rlds2reverb.learner.recording import WriteOptions
from rlds2reverb.push.plan import Tuning
from rlds2reverb.transport.grpc import GrpcTransport
from tests.support.faults import tools
from tests.support.learner.loops import write


@contextmanager
def writer(address: str, table: str = "one", view: str = "two_step", **options: Any) -> Iterator[EpisodeWriter]:
    """A writer over a transport of its own, in small requests with quick retries; `deadlines` among the options are its own."""
    tuning = Tuning(deadlines=options.pop("deadlines", tools.QUICK), **tools.SMALL)
    transport = GrpcTransport(address, call_seconds=tuning.deadlines.call)
    try:
        options_of_writer = WriteOptions(table, view, **options)
        with EpisodeWriter(transport, transport.server_info(), options_of_writer, tuning) as opened:
            yield opened
    finally:
        transport.close()


def main(address: str, table: str, name: str, episodes: str, steps: str) -> None:
    """Writes episodes made from the name's last number, and prints the report as JSON."""
    seed = int(name.rsplit("-", 1)[-1])
    with writer(address, table, name=name) as to:
        for episode in tools.make_episodes(int(episodes), int(steps), seed):
            write(to, episode)
    print(json.dumps(to.report().as_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
