"""Workers of the tests: threads, which push to a server in memory."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlds2reverb import Episode, PushPlan, PushReport
from rlds2reverb.fleet.push import DistributedPush
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.testing import MemoryServer, MemoryTransport
from rlds2reverb.workers.driver import Done, Event, Executor, Job, Outcome, Progressed, Retried, Task
from tests.support.push.in_memory import Server, planned


@dataclass(frozen=True)
class Memory:
    """The way to a server in memory."""

    server: MemoryServer
    address: str = "memory"

    def open(self) -> MemoryTransport:
        return MemoryTransport(self.server, self.address)


class InThreads:
    """Runs every task in a thread. A task among `lost` is run to its end, which nobody hears of, and then once more."""

    def __init__(self, job: Job, workers: int, lost: Collection[int] = ()) -> None:
        self._job, self.workers, self._lost = job, workers, set(lost)
        self._threads = ThreadPoolExecutor(workers)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopped: set[int] = set()

    def __enter__(self) -> InThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def submit(self, task: Task) -> None:
        self._threads.submit(self._run, task)

    def event(self, seconds: float) -> Event | None:
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def stop(self, numbers: Collection[int]) -> None:
        self._stopped.update(numbers)

    def whereabouts(self, number: int) -> str:
        return f"the thread of task {number}"

    def replace(self, number: int, why: str) -> None:
        raise AssertionError(f"no task of a thread hangs: {why}")

    def _run(self, task: Task) -> None:
        outcome = self._outcome(task)
        if task.number in self._lost:
            self._events.put(Retried(task.number, "lost"))
            outcome = self._outcome(task)
        self._events.put(Done(task.number, outcome))

    def _outcome(self, task: Task) -> Outcome:
        def tell(what: Any) -> None:
            if task.number in self._stopped:
                raise KeyboardInterrupt
            self._events.put(Progressed(task.number, what))

        try:
            with self._job.open() as work:
                return work.run(task, tell)
        except BaseException as error:
            return Outcome(None, error)


def push(
    server: Server,
    episodes: Sequence[Episode],
    workers: int,
    most: int = 512,
    lost: Collection[int] = (),
    executor: Callable[[Job], Executor] | None = None,
    **options: Any,
) -> PushReport:
    """A push to a server in memory by workers that are threads."""
    source = EpisodeList(list(episodes), "test")
    plan = planned(server, source, workers=workers, **options)
    chosen = executor or (lambda job: InThreads(job, workers, lost))
    return distributed(server, plan, chosen, most).run()


def distributed(
    server: MemoryServer, plan: PushPlan, executor: Callable[[Job], Executor], most: int = 512
) -> DistributedPush:
    """A push to one server in memory by workers."""
    transport = MemoryTransport(server)
    return DistributedPush({transport.address: transport}, plan, {transport.address: Memory(server)}, executor, most)
