"""A conversion with workers: they read, validate and encode parts of the source; the driver writes in order.

The driver does all that depends on previous episodes: comparisons between episodes, the policy of bad ones, and counts.
So the dataset, the report and the saved progress equal those of a single process, however the work was divided.
A part has some megabytes of episodes, which bounds the memory of all parts in flight; a worker ends a larger one early.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rlds2reverb.conversion.job import Job, Read
from rlds2reverb.episode import Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.workers.driver import MOST_EPISODES, Driver, Executor, InTurn, Outcome, SendProgress, Task
from rlds2reverb.workers.driver import Job as WorkersJob

_log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""The approximate size of a part's columns."""

_TELL_SECONDS = 0.25
_FIRST_EPISODES, _FEW_EPISODES = 4, 16
"""Episodes of a part while their size is unknown; the least number of episodes if they are small."""


@dataclass(frozen=True)
class ConvertJob:
    """The argument of every worker."""

    opens: Callable[[], Job]  # makes the job of the conversion, in the worker
    like: Mapping[str, Any]  # the driver's description of the source; see `kind_of`

    @contextmanager
    def open(self) -> Iterator[_Reading]:
        """Opens the source.

        Raises:
          SourceError: it cannot be opened in the worker, or differs from the driver's.
        """
        job = self.opens()
        if kind_of(job) != self.like:
            raise SourceError(
                f"{job.source.name}: is another dataset on {socket.gethostname()} than where the conversion was started; every machine needs "
                "the same files at the same place"
            )
        yield _Reading(job)


def kind_of(job: Job) -> dict[str, Any]:
    """A description of a conversion's source, to compare the worker's with the driver's."""
    return {name: value for name, value in job.identity()["source"].items() if name != "name"}


@dataclass(frozen=True)
class PartTaken:
    """The result of reading a part of the source."""

    reads: list[Read]  # its episodes, or the first of them
    stop: int  # the number of the first unread episode
    bytes: int  # of the columns of the episodes that were read
    notices: tuple[Notice, ...]  # of the source


class _Reading:
    def __init__(self, job: Job) -> None:
        self._job, self._preparer = job, job.ready.silent().preparer()

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        """Reads the episodes of a task; stops early once they take twice `PART_BYTES`."""
        reads: list[Read] = []
        size, stop, sent_at, error = 0, task.stop, time.monotonic(), None
        try:
            for episode in self._job.source.slice(task.start, task.stop):
                reads.append(self._job.examine(self._preparer, episode).for_others())
                size += episode.nbytes
                if size >= 2 * PART_BYTES:
                    stop = task.start + len(reads)
                    break
                if time.monotonic() - sent_at > _TELL_SECONDS:
                    sent_at = time.monotonic()
                    on_progress(len(reads))
        except BaseException as failure:
            error = failure
        return Outcome(PartTaken(reads, stop, size, self._job.source.notices), error)


class ConvertParts:
    """The parts of a source as an undertaking; see `workers.driver.Undertaking`.

    Args:
      start, stop: the range of episodes to read.
      workers: the number of concurrent workers.

    Attributes:
      again_count: the number of parts that were restarted.
      notices: of the workers' sources.
    """

    def __init__(self, start: int, stop: int, workers: int) -> None:
        self._next, self._stop, self._workers = start, stop, workers
        self._number = 0
        self._left = deque[Task]()
        self._in_turn = InTurn[Outcome](start)
        self._ready = deque[Outcome]()
        self._episodes = self._bytes = 0
        self.again_count = 0
        self.notices: dict[Notice, None] = {}

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The unread rest of a part, or the next part; None while too many finished parts wait for their turn."""
        if self._left:
            return self._left.popleft()
        if self._next >= self._stop or self._in_turn.held >= self._workers:
            return None
        start, self._next = self._next, min(self._next + self._size(), self._stop)
        self._number += 1
        return Task(self._number, start, self._next)

    def on_progress(self, task: Task, what: object) -> None:
        """No-op: progress is counted when the episodes are written."""

    def on_retry(self, task: Task, why: str) -> None:
        self.again_count += 1
        _log.warning("%s; another one has begun it anew", why)

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        """Stores a result; False if the worker could not begin. Reading errors are raised at their episode's turn."""
        part: PartTaken | None = outcome.value
        if part is None:
            return False
        self._episodes += len(part.reads)
        self._bytes += part.bytes
        self.notices.update(dict.fromkeys(part.notices))
        if part.stop < task.stop and outcome.error is None:
            self._left.append(replace(task, start=part.stop))
        self._ready.extend(self._in_turn.take(replace(task, stop=part.stop), outcome))
        return True

    def ready(self) -> Iterator[Read]:
        """The episodes whose turn it is; raises the error that stopped a worker after these episodes."""
        while self._ready:
            outcome = self._ready.popleft()
            yield from outcome.value.reads
            if outcome.error is not None:
                raise outcome.error

    def _size(self) -> int:
        if not self._episodes:
            return _FIRST_EPISODES
        share = (self._stop - self._next) // (4 * self._workers)
        fitting = PART_BYTES * self._episodes // max(self._bytes, 1)
        return max(1, min(MOST_EPISODES, max(_FEW_EPISODES, share), fitting))


class ByWorkers:
    """Workers that read the source of a conversion.

    Args:
      job: of the conversion, as this process has it.
      opens: makes the same job in a worker.
      executor: makes the executor of the tasks.

    Attributes:
      workers: the number of concurrent workers.

    Raises:
      SourceError: the number of episodes is unknown without reading them.
    """

    def __init__(self, job: Job, opens: Callable[[], Job], executor: Callable[[WorkersJob], Executor]) -> None:
        self._job, self._opens, self._executor = job, opens, executor
        self._count = job.source.known_count()
        self._parts = ConvertParts(0, 0, 0)
        self.workers = 0

    @property
    def parts_again(self) -> int:
        """Parts of the source that were begun anew because their workers were lost."""
        return self._parts.again_count

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(self._parts.notices)

    def read(self, start: int) -> Generator[Read, None, None]:
        """The episodes from a number on, in order. Closing it stops all workers.

        Raises:
          Rlds2ReverbError: as reading the source does, at the same episode; or a worker cannot begin.
          WorkersLost: a worker was lost repeatedly.
        """
        with self._executor(ConvertJob(self._opens, kind_of(self._job))) as executor:
            self.workers = executor.workers
            self._parts = ConvertParts(start, self._count, executor.workers)
            steps = Driver(executor, self._parts).steps()
            try:
                for _ in steps:
                    yield from self._parts.ready()
                yield from self._parts.ready()
                self._job.source.check_files()
            finally:
                steps.close()
