"""Tasks, the executors that run them, and the driver that hands them out and collects what came of them.

An executor is either processes of this machine (`processes`) or a Ray cluster (`ray`); all else is the same for both. An error of one task
does not end the driver at once where the order of the episodes says which error is the first: tasks with earlier episodes run to their end,
and may have an error that comes before. So the error that is raised is the one that a single process would have met.

Whatever error a library raises in a worker, the driver can read it. An error of this package or of Python is sent as it is. Of any other
one, whose class may be known in the worker alone, and of one that cannot be made again here, the driver gets the name, the text and the
traceback, as the nearest class of this package or of Python.
"""

from __future__ import annotations

import builtins
import io
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from rlds2reverb import errors
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, ViewError, WorkersLost, reason_of
from rlds2reverb.workers.frames import checked

MOST_EPISODES = 512
"""Of a task. What a lost worker has done is done again, and what is finished goes into the ledger: both by the task."""

_FEWEST_EPISODES = 16
"""Of a task, where there are as many. Some problems only several episodes show (`prepare.endings`)."""

_TASKS_EACH = 8
"""Tasks that a worker gets at least, where there are enough episodes, so that all workers end at about the same time."""


def check_workers(workers: object, ray: object) -> None:
    """Checks the options `workers` and `ray`.

    Raises:
      ConfigError: fewer than one worker, or a Ray address that is empty or no text.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers (--workers) {workers}: expected at least 1, a whole number")
    if ray is not None and (not isinstance(ray, str) or not ray):
        raise ConfigError(f'ray (--ray) {ray!r}: expected HOST:PORT, ray://HOST:PORT or "auto"')


@dataclass(frozen=True)
class Task:
    """Episodes that one worker reads, from one number to another.

    Attributes:
      number: of the task; a later one has later episodes.
      start, stop: of the episodes, in the order of the source; `stop` is left out.
      terms: what the worker gets beside it.
    """

    number: int
    start: int
    stop: int
    terms: Any = None

    @property
    def episodes(self) -> int:
        """How many."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"episodes {self.start:,} to {self.stop - 1:,}"


class Outcome(NamedTuple):
    """What came of a task.

    Attributes:
      value: the result; of what was done before the error, if there is one. None where nothing was begun.
      error: what stopped it.
    """

    value: Any
    error: BaseException | None = None


