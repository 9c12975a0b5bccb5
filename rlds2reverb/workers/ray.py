"""Workers as tasks of a Ray cluster. Ray finds the machines, starts the processes, and begins a task again whose process or machine is lost.

An error in a task is no loss: it is the task's outcome, and the task is not begun again. Progress goes through an actor
beside the driver, on its machine, so that it is not lost with another machine. If it is lost even so, another one is made; when
a cluster is lost that was joined here, the one that answers at its address then is joined, and all tasks that ran are begun again there.

Facts of Ray 2.60: `max_retries` covers the loss of a worker or a machine only; a task may have run to its end before it is begun again.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlds2reverb.errors import ConfigError, WorkersLost, reason_of
from rlds2reverb.text import shortened
from rlds2reverb.workers.driver import (
    BEGUN,
    TRIES,
    Done,
    Event,
    Job,
    Lost,
    Outcome,
    Progressed,
    Retried,
    Task,
    Work,
    make_sendable,
    pickle_job,
    receive_outcome,
    unpickle_job,
)

_POLL_SECONDS = 0.25  # interval at which the actor is asked for progress
_ANSWER_SECONDS = 60.0  # for the actor to answer a worker; it is gone when the driver is
_RECONNECT_SECONDS = 60.0  # for a new cluster to answer where one was lost
_RETRY_SECONDS = 1.0
_PROBE_SECONDS = 5.0  # for the cluster's port to accept a connection. Ray's own calls end the process after a minute without an answer

# By job, what this process has opened: one, as Ray gives every driver processes of its own.
_works: dict[str, Work] = {}
_open_works = ExitStack()


class Line:
    """The actor: progress of workers, until the driver takes it, and the tasks to stop."""

    def __init__(self) -> None:
        self._begun: list[tuple[int, str]] = []
        self._progress: dict[int, Any] = {}
        self._stopped: set[int] = set()

    def begin(self, number: int, where: str) -> None:
        self._begun.append((number, where))
        self._progress.pop(number, None)

    def tell(self, number: int, what: Any) -> bool:
        """Keeps a worker's progress; returns whether it is to stop."""
        self._progress[number] = what
        return number in self._stopped

    def take(self) -> tuple[list[tuple[int, str]], dict[int, Any]]:
        """Removes the tasks that were begun since the last call, and the latest progress of each."""
        taken = self._begun, self._progress
        self._begun, self._progress = [], {}
        return taken

    def stop(self, numbers: Sequence[int]) -> None:
        self._stopped.update(numbers)


class LineLost(Exception):
    """A task could not reach the actor, so the driver could neither follow nor stop it: it is begun again."""


def run_task(job: Sequence[Any], key: str, line: Any, task: Task) -> Outcome:
    """A Ray task: runs one of ours.

    `job` is a list with the reference to the pickled job, so that Ray does not resolve it; `line` is the actor.
    """
    where = f"{socket.gethostname()}, process {os.getpid()}"

    def call(method: Any, what: Any) -> Any:
        try:
            return ray.get(method.remote(task.number, what), timeout=_ANSWER_SECONDS)
        except RayError as error:
            raise LineLost(f"{where}, at {task}: the driver's actor does not answer: {type(error).__name__}") from error

    def tell(what: Any) -> None:
        if call(line.tell, what):
            raise KeyboardInterrupt

    try:
        call(line.begin, where)  # waited for: else a task that is killed soon would leave no trace
        if key not in _works:
            _works[key] = _open_works.enter_context(unpickle_job(ray.get(job[0])).open())
        tell(BEGUN)
        return make_sendable(_works[key].run(task, tell))
    except BaseException as error:
        return make_sendable(Outcome(None, error))


