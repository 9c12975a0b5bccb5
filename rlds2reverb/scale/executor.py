"""What runs tasks: processes of this machine (`processes`), or a Ray cluster (`on_ray`). Everything else is the same for both."""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

from rlds2reverb.errors import ConfigError, reason_of
from rlds2reverb.scale.frames import checked
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


class _JobPickler(pickle.Pickler):
    """Refuses what is found by name in the program that was started: a worker is another program."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise ConfigError(
                f"workers (--workers, --ray): {obj.__qualname__} is defined in the script, or the notebook, that was started, which workers do "
                "not run; put it into a module of its own beside the script and import it from there, or leave the workers out"
            )
        return NotImplemented


def pickled(job: Job) -> bytes:
    """The job as bytes.

    Raises:
      ConfigError: something of it cannot be sent to another process.
    """
    file = io.BytesIO()
    try:
        _JobPickler(file, pickle.HIGHEST_PROTOCOL).dump(job)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            "workers (--workers, --ray) get the source and the view by name, or as objects that can be pickled: "
            f"{reason_of(error)}; name the source (docs/datasets.md), or leave the workers out"
        ) from error
    return checked(file.getvalue())


def unpickled(data: bytes) -> Job:
    """The job of `pickled`, in a worker.

    Raises:
      ConfigError: something of it cannot be made here.
    """
    try:
        job: Job = pickle.loads(data)
    except Exception as error:
        raise ConfigError(
            f"workers (--workers, --ray): the source or the view cannot be made in a worker on {socket.gethostname()}: {reason_of(error)}; "
            "their modules must be importable there, under the same names"
        ) from error
    return job


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
    """A task's workers were lost `TRIES` times, or all that could run it; `why` says how to go on."""

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
