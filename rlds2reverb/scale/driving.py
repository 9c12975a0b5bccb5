"""The driver: has tasks run by an executor, hears how far they are, and takes in what came of them.

An error of one task does not end it at once where the order of the episodes says which error is the first: tasks with earlier episodes
run to their end, and may have an error that comes before. So the error that is raised is the one that a single process would have met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from typing import Any, Protocol

from rlds2reverb.errors import InvalidEpisode, SourceError, ViewError, WorkersLost
from rlds2reverb.scale.executor import Again, Done, Event, Executor, Lost, Told
from rlds2reverb.scale.tasks import Outcome, Task

_EVENT_SECONDS = 0.25
"""How often the undertaking is asked for more while nothing happens."""

STOP_SECONDS = 15.0
"""For workers that are told to stop; those that have not by then are ended with the executor."""

_OF_THE_DATA = (InvalidEpisode, SourceError, ViewError)
"""Errors that one process would meet at the same episode."""


class Undertaking(Protocol):
    """What is driven."""

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next task to begin; None while there is none, and nothing more is to come when none runs, either."""

    def told(self, task: Task, what: Any) -> None:
        """A worker said how far it is."""

    def took(self, task: Task, outcome: Outcome) -> bool:
        """A task has ended; whether its error, if it has one, is dealt with."""

    def again(self, task: Task, why: str) -> None:
        """A task was begun anew."""


class Driver:
    """Drives one undertaking to its end.

    Args:
      executor: runs the tasks.
      undertaking: says which, and takes what comes of them.
      look: called a few times per second.
    """

    def __init__(self, executor: Executor, undertaking: Undertaking, look: Callable[[], object] = lambda: None) -> None:
        self._executor, self._undertaking, self._look = executor, undertaking, look
        self._running: dict[int, Task] = {}
        self._failed: tuple[int, BaseException] | None = None  # the task with the error that comes first, and that

    def run(self) -> None:
        """Has all tasks run. What stops it stops all workers first, and what they have done is taken in.

        Raises:
          WorkersLost: a task was begun `TRIES` times, and its worker lost each time.
          Exception: of a task; of several, the one at the first episode.
        """
        for _ in self.steps():
            pass

    def steps(self) -> Generator[None, None, None]:
        """As `run`, a step at a time; whoever closes this before its end stops all workers."""
        try:
            while self._begin() or self._running:
                self._hear(self._executor.event(_EVENT_SECONDS))
                self._look()
                yield
        except BaseException:
            self._wind_up()
            raise
        if self._failed is not None:
            raise self._failed[1]

    def _begin(self) -> bool:
        """Begins as many tasks as there is something to run them; whether it began one."""
        began = False
        while self._failed is None and len(self._running) < self._executor.workers:
            task = self._undertaking.next_task(self._running.values())
            if task is None:
                break
            self._running[task.number] = task
            self._executor.submit(task)
            began = True
        return began

    def _hear(self, event: Event | None) -> None:
        if isinstance(event, Told):
            if (task := self._running.get(event.number)) is not None:
                self._undertaking.told(task, event.what)
        elif isinstance(event, Again):
            self._undertaking.again(self._running[event.number], event.why)
        elif isinstance(event, Done):
            self._take(self._running.pop(event.number), event.outcome)
        elif isinstance(event, Lost):
            self._running.pop(event.number)
            raise WorkersLost(f"{event.why}; what is done stays, and the same command goes on")

    def _take(self, task: Task, outcome: Outcome) -> None:
        if self._undertaking.took(task, outcome) or outcome.error is None:
            return
        error = outcome.error
        if not isinstance(error, _OF_THE_DATA):
            if self._failed is not None and isinstance(error, KeyboardInterrupt):
                return  # it was told to stop
            raise error
        if self._failed is None or task.number < self._failed[0]:
            self._failed = task.number, error
        self._executor.stop([number for number in self._running if number > self._failed[0]])

    def _wind_up(self) -> None:
        """Stops all workers, and takes in what they have done by then. What fails now is not raised."""
        end = time.monotonic() + STOP_SECONDS
        self._executor.stop(list(self._running))
        while self._running and (left := end - time.monotonic()) > 0:
            event = self._executor.event(left)
            if isinstance(event, (Done, Lost)):
                task = self._running.pop(event.number)
                if isinstance(event, Done):
                    with suppress(Exception):
                        self._undertaking.took(task, event.outcome)
