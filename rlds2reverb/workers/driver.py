"""Tasks, the executors that run them, and the driver that distributes them and collects their outcomes.

An executor is either processes of this machine (`processes`) or a Ray cluster (`ray`); all else is the same for both. After an error of
the data, tasks of earlier episodes still run to their end, for they may have an earlier error. So the error that is raised is the one that
a single process would have met.

The driver can read any error that a library raises in a worker. An error of this package or of Python is sent as it is. Of any other
error, whose class may exist in the worker alone, and of one that cannot be unpickled here, the driver gets the name, the text and the
traceback, as the nearest class of this package or of Python.
"""

from __future__ import annotations

import builtins
import io
import logging
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from rlds2reverb import errors
from rlds2reverb.errors import ConfigError, InvalidEpisode, SourceError, ViewError, WorkersLost, reason_of
from rlds2reverb.interrupts import raise_lost_interrupt
from rlds2reverb.workers.frames import check_size

# Of a task. The work of a lost worker is repeated, and finished work recorded in the ledger, by the task.
MOST_EPISODES = 512
# Of a task, if there are as many: some problems show only in several episodes (`prepare.endings`).
_FEWEST_EPISODES = 16
# Least tasks of a worker, where there are enough episodes, so that all workers end at about the same time.
_TASKS_EACH = 8


