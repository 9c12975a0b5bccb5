"""A source for workers, at one of whose episodes they stop until a test lets them go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlds2reverb import Episode
from rlds2reverb.episode import KnownEpisode
from rlds2reverb.formats.source import IsKnown, Source, check_shard, spec_of, unless_known
from rlds2reverb.specs import Nest
from tests.support import strategies
from tests.support.processes import PATIENCE_SECONDS, wait_until

ROWS = 4


def episode(number: int) -> Episode:
    return strategies.episode(np.random.default_rng(number), ROWS, episode_id=f"e{number}")


@dataclass(frozen=True)
class Gated(Source):
    """Made episodes; before number `gate` is read, the file `reached-PID` is written, and `open` waited for.

    Attributes:
      folder: of these files.
      count: episodes.
      gate: -1 for none.
      dies: the worker that comes to the gate kills itself.
      at_gate: done there instead, with the folder; a function of a module.
      bad: numbers of episodes with a NaN.
    """

    folder: Path
    count: int
    gate: int = -1
    dies: bool = False
    bad: tuple[int, ...] = ()
    at_gate: Callable[[Path], object] | None = None
    name: str = "gated"

    @property
    def episode_count(self) -> int:
        return self.count

    def spec(self) -> Nest:
        return spec_of(episode(0))

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._episodes(start, stop), is_known)

    def _episodes(self, start: int, stop: int | None) -> Iterator[Episode]:
        for number in range(self.count)[start:stop]:
            if number == self.gate:
                self._wait()
            one = episode(number)
            yield one.with_columns(reward=np.full(ROWS, np.nan, np.float32)) if number in self.bad else one

    def shard(self, index: int, count: int) -> Gated:
        check_shard(index, count)
        assert count == 1
        return self

    def _wait(self) -> None:
        if self.at_gate is not None:
            self.at_gate(self.folder)
            return
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"reached-{os.getpid()}").touch()
        wait_until(lambda: (self.folder / "open").exists())

    def reached(self) -> list[int]:
        """The processes that have come to the gate."""
        return sorted(int(path.name.partition("-")[2]) for path in self.folder.glob("reached-*"))

    def wait_for_worker(self) -> int:
        """The process that comes to the gate first."""
        wait_until(lambda: bool(self.reached()), 2 * PATIENCE_SECONDS)
        return self.reached()[0]

    def open(self) -> None:
        (self.folder / "open").touch()


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits to be looked at is none."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
