"""A push by workers whose source forks in them, as a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rlds2reverb import Episode, connect
from rlds2reverb.episode import KnownEpisode
from rlds2reverb.formats.source import IsKnown, Source, check_shard, spec_of, unless_known
from rlds2reverb.specs import Nest
from tests.support.faults import tools

EPISODES = 160
PART = 16
"""Episodes of a part; each part begins with a fork."""

STEPS = 6
WORKERS = 2


@dataclass(frozen=True)
class Forking(Source):
    """Random episodes. Before the first of each part the worker that reads it forks.

    The driver of a push that its ledger knows reads a few names itself. It does not fork: nobody kills it, so its forks would stay.

    Attributes:
      folder: has a file for each process that was forked, named WORKER-FORK.
      driver: the number of the driver's process.
    """

    folder: Path
    driver: int
    name: str = "forking"

    @property
    def episode_count(self) -> int:
        return EPISODES

    def spec(self) -> Nest:
        return spec_of(self._all()[0])

    def _all(self) -> list[Episode]:
        return tools.make_episodes(count=EPISODES, steps=STEPS, seed=5)

    def __iter__(self) -> Iterator[Episode]:
        yield from self._all()

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._forking(start, stop), is_known)

    def _forking(self, start: int, stop: int | None) -> Iterator[Episode]:
        for number, episode in list(enumerate(self._all()))[start:stop]:
            if number % PART == 0 and os.getpid() != self.driver:
                self._fork(number // PART)
            yield episode

    def shard(self, index: int, count: int) -> Forking:
        check_shard(index, count)
        assert count == 1
        return self

    def _fork(self, number: int) -> None:
        worker = os.getpid()
        if number % 2:
            pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
            pool.submit(_stay, self.folder, worker)
        elif not os.fork():
            _stay(self.folder, worker)


def _stay(folder: Path, worker: int) -> None:
    (folder / f"{worker}-{os.getpid()}").touch()
    while True:
        signal.pause()


def main(address: str, table: str, folder: str) -> None:
    """Pushes, and prints the report as JSON."""
    with connect(address) as client:
        report = client.push(
            Forking(Path(folder), os.getpid()), table, workers=WORKERS, ledger=Path(folder).parent / "ledger.db"
        )
    print(json.dumps(asdict(report)), flush=True)