@dataclass(frozen=True)
class Task:
    """Episodes [start, stop) of the source, for one worker.

    A later task, of a higher number, has later episodes; `terms` are for the worker.
    """

    number: int
    start: int
    stop: int
    terms: Any = None

    @property
    def episodes(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"episodes {self.start:,} to {self.stop - 1:,}"


class Outcome(NamedTuple):
    """The end of a task: its result, or that of the work before `error`; `value` is None where nothing was begun."""

    value: Any
    error: BaseException | None = None


def split_tasks(episodes: int, workers: int, most: int = MOST_EPISODES) -> list[Task]:
    """Divides so many episodes into tasks of at most `most`, in order."""
    size = min(most, max(_FEWEST_EPISODES, -(-episodes // (workers * _TASKS_EACH))))
    starts = range(0, episodes, size)
    return [Task(number, start, min(start + size, episodes)) for number, start in enumerate(starts)]


class WorkerError(Exception):
    """The cause of an error that the driver raises, with the worker's traceback as its text.

    It is raised itself for an error of a library that is of no kind of Python's.
    """


class SentError(NamedTuple):
    """An error as plain data.

    Attributes:
      name: of its class, with the module.
      trace: the worker's traceback.
      bases: names of its classes that are this package's or Python's, the nearest first.
      pickled: the error itself; b"" for a class that the driver may not have.
    """

    name: str
    text: str
    trace: str
    bases: tuple[str, ...]
    pickled: bytes


def make_sendable(outcome: Outcome) -> Outcome:
    if outcome.error is None:
        return outcome
    error = _as_error(outcome.error)
    kind = type(error)
    summary = traceback.TracebackException.from_exception(error)
    bases = tuple(base.__name__ for base in kind.__mro__ if _is_known(base))
    pickled = _try_pickle(error) if _is_known(kind) else b""
    sent = SentError(f"{kind.__module__}.{kind.__qualname__}", str(summary), "".join(summary.format()), bases, pickled)
    return Outcome(outcome.value, cast("BaseException", sent))  # until `receive_outcome`


def _as_error(error: BaseException) -> BaseException:
    """An exit that a source's code asked for, as an error: raised in the driver it would end that program, with code 0 even."""
    if not isinstance(error, SystemExit):
        return error
    exit_error = SourceError(
        f"code that the source, the transform or the view runs called sys.exit({error.code!r}) in a worker; it must raise an error instead"
    )
    exit_error.__cause__ = error
    return exit_error


def receive_outcome(outcome: Outcome) -> Outcome:
    """The outcome with an error that can be raised, caused by a `WorkerError` with the worker's traceback."""
    sent: object = outcome.error
    if not isinstance(sent, SentError):
        return outcome
    error = _make_again(sent)
    error.__cause__ = WorkerError(sent.trace)
    return Outcome(outcome.value, error)


def _is_known(kind: type) -> bool:
    """Whether the driver certainly has this class: it is of this package, or of Python."""
    return kind.__module__ == "builtins" or kind.__module__.startswith("rlds2reverb.")


def _try_pickle(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return b""  # an error may hold anything


def _make_again(sent: SentError) -> BaseException:
    try:
        error: Any = pickle.loads(sent.pickled)
    except Exception:  # it was not pickled, or cannot be unpickled here
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
        with suppress(TypeError):  # needs more arguments than a text
            return base(text)  # type: ignore[no-any-return]
    return WorkerError(text)


T = TypeVar("T")


class InTurn(Generic[T]):
    """Holds results back until all results of earlier episodes are there; `start` is the first episode."""

    def __init__(self, start: int = 0) -> None:
        self._episodes = start  # the first that was not handed on
        self._held: dict[int, tuple[Task, T]] = {}  # by the first episode

    def take(self, task: Task, result: T) -> Iterator[T]:
        """Adds a result; yields those whose turn it is now."""
        self._held[task.start] = task, result
        while (held := self._held.pop(self._episodes, None)) is not None:
            due_task, due = held
            self._episodes = due_task.stop
            yield due

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def next(self) -> int:
        return self._episodes

    def rest(self) -> Iterator[T]:
        """Removes the results that are held back, in order."""
        for start in sorted(self._held):
            yield self._held.pop(start)[1]


TRIES = 3
"""Most times that a task is begun. A worker is lost when it is killed, runs out of memory, or its machine is gone."""

BEGUN = None
"""A worker's first progress in a task: the source is open."""

SendProgress = Callable[[Any], None]
"""Called by a worker with its progress. Raises KeyboardInterrupt when the worker is to stop: its work by then is its outcome."""


class Work(Protocol):
    """A worker's work; opened once, for many tasks."""

    def run(self, task: Task, on_progress: SendProgress) -> Outcome:
        """Runs a task. An error that stops it is in the outcome."""


class Job(Protocol):
    """Sent to every worker: plain values, which can be pickled."""

    def open(self) -> AbstractContextManager[Work]:
        """Opens the work of all tasks. An error is the outcome of the first task."""


class _JobPickler(pickle.Pickler):
    """Refuses functions and classes of `__main__`: a worker is another program."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise ConfigError(
                f"workers (--workers, --ray): {obj.__qualname__} is defined in the script, or the notebook, that was started, which workers do "
                "not run; put it into a module of its own beside the script and import it from there, or leave the workers out"
            )
        return NotImplemented


def pickle_job(job: Job) -> bytes:
    """The job as bytes; raises ConfigError if something in it cannot be sent to another process."""
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
    return check_size(file.getvalue())


def unpickle_job(data: bytes) -> Job:
    """The job of `pickle_job`, in a worker; raises ConfigError if something in it cannot be unpickled here."""
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
    """A worker reports the progress of a task."""

    number: int
    what: Any


@dataclass(frozen=True)
class Done:
    """A task has finished, or was stopped."""

    number: int
    outcome: Outcome


@dataclass(frozen=True)
class Retried:
    """A task's worker was lost, and another one has begun it again."""

    number: int
    why: str


@dataclass(frozen=True)
class Lost:
    """A task's workers were lost `TRIES` times, or all that could run it; `why` says how to continue."""

    number: int
    why: str


Event = Progressed | Done | Retried | Lost


class Executor(Protocol):
    """Runs the tasks of one job. Use as a context manager, which ends all workers."""

    @property
    def workers(self) -> int:
        """Number of tasks that run at a time."""

    def __enter__(self) -> Executor: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, task: Task) -> None:
        """Starts a task; at most `workers` at a time."""

    def event(self, seconds: float) -> Event | None:
        """Waits for the next event; None after `seconds`."""

    def stop(self, numbers: Collection[int]) -> None:
        """Stops the workers of these tasks; each ends with `Done`, and the work until then."""

    def whereabouts(self, number: int) -> str:
        """The worker of a running task, and what the system says of it, for messages."""

    def replace(self, number: int, why: str) -> None:
        """Ends the worker of a running task as if it were lost; `Retried` or `Lost` follows."""


_EVENT_SECONDS = 0.25  # interval at which the undertaking is asked for tasks while nothing happens

STOP_SECONDS = 15.0
"""For workers to stop; those that have not by then are ended with the executor."""

_START_SECONDS = 1.0
"""For workers to stop that have not begun: they import and open, do not listen meanwhile, and have done nothing that could be lost."""

QUIET_SECONDS = 30.0
"""Without a sign of a task's worker, until a warning says so. A busy one tells its progress several times a second."""

_OPEN_SECONDS = 600.0
"""For a worker to open the source before it counts as hanging: it may import TensorFlow, or list a large bucket."""

_MOST_COUNTED_SECONDS = 1.0
"""Most silence that one look at the running tasks counts. More passes only if the driver itself was stopped, or was busy."""

_log = logging.getLogger(__name__)

_OF_THE_DATA = (InvalidEpisode, SourceError, ViewError)  # errors that a single process would meet at the same episode


class Undertaking(Protocol):
    """The work that a driver distributes."""

    def next_task(self, running: Collection[Task]) -> Task | None:
        """The next task to begin; None while there is none. None while no task runs is the end."""

    def on_progress(self, task: Task, what: Any) -> None: ...

    def on_done(self, task: Task, outcome: Outcome) -> bool:
        """Called when a task has ended; returns whether its error, if any, is handled."""

    def on_retry(self, task: Task, why: str) -> None:
        """Called when a task was begun again."""


@dataclass
class _Silence:
    """How long nothing came of a running task."""

    seconds: float = 0.0
    has_begun: bool = False  # the source is open in its worker
    is_told: bool = False


@dataclass
class _Silences:
    """The silences of running tasks, by number; time in which the driver itself did not look does not count."""

    by_task: dict[int, _Silence] = field(default_factory=dict)
    looked_at: float = field(default_factory=time.monotonic)

    def begin(self, number: int) -> None:
        self.by_task[number] = _Silence()

    def end(self, number: int) -> None:
        self.by_task.pop(number, None)

    def have_begun(self, numbers: Iterable[int]) -> bool:
        """Whether one of these tasks has begun."""
        return any(number in self.by_task and self.by_task[number].has_begun for number in numbers)

    def hear(self, number: int) -> None:
        if number in self.by_task:
            self.by_task[number] = _Silence(has_begun=True)

    def grow(self) -> None:
        now = time.monotonic()
        # Bounded: a driver that was suspended itself would find all its workers silent.
        passed, self.looked_at = min(now - self.looked_at, _MOST_COUNTED_SECONDS), now
        for silence in self.by_task.values():
            silence.seconds += passed


class Driver:
    """Runs the tasks of one undertaking to its end; calls `on_idle` a few times per second.

    Args:
      most_silent_seconds: without a sign of a task's worker, until another worker begins the task again. None: only a warning says so.
    """

    def __init__(
        self,
        executor: Executor,
        undertaking: Undertaking,
        on_idle: Callable[[], object] = lambda: None,
        most_silent_seconds: float | None = None,
    ) -> None:
        self._executor, self._undertaking, self._on_idle = executor, undertaking, on_idle
        self._most_silent_seconds = most_silent_seconds
        self._running: dict[int, Task] = {}
        self._silences = _Silences()
        # Number of the first task with an error of the data, and the error.
        self._failed: tuple[int, BaseException] | None = None

    def run(self) -> None:
        """Runs all tasks. An error stops all workers before it is raised, and their work until then is taken in.

        Raises:
          WorkersLost: a task was begun `TRIES` times, and its worker lost each time.
          Exception: of a task; of several errors, the one at the first episode.
        """
        for _ in self.steps():
            pass

    def steps(self) -> Generator[None, None, None]:
        """As `run`, a step at a time; closing it before its end stops all workers."""
        try:
            while self._begin() or self._running:
                self._handle(self._executor.event(_EVENT_SECONDS))
                raise_lost_interrupt()
                self._look_for_silent()
                self._on_idle()
                yield
        except BaseException:
            self._wind_up()
            raise
        if self._failed is not None:
            raise self._failed[1]

    def _begin(self) -> bool:
        """Begins tasks up to the number of workers; whether it began one."""
        began = False
        while self._failed is None and len(self._running) < self._executor.workers:
            task = self._undertaking.next_task(self._running.values())
            if task is None:
                break
            self._running[task.number] = task
            self._silences.begin(task.number)
            self._executor.submit(task)
            began = True
        return began

    def _handle(self, event: Event | None) -> None:
        if isinstance(event, Progressed):
            self._silences.hear(event.number)
            if (task := self._running.get(event.number)) is not None and event.what is not BEGUN:
                self._undertaking.on_progress(task, event.what)
        elif isinstance(event, Retried):
            self._silences.begin(event.number)
            self._undertaking.on_retry(self._running[event.number], event.why)
        elif isinstance(event, Done):
            self._silences.end(event.number)
            self._take(self._running.pop(event.number), event.outcome)
        elif isinstance(event, Lost):
            self._silences.end(event.number)
            self._running.pop(event.number)
            raise WorkersLost(f"{event.why}; what is done is kept, and the same command continues")

    @property
    def silent(self) -> str:
        """The worker of which nothing came for the longest time, for the progress; "" while all tell how far they are."""
        number, silence = max(self._silences.by_task.items(), key=lambda item: item[1].seconds, default=(0, _Silence()))
        return self._describe_silence(number, silence) if silence.seconds >= QUIET_SECONDS else ""

    def _describe_silence(self, number: int, silence: _Silence) -> str:
        what = "has told nothing" if silence.has_begun else "has not begun"
        return f"{self._executor.whereabouts(number)}, at {self._running[number]}, {what} for {silence.seconds:.0f} s"

    def _look_for_silent(self) -> None:
        """Warns of silent workers once, and replaces those that were silent for too long."""
        self._silences.grow()
        most = self._most_silent_seconds
        for number, silence in list(self._silences.by_task.items()):
            if silence.seconds >= QUIET_SECONDS and not silence.is_told:
                silence.is_told = True
                _log.warning("%s", self._describe_silence(number, silence))
            if most is not None and silence.seconds >= (most if silence.has_begun else max(most, _OPEN_SECONDS)):
                self._executor.replace(number, self._describe_silence(number, silence))
                self._silences.begin(number)

    def _take(self, task: Task, outcome: Outcome) -> None:
        if self._undertaking.on_done(task, outcome) or outcome.error is None:
            return
        error = outcome.error
        if not isinstance(error, _OF_THE_DATA):
            if self._failed is not None and isinstance(error, KeyboardInterrupt):
                return  # it was stopped
            raise error
        if self._failed is None or task.number < self._failed[0]:
            self._failed = task.number, error
        self._executor.stop([number for number in self._running if number > self._failed[0]])

    def _wind_up(self) -> None:
        """Stops all workers, and takes in their work until then. Errors of it are not raised."""
        start = time.monotonic()
        self._executor.stop(list(self._running))
        while self._running:
            most = STOP_SECONDS if self._silences.have_begun(self._running) else _START_SECONDS
            left = start + most - time.monotonic()
            if left <= 0:
                break
            event = self._executor.event(min(left, _EVENT_SECONDS))
            if isinstance(event, Progressed):
                self._silences.hear(event.number)
            elif isinstance(event, (Done, Lost)):
                task = self._running.pop(event.number)
                if isinstance(event, Done):
                    with suppress(Exception):
                        self._undertaking.on_done(task, event.outcome)
