"""What runs tasks: processes of this machine (`processes`), or a Ray cluster (`on_ray`). Everything else is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from rlds2reverb.scale.tasks import Outcome, Task

TRIES = 3
"""How often a task is begun at most. A worker is lost when it is killed, runs out of memory, or its machine is gone."""

Tell = Callable[[Any], None]
"""A worker says how far it is. Raises KeyboardInterrupt when it is to stop: what it has done by then is its outcome."""


class Work(Protocol):
    """What a worker does; opened once, for many tasks."""

    def run(self, task: Task, tell: Tell) -> Outcome:
        """Runs a task. What stops it is in the outcome."""


class Job(Protocol):
    """What every worker gets: plain values, which can be pickled."""

    def opened(self) -> AbstractContextManager[Work]:
        """Opens what all tasks need.

        Raises:
          Exception: it cannot be opened; that is the outcome of the first task then.
        """


@dataclass(frozen=True)
class Told:
    """A worker said how far it is with a task."""

    number: int
    what: Any


@dataclass(frozen=True)
class Done:
    """A task is finished, or was stopped."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Again:
    """A task's worker was lost, and another one has begun it anew."""

    number: int
    why: str


@dataclass(frozen=True)
class Lost:
    """A task's workers were lost `TRIES` times."""

    number: int
    why: str


Event = Told | Done | Again | Lost


class Executor(Protocol):
    """Runs the tasks of one job. Use as a context manager, which ends all workers."""

    @property
    def workers(self) -> int:
        """How many tasks run at a time."""

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, task: Task) -> None:
        """Has a task run; at most `workers` at a time."""

    def event(self, seconds: float) -> Event | None:
        """What has happened; waits for it, not longer than this."""

    def stop(self, numbers: Collection[int]) -> None:
        """Tells the workers of these tasks to stop; `Done` comes of each, with what it has done."""
