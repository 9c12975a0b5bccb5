"""Workers as tasks of a Ray cluster. Ray finds the machines, starts the processes, and begins a task anew whose process or machine is lost.

An error in a task is none of that: it comes back as the task's outcome, and is not tried again. How far tasks are goes through an actor
beside the driver, on its machine, so that it does not get lost with another one.

Facts of Ray 2.60: `max_retries` covers the loss of a worker or a machine only; a task may have run to its end before it is begun anew.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlds2reverb.errors import ConfigError
from rlds2reverb.scale.executor import TRIES, Again, Done, Event, Job, Lost, Told, Work
from rlds2reverb.scale.outcomes import sendable
from rlds2reverb.scale.processes import pickled
from rlds2reverb.scale.tasks import Outcome, Task

_POLL_SECONDS = 0.25
"""How often the actor is asked what was told."""

_ANSWER_SECONDS = 60.0
"""For the actor to answer a worker; it is gone when the driver is."""

_works: dict[str, Work] = {}
"""What this process has opened, by job: one, as Ray gives every driver processes of its own."""

_open_works = ExitStack()


class Line:
    """The actor: what workers say, until the driver takes it, and which tasks are to stop."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, str]] = []
        self._told: dict[int, Any] = {}
        self._stopped: set[int] = set()

    def begin(self, number: int, where: str) -> None:
        """A worker begins a task."""
        self._begun.append((number, where))
        self._told.pop(number, None)

    def tell(self, number: int, what: Any) -> bool:
        """A worker says how far it is; whether it is to stop."""
        self._told[number] = what
        return number in self._stopped

    def take(self) -> tuple[list[tuple[int, str]], dict[int, Any]]:
        """Which tasks were begun, and what was told last of each, since this was asked last."""
        taken = self._begun, self._told
        self._begun, self._told = [], {}
        return taken

    def stop(self, numbers: Sequence[int]) -> None:
        """These tasks are to stop."""
        self._stopped.update(numbers)


def run_task(job: Sequence[Any], key: str, line: Any, task: Task) -> Outcome:
    """A Ray task: runs one of ours.

    Args:
      job: the reference to the pickled job, in a list, so that Ray hands on the reference.
      key: of the job.
      line: the actor.
      task: what to do.
    """

    def tell(what: Any) -> None:
        if ray.get(line.tell.remote(task.number, what), timeout=_ANSWER_SECONDS):
            raise KeyboardInterrupt

    try:
        begun = line.begin.remote(task.number, f"{socket.gethostname()}, process {os.getpid()}")
        ray.get(begun, timeout=_ANSWER_SECONDS)  # else one that is killed soon would not be heard of
        if key not in _works:
            _works[key] = _open_works.enter_context(pickle.loads(ray.get(job[0])).opened())
        return sendable(_works[key].run(task, tell))
    except BaseException as error:
        return sendable(Outcome(None, error))


class OnRay:
    """Runs a job's tasks on a Ray cluster; see `executor.Executor`.

    Args:
      job: what they get.
      workers: tasks at a time; None for as many as the cluster has processors.
      address: of the cluster; "auto" for the one that this machine is part of. Not used where Ray is connected already.

    Raises:
      ConfigError: the job cannot be pickled, or there is no such cluster.
    """

    def __init__(self, job: Job, workers: int | None, address: str) -> None:
        data = pickled(job)
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(address)
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._key, self._job = uuid.uuid4().hex, ray.put(data)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._line = ray.remote(Line).options(num_cpus=0, scheduling_strategy=here).remote()
        self._run = ray.remote(run_task).options(max_retries=TRIES - 1, retry_exceptions=False)
        self._tasks: dict[Any, Task] = {}  # reference to the outcome -> task
        self._begun: Counter[int] = Counter()
        self._where: dict[int, str] = {}
        self._events: deque[Event] = deque()
        self._polled_at = time.monotonic()

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self._tasks:
            with suppress(RayError, ValueError):
                ray.cancel(reference, force=True)
        with suppress(RayError, ValueError):
            ray.kill(self._line)
        if self._owns:
            ray.shutdown()

    def submit(self, task: Task) -> None:
        """Has a task run, wherever Ray finds a processor for it."""
        self._begun.pop(task.number, None)  # one of this number may have run before
        self._tasks[self._run.remote([self._job], self._key, self._line, task)] = task

    def event(self, seconds: float) -> Event | None:
        """What has happened; waits for it, not longer than this."""
        end = time.monotonic() + seconds
        while not self._events and (left := end - time.monotonic()) > 0:
            self._wait(min(left, _POLL_SECONDS))
            if time.monotonic() - self._polled_at >= _POLL_SECONDS:
                self._poll()
        return self._events.popleft() if self._events else None

    def stop(self, numbers: Collection[int]) -> None:
        """Tells the workers of these tasks to stop."""
        self._line.stop.remote(list(numbers))

    def _wait(self, seconds: float) -> None:
        if not self._tasks:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        for reference in ready:
            self._poll()  # what it told comes before its end
            self._events.append(_end(reference, self._tasks.pop(reference), self._where))

    def _poll(self) -> None:
        self._polled_at = time.monotonic()
        begun, told = ray.get(self._line.take.remote())
        for number, where in begun:
            self._begun[number] += 1
            if self._begun[number] > 1:
                self._events.append(Again(number, f"{self._where[number]}: lost with its task"))
            self._where[number] = where
        self._events += (Told(number, what) for number, what in told.items())


def _end(reference: Any, task: Task, where: dict[int, str]) -> Event:
    """What came of a task."""
    try:
        return Done(task.number, ray.get(reference))
    except TaskCancelledError:
        return Done(task.number, Outcome(None, KeyboardInterrupt()))
    except RayTaskError as error:  # of Ray's own part in it: ours are in the outcome
        return Done(task.number, Outcome(None, error))
    except RayError as error:
        told = " ".join(str(error).split())
        return Lost(task.number, f"{where.get(task.number, 'a worker')}, at {task}: {type(error).__name__}: {told}")


def _connect(address: str) -> None:
    try:
        ray.init(address, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f'ray (--ray) "{address}": no cluster can be joined there: {" ".join(str(error).split())}; start one with `ray start --head`'
        ) from error


def on_ray(job: Job, workers: int | None, address: str) -> OnRay:
    """The executor, by a name that is loaded late."""
    return OnRay(job, workers, address)