class OnRay:
    """An `Executor` on a Ray cluster.

    Args:
      workers: tasks at a time; None for the number of the cluster's processors.
      address: of the cluster; "auto" for the one of this machine. Not used where Ray is connected already.
    """

    def __init__(self, job: Job, workers: int | None, address: str) -> None:
        self._data, self._address = pickle_job(job), address
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(address)
        self._key = uuid.uuid4().hex
        self._tasks: dict[Any, Task] = {}  # reference to the outcome -> task
        self._tries: Counter[int] = Counter()
        self._losses = 0  # of the actor, or of the cluster
        self._begun: Counter[int] = Counter()
        self._where: dict[int, str] = {}
        self._events: deque[Event] = deque()
        self._polled_at = time.monotonic()
        try:
            self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            self._settle()
        except RayError as error:
            raise WorkersLost(
                f'ray (--ray) "{address}": the cluster was lost: {_brief(error)}; run the same command again'
            ) from error

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        if not ray.is_initialized():  # the cluster is lost; Ray would start one
            return
        for reference in self._tasks:
            with suppress(RayError, ValueError):
                ray.cancel(reference, force=True)
        with suppress(RayError, ValueError):
            ray.kill(self._line)
        if self._owns:
            ray.shutdown()

    def submit(self, task: Task) -> None:
        self._tries[task.number] = 1
        try:
            self._begin(task)
        except RayError as error:
            self._events.append(Lost(task.number, f"{task}: the cluster was lost: {_brief(error)}"))

    def event(self, seconds: float) -> Event | None:
        """Waits longer than `seconds` only for another cluster, where one is lost."""
        end = time.monotonic() + seconds
        while not self._events and (left := end - time.monotonic()) > 0:
            try:
                self._wait(min(left, _POLL_SECONDS))
                if time.monotonic() - self._polled_at >= _POLL_SECONDS:
                    self._poll()
            except RayError as error:
                self._recover(error)
        return self._events.popleft() if self._events else None

    def stop(self, numbers: Collection[int]) -> None:
        if not ray.is_initialized():  # the cluster is lost; Ray would start one
            return
        with suppress(RayError):
            self._line.stop.remote(list(numbers))

    def whereabouts(self, number: int) -> str:
        return self._where.get(number, "a worker of the cluster")

    def replace(self, number: int, why: str) -> None:
        """A worker that does not notice the end of its task may go on with it beside the new one, which item keys make harmless."""
        reference = next((reference for reference, task in self._tasks.items() if task.number == number), None)
        if reference is None:
            return
        task = self._tasks.pop(reference)
        with suppress(RayError, ValueError):
            ray.cancel(reference, force=True)
        try:
            self._retry(task, why)
        except RayError as error:
            self._recover(error)

    def _settle(self) -> None:
        """Puts the job and an actor into the cluster."""
        self._gcs = ray.get_runtime_context().gcs_address
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._line = ray.remote(Line).options(num_cpus=0, scheduling_strategy=here).remote()
        ray.get(self._line.take.remote(), timeout=_ANSWER_SECONDS)
        self._job = ray.put(self._data)
        self._run = ray.remote(run_task).options(max_retries=TRIES - 1, retry_exceptions=False)

    def _begin(self, task: Task) -> None:
        self._begun.pop(task.number, None)  # one of this number may have run before
        self._tasks[self._run.remote([self._job], self._key, self._line, task)] = task

    def _wait(self, seconds: float) -> None:
        if not self._tasks:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        for reference in ready:
            self._poll()  # its progress comes before its end
            event = _end(reference, self._tasks[reference], self._where)
            task = self._tasks.pop(reference)
            if isinstance(event, Done) and isinstance(event.outcome.error, LineLost):
                self._retry(task, str(event.outcome.error))
            else:
                self._events.append(event)

    def _poll(self) -> None:
        self._polled_at = time.monotonic()
        begun, progress = ray.get(self._line.take.remote(), timeout=_ANSWER_SECONDS)
        for number, where in begun:
            self._begun[number] += 1
            if self._begun[number] > 1:
                self._events.append(Retried(number, f"{self._where[number]}: lost with its task"))
            self._where[number] = where
        self._events += (Progressed(number, what) for number, what in progress.items())

    def _retry(self, task: Task, why: str) -> None:
        """Begins a task again that was lost with the actor or with the cluster."""
        if self._tries[task.number] >= TRIES:
            self._events.append(Lost(task.number, f"{why}; it was begun {TRIES} times"))
            return
        self._tries[task.number] += 1
        self._begin(task)
        self._events.append(Retried(task.number, why))

    def _recover(self, error: RayError) -> None:
        """Continues after the loss of the actor, or of the cluster; without another one, all tasks are lost."""
        self._losses += 1
        why = f'ray (--ray) "{self._address}": the cluster was lost: {_brief(error)}'
        try:
            if self._losses >= TRIES:
                raise error
            self._replace_actor_or_cluster()
        except (RayError, ConfigError) as failure:
            if failure is not error:
                why = f"{why}; and then: {_brief(failure)}"
            self._events += (Lost(task.number, why) for task in self._tasks.values())
            self._tasks.clear()

    def _replace_actor_or_cluster(self) -> None:
        if _answers(self._gcs):
            with suppress(RayError):
                self._settle()
                return  # tasks that run cannot reach the actor that they know, and end
        if not self._owns:
            raise RaySystemError("ray.init was called by the program, which has to join another one")
        ray.shutdown()
        end = time.monotonic() + _RECONNECT_SECONDS
        while not self._join_another():
            if time.monotonic() > end:
                raise RaySystemError(f"no other one can be joined at {self._gcs} for {_RECONNECT_SECONDS:g} s")
            time.sleep(_RETRY_SECONDS)
        self._settle()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            self._retry(task, f"{task}: lost with the cluster")

    def _join_another(self) -> bool:
        """Joins the cluster at the address; False while none is ready there."""
        if _answers(self._gcs):
            with suppress(ConfigError):
                _connect(self._address)
                return True
        return False


def _end(reference: Any, task: Task, where: dict[int, str]) -> Event:
    """The last event of a task; raises RaySystemError when the cluster is lost, which is no outcome of the task."""
    try:
        return Done(task.number, receive_outcome(ray.get(reference)))
    except TaskCancelledError:
        return Done(task.number, Outcome(None, KeyboardInterrupt()))
    except RayTaskError as error:  # from Ray's own code: our errors are in the outcome
        refused = ConfigError(
            f"ray (--ray): a worker of the cluster cannot begin {task}: {_brief(error.cause or error)}; every machine needs this package in the "
            "same version, and what the source needs"
        )
        refused.__cause__ = error
        return Done(task.number, Outcome(None, refused))
    except RaySystemError:
        raise
    except RayError as error:
        return Lost(
            task.number, f"{where.get(task.number, 'a worker')}, at {task}: {_brief(error)}; it was begun {TRIES} times"
        )


def _answers(address: str) -> bool:
    """Whether the port accepts connections."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS):
        return True
    return False


def _brief(error: BaseException) -> str:
    """One line of an error of Ray, which may fill a screen."""
    return shortened(reason_of(error))


def _connect(address: str) -> None:
    try:
        ray.init(address, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f'ray (--ray) "{address}": no cluster can be joined there: {" ".join(str(error).split())}; start one with `ray start --head`'
        ) from error