def split_tasks(episodes: int, workers: int, most: int = MOST_EPISODES) -> list[Task]:
    """All episodes in tasks, in order.

    Args:
      episodes: how many there are.
      workers: how many take tasks at a time.
      most: episodes of a task.
    """
    size = min(most, max(_FEWEST_EPISODES, -(-episodes // (workers * _TASKS_EACH))))
    starts = range(0, episodes, size)
    return [Task(number, start, min(start + size, episodes)) for number, start in enumerate(starts)]


class WorkerError(Exception):
    """An error as a worker met it: the cause of what the driver raises, with the worker's traceback as its text.

    It is raised itself for an error of a library that is of no kind that Python has.
    """


class SentError(NamedTuple):
    """An error as plain data.

    Attributes:
      name: of its class, with the module.
      text: what it says.
      trace: where in the worker.
      bases: names of its classes that are this package's or Python's, the nearest first.
      pickled: the error itself; b"" for one that the driver may not know.
    """

    name: str
    text: str
    trace: str
    bases: tuple[str, ...]
    pickled: bytes


def sendable(outcome: Outcome) -> Outcome:
    """The outcome with its error as a `SentError`."""
    if outcome.error is None:
        return outcome
    kind = type(outcome.error)
    summary = traceback.TracebackException.from_exception(outcome.error)
    bases = tuple(one.__name__ for one in kind.__mro__ if _is_known(one))
    pickled = _pickled(outcome.error) if _is_known(kind) else b""
    sent = SentError(f"{kind.__module__}.{kind.__qualname__}", str(summary), "".join(summary.format()), bases, pickled)
    return Outcome(outcome.value, cast("BaseException", sent))  # on its way only


def received(outcome: Outcome) -> Outcome:
    """The outcome of a worker with an error that can be raised, behind which the worker's traceback stands."""
    sent: object = outcome.error
    if not isinstance(sent, SentError):
        return outcome
    error = _made_again(sent)
    error.__cause__ = WorkerError(sent.trace)
    return Outcome(outcome.value, error)


def _is_known(kind: type) -> bool:
    """Whether the driver has this class of errors for certain: one of this package, or of Python."""
    return kind.__module__ == "builtins" or kind.__module__.startswith("rlds2reverb.")


def _pickled(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return b""  # what it holds may be anything


def _made_again(sent: SentError) -> BaseException:
    try:
        error: Any = pickle.loads(sent.pickled)
    except Exception:  # there was none, or what it holds cannot be made here
        error = None
    if isinstance(error, BaseException):
        return error
    text = f"{sent.name}: {sent.text}"
    for name in sent.bases:
        base: Any = vars(errors).get(name) or vars(builtins).get(name)
        if base in (Exception, BaseException):
            break
        if base is None:
            continue
        with suppress(TypeError):  # it needs more than a text
            return base(text)  # type: ignore[no-any-return]
    return WorkerError(text)


T = TypeVar("T")


class InTurn(Generic[T]):
    """Holds results back until all before them are there.

    Args:
      start: the first episode of all.
    """

    def __init__(self, start: int = 0) -> None:
        self._episodes = start  # the first that was not handed on
        self._held: dict[int, tuple[Task, T]] = {}  # by the first episode

    def take(self, task: Task, result: T) -> Iterator[T]:
        """Takes a result; those whose turn it is now."""
        self._held[task.start] = task, result
        while (found := self._held.pop(self._episodes, None)) is not None:
            self._episodes = found[0].stop
            yield found[1]

    @property
    def held(self) -> int:
        """How many results are held back."""
        return len(self._held)

    @property
    def next(self) -> int:
        """The episode whose turn it is."""
        return self._episodes

    def rest(self) -> Iterator[T]:
        """Those that are still held back, in order."""
        for start in sorted(self._held):
            yield self._held.pop(start)[1]


TRIES = 3
"""How often a task is begun at most. A worker is lost when it is killed, runs out of memory, or its machine is gone."""

SendProgress = Callable[[Any], None]
"""Called by a worker with how far it is. Raises KeyboardInterrupt when the worker is to stop: what it has done by then is its outcome."""


class Work(Protocol):
    """What a worker does; opened once, for many tasks."""

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
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
class Progressed:
    """How far a worker is with a task."""

    number: int
    what: Any


@dataclass(frozen=True)
class Done:
    """A task is finished, or was stopped."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Retried:
    """A task's worker was lost, and another one has begun it anew."""

    number: int
    why: str


@dataclass(frozen=True)
class Lost:
    """A task's workers were lost `TRIES` times, or all that could run it; `why` says how to go on."""

    number: int
    why: str


Event = Progressed | Done | Retried | Lost


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


_EVENT_SECONDS = 0.25
"""How often the undertaking is asked for more while nothing happens."""

STOP_SECONDS = 15.0
"""For workers that are to stop; those that have not by then are ended with the executor."""

_OF_THE_DATA = (InvalidEpisode, SourceError, ViewError)
"""Errors that one process would meet at the same episode."""


class Undertaking(Protocol):
    """The work that a driver distributes."""

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next task to begin; None while there is none, and nothing more is to come when none runs, either."""

    def on_progress(self, task: Task, what: Any) -> None:
        """Called with how far a worker is with a task."""

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        """Called when a task has ended; returns whether its error, if it has one, is dealt with."""

    def on_retry(self, task: Task, why: str) -> None:
        """Called when a task was begun anew."""


class Driver:
    """Drives one undertaking to its end.

    Args:
      executor: runs the tasks.
      undertaking: says which, and collects what comes of them.
      on_idle: called a few times per second.
    """

    def __init__(
        self, executor: Executor, undertaking: Undertaking, on_idle: Callable[[], object] = lambda: None
    ) -> None:
        self._executor, self._undertaking, self._on_idle = executor, undertaking, on_idle
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
                self._handle(self._executor.event(_EVENT_SECONDS))
                self._on_idle()
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

    def _handle(self, event: Event | None) -> None:
        if isinstance(event, Progressed):
            if (task := self._running.get(event.number)) is not None:
                self._undertaking.on_progress(task, event.what)
        elif isinstance(event, Retried):
            self._undertaking.on_retry(self._running[event.number], event.why)
        elif isinstance(event, Done):
            self._take(self._running.pop(event.number), event.outcome)
        elif isinstance(event, Lost):
            self._running.pop(event.number)
            raise WorkersLost(f"{event.why}; what is done stays, and the same command goes on")

    def _take(self, task: Task, outcome: Outcome) -> None:
        if self._undertaking.on_done(task, outcome) or outcome.error is None:
            return
        error = outcome.error
        if not isinstance(error, _OF_THE_DATA):
            if self._failed is not None and isinstance(error, KeyboardInterrupt):
                return  # it had to stop
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
                        self._undertaking.on_done(task, event.outcome)
